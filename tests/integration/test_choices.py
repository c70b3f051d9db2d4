"""What the hook leaves to Inductor, in real compiles with real Triton choices."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hooked import OPS, benchmarks, compile_op, each_op, each_path, hooked, watching
from torch._inductor import select_algorithm

from diode_collectors.inductor.adapter import POLICY_ANNOTATION
from diode_integration.install import install
from inductor_harness import compile_and_run
from stand_ins import TileModel

FAVOURITES = ["triton 64x64x32 s3 w4", "triton 64x64x32 s2 w4", "triton 64x64x32 s4 w4"]


def is_vendor(name: str, op: str) -> bool:
    """Return whether ``name`` is a vendor kernel of ``op``; torch 2.11 offers two for an addmm."""
    return name in {op, f"bias_{op}"}


@pytest.mark.quick(2)
@each_op
@each_path
def test_top_k_leaves_the_best_predicted(op: str, deferred: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """Inductor is left with the best three templates and the close vendor kernel, and times exactly those."""
    handler = hooked(TileModel(vendor_us=20.5))
    watch = compile_op(op, handler, deferred=deferred)
    (left,) = watch.left
    assert left[:3] == FAVOURITES
    assert len(left) == 4
    assert is_vendor(left[3], op)
    assert sorted(watch.timed) == sorted(left)
    assert benchmarks() == 1


@each_op
def test_ranks_the_exhaustive_list(op: str) -> None:
    """Every config of Inductor's EXHAUSTIVE list is ranked, although its configuration asks for DEFAULT."""
    handler = hooked()
    compile_op(op, handler)
    (decision,) = handler.decisions()
    assert decision.candidates > 500
    assert handler.get_stats()["configs_filtered"] == decision.candidates - 1


@pytest.mark.parametrize("search_space", ["DEFAULT", "inherit"])
def test_ranks_the_list_it_is_told(search_space: str) -> None:
    """DEFAULT and the inherited search space rank the two dozen configs of Inductor's DEFAULT list."""
    handler = hooked(search_space=search_space)
    compile_op("mm", handler)
    (decision,) = handler.decisions()
    assert 10 < decision.candidates < 30


def test_inherits_the_search_space_of_the_configuration() -> None:
    """The inherited search space follows Inductor's configuration."""
    handler = hooked(search_space="inherit")
    compile_op("mm", handler, search_space="EXHAUSTIVE")
    assert handler.decisions()[0].candidates > 500


@each_op
@each_path
def test_zero_mode_benchmarks_nothing(op: str, deferred: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """With the vendor predicted fastest, zero mode leaves it alone and nothing is timed."""
    watch = compile_op(op, hooked(mode="zero"), deferred=deferred)
    (left,) = watch.left
    assert len(left) == 1
    assert is_vendor(left[0], op)
    assert (watch.timed, benchmarks()) == ([], 0)


@each_op
def test_zero_mode_leaves_one_template(op: str) -> None:
    """With a template predicted fastest, zero mode leaves exactly that one, in however many calls it was listed."""
    watch = compile_op(op, hooked(TileModel(vendor_us=50.0), mode="zero"), run_vendor=True)
    assert watch.left == [FAVOURITES[:1]]
    assert watch.timed == []


@each_op
def test_one_decision_for_one_op(op: str) -> None:
    """An op is decided once, with all its candidates, whether Inductor asks in one call or in three."""
    handler = hooked(TileModel(vendor_us=20.5))
    compile_op(op, handler)
    (decision,) = handler.decisions()
    assert (decision.op, decision.hardware, decision.vendor_us) == (op, "NVIDIA H200", 20.5)
    assert [round(candidate.predicted_us, 2) for candidate in decision.chosen] == [20.0, 20.1, 20.1, 20.5]
    assert [candidate.config.template for candidate in decision.chosen[:3]] == [
        "triton::bmm" if op == "bmm" else "triton::mm"
    ] * 3
    assert handler.get_stats()["model_selections"] == 1


def test_vendor_wins_alone() -> None:
    """A vendor kernel that is predicted to win clearly is left alone, and so is not benchmarked either."""
    watch = compile_op("mm", hooked(TileModel(vendor_us=10.0)))
    assert (watch.left, watch.timed) == ([["mm"]], [])


@each_path
def test_slow_vendor_stands_by_when_every_template_fails(deferred: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """A vendor kernel that is predicted to lose is timed too: the compile goes on with it if no template runs."""
    handler = hooked(TileModel(vendor_us=50.0))
    watch = compile_op("addmm", handler, deferred=deferred, fails=lambda name: name.startswith("triton"))
    (left,) = watch.left
    assert left[:3] == FAVOURITES
    assert is_vendor(left[3], "addmm")
    assert sorted(watch.timed) == sorted(left)


def test_decision_is_told_in_one_line() -> None:
    """A decision says on one line what was chosen, of how many, and why."""
    handler = hooked(TileModel(vendor_us=20.5), top_k_configs=1, search_space="DEFAULT")
    compile_op("mm", handler)
    (decision,) = handler.decisions()
    assert decision.describe() == (
        f"mm float32 B=1 M=128 N=256 K=512 nn on NVIDIA H200: kept 2 of {decision.candidates}: "
        "triton::mm 64x64x32 s3 w4 20.0 us, aten::mm 20.5 us "
        "(a template is predicted fastest; 1 kept within 1.1; the vendor's kernel is kept too)"
    )


def test_kept_choices_say_whose_policy_it_was() -> None:
    """What the hook left carries the model's digest, so that a recorded timing does not pass for an unbiased one."""
    watch = compile_op("mm", hooked(TileModel(vendor_us=20.5)))
    policies = {choice.annotations.get(POLICY_ANNOTATION) for choice in watch.kept[0]}
    assert policies == {f"hook:{'a' * 64}"}


def test_vendor_stands_in_for_a_template_that_fails() -> None:
    """When the one chosen template cannot be generated, zero mode still has the vendor kernel."""
    with mock.patch.object(select_algorithm.TritonTemplate, "choice_or_none", return_value=None):
        watch = compile_op("mm", hooked(TileModel(vendor_us=50.0), mode="zero"))
    assert watch.left == [["mm"]]


def test_dynamic_shapes_are_ranked_by_their_hints() -> None:
    """A symbolic size counts as the size that it was first seen with."""
    handler = hooked(TileModel(vendor_us=20.5))
    inputs = torch.randn(128, 512), torch.randn(512, 256)
    with watching() as watch, install(handler):
        result = compile_and_run(OPS["mm"][0], *inputs, dynamic=True)
    torch.testing.assert_close(result, inputs[0] @ inputs[1], rtol=1e-4, atol=1e-3)
    (decision,) = handler.decisions()
    assert decision.problem is not None
    shape = decision.problem.shape
    assert (shape.m, shape.n, shape.k) == (128, 256, 512)
    assert len(watch.left[0]) == 4


def test_stats_can_be_reset() -> None:
    """Afterwards the counters and times are 0 and the decisions forgotten; what comes later is counted."""
    handler = hooked()
    compile_op("mm", handler)
    assert handler.get_stats()["total_calls"] > 0
    handler.reset_stats()
    assert (handler.get_stats(), handler.decisions()) == (hooked().get_stats(), [])
    compile_op("bmm", handler)
    assert [decision.op for decision in handler.decisions()] == ["bmm"]


def test_stats_name_what_was_promised() -> None:
    """Before any call every promised statistic is there, and zero."""
    stats = hooked().get_stats()
    ops = (
        "model_selections",
        "picked_from_file",
        "picks_missed",
        "unknown_vendor",
        "unknown_stock",
        "kept_alone",
        "failed_graphs",
    )
    clock = ("clocked", "clocked_other", "clocked_by_prediction", "clock_failures", "seconds_clocked")
    counts = ("total_calls", "passed_through", "configs_filtered", "configs_kept")
    fused = ("fused_picked", "fused_untuned", "fused_stock")
    spooled = ("decisions_recorded", "decisions_unrecorded", "decisions_dropped")
    assert stats == dict.fromkeys((*ops, *clock, *counts, *fused, *spooled, "seconds", "seconds_listing"), 0)


def test_listing_is_most_of_the_time() -> None:
    """The time spent is measured, and that of Inductor's own listing apart."""
    handler = hooked()
    compile_op("mm", handler)
    stats = handler.get_stats()
    assert 0 < stats["seconds_listing"] < stats["seconds"]
