"""What the hook leaves to Inductor, in real compiles with real Triton choices."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from hooked import OPS, benchmarks, compile_op, hooked, watching
from stand_ins import DOMAIN, H200, BrokenModel, TileModel, card_of
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.utils import fresh_cache

from diode_collectors.inductor import POLICY_ANNOTATION
from diode_integration import final
from diode_integration.choices import DiodeInductorChoices
from diode_integration.install import install
from diode_integration.policy import Mode
from diode_store.errors import HardwareError, ModelError, SettingsError
from inductor_harness import compile_and_run, quiet_torch

if TYPE_CHECKING:
    from pathlib import Path

FAVOURITES = ["triton 64x64x32 s3 w4", "triton 64x64x32 s2 w4", "triton 64x64x32 s4 w4"]
each_op = pytest.mark.parametrize("op", list(OPS))
each_path = pytest.mark.parametrize("deferred", [False, True], ids=["immediate", "deferred"])


def is_vendor(name: str, op: str) -> bool:
    """Return whether ``name`` is a vendor kernel of ``op``; torch 2.11 offers two for an addmm."""
    return name in {op, f"bias_{op}"}


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


def test_slow_vendor_is_dropped() -> None:
    """A vendor kernel that is predicted to lose clearly is not timed."""
    watch = compile_op("addmm", hooked(TileModel(vendor_us=50.0)), run_vendor=True)
    assert watch.left == [FAVOURITES]


def test_decision_is_told_in_one_line() -> None:
    """A decision says on one line what was chosen, of how many, and why."""
    handler = hooked(TileModel(vendor_us=20.5), top_k_configs=1, search_space="DEFAULT")
    compile_op("mm", handler)
    (decision,) = handler.decisions()
    assert decision.describe() == (
        f"mm float32 B=1 M=128 N=256 K=512 nn on NVIDIA H200: kept 2 of {decision.candidates}: "
        "triton::mm 64x64x32 s3 w4 20.0 us, aten::mm 20.5 us "
        "(a template is predicted fastest; 2 within 1.1, with the vendor's)"
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


@each_op
@each_path
def test_broken_model_leaves_stock(op: str, deferred: bool, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001 - a parameter of pytest's
    """A model that raises inside a compile changes nothing but the statistics; it is logged once."""
    stock = compile_op(op, None, deferred=deferred)
    handler = hooked(BrokenModel())
    with caplog.at_level(logging.WARNING, "diode_integration"):
        first = compile_op(op, handler, deferred=deferred)
        compile_op(op, handler, deferred=deferred)
    assert first.left == stock.left
    assert first.timed == stock.timed
    assert handler.get_stats()["model_selections"] == 0
    assert handler.get_stats()["fallback_error"] >= 2
    assert [record.getMessage() for record in caplog.records if record.name == "diode_integration"] == [
        "stock Inductor chooses: ZeroDivisionError: a bug in the model (said once for each reason)"
    ]


@each_op
def test_consumed_list_is_given_back(op: str) -> None:
    """A failure after Inductor's own generators were walked still gives it its whole list."""
    stock = compile_op(op, None)
    watch = compile_op(op, hooked(BrokenModel(), search_space="inherit"))
    assert watch.left == stock.left


def test_failing_list_fails_as_it_would_without_the_hook() -> None:
    """A generator of Inductor's that fails half-way is walked anew for the stock path."""
    calls = []
    handler = hooked(search_space="inherit")
    original = handler.get_ktc

    def fails_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:  # the template's, after the vendor's
            raise RuntimeError("half-way")
        yield from original(*arguments)

    with watching() as watch, mock.patch.object(type(handler), "get_ktc", side_effect=fails_once):
        from torch._inductor.virtualized import V

        with V.set_choices_handler(handler):
            compile_and_run(OPS["mm"][0], torch.randn(128, 512), torch.randn(512, 256))
    assert handler.get_stats()["fallback_error"] == 1
    assert len(watch.left[0]) > 10


@each_op
def test_unknown_hardware_leaves_stock(op: str) -> None:
    """On a device that the model was not trained on, stock Inductor chooses and the decision says why."""
    stock = compile_op(op, None)
    handler = hooked(hardware=None)
    watch = compile_op(op, handler)
    assert watch.left == stock.left
    assert handler.get_stats()["fallback_hardware"] >= 1
    (decision,) = handler.decisions()
    assert decision.abstained
    assert "left to Inductor (hardware: the model knows NVIDIA H200, not" in decision.describe()


@pytest.mark.parametrize(
    ("domain", "reason"),
    [
        ({"dtypes": ("bfloat16",)}, "dtype"),
        ({"ops": ("bmm",)}, "op"),
        ({"layouts": ("nt",)}, "layout"),
        ({"shapes": {"k": (1, 511)}}, "shape"),
    ],
    ids=["dtype", "op", "layout", "shape"],
)
def test_outside_the_domain_stock_chooses(domain: dict[str, Any], reason: str) -> None:
    """Outside what the card says the model was trained on, stock Inductor chooses."""
    stock = compile_op("mm", None)
    handler = hooked(TileModel(card=card_of(DOMAIN.__class__(**{**vars(DOMAIN), **domain}))))
    watch = compile_op("mm", handler)
    assert watch.left == stock.left
    assert handler.get_stats()[f"fallback_{reason}"] == 1


def test_kernels_for_several_hints_are_left_to_stock() -> None:
    """Several hinted sizes at once need candidates for each, so stock Inductor chooses."""
    handler = hooked()
    function, shapes = OPS["mm"]
    with watching(multi_kernel_hints=[64]) as watch, install(handler):
        compile_and_run(function, *(torch.randn(shape) for shape in shapes))
    assert handler.get_stats()["fallback_multi_kernel"] == 1
    assert len(watch.left[0]) > 10


def test_unknown_templates_stay() -> None:
    """Candidates of a template that the model does not know stay beside its choice, unless nothing may be timed."""
    domain = DOMAIN.__class__(**{**vars(DOMAIN), "templates": ("aten::mm",)})
    stock = compile_op("mm", None)
    watch = compile_op("mm", hooked(TileModel(card=card_of(domain))))
    assert sorted(watch.left[0]) == sorted(stock.left[0])
    zero = compile_op("mm", hooked(TileModel(card=card_of(domain)), mode="zero"))
    assert zero.left == [["mm"]]


def test_call_without_known_templates_passes_through() -> None:
    """A call that offers nothing the model knows is left alone and is no fallback."""
    domain = DOMAIN.__class__(**{**vars(DOMAIN), "templates": ("triton::other",)})
    handler = hooked(TileModel(card=card_of(domain)))
    stock = compile_op("mm", None)
    assert compile_op("mm", handler).left == stock.left
    stats = handler.get_stats()
    assert (stats["total_calls"], stats["passed_through"], stats["model_selections"]) == (1, 1, 0)


def test_without_max_autotune_nothing_is_ranked() -> None:
    """A plain compile, which has only the vendor kernel, passes straight through."""
    handler = hooked()
    function, shapes = OPS["mm"]
    inputs = [torch.randn(shape) for shape in shapes]
    with watching() as watch, install(handler), torch.no_grad():
        torch.testing.assert_close(torch.compile(function)(*inputs), function(*inputs), rtol=1e-4, atol=1e-3)
    assert watch.left == [["mm"]]
    stats = handler.get_stats()
    assert (stats["total_calls"], stats["passed_through"], stats["seconds"]) == (1, 1, 0)


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


@each_op
@each_path
def test_observing_changes_nothing(op: str, deferred: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """When it only observes, the hook records what it would have kept, and stock Inductor chooses."""
    stock = compile_op(op, None, deferred=deferred)
    handler = hooked(TileModel(vendor_us=20.5), observe=True)
    watch = compile_op(op, handler, deferred=deferred)
    assert watch.left == stock.left
    assert watch.timed == stock.timed
    assert all(POLICY_ANNOTATION not in choice.annotations for choice in watch.kept[0])
    (decision,) = handler.decisions()
    assert decision.observed
    assert decision.candidates > 500
    assert len(decision.chosen) == 4
    assert ": would keep 4 of " in decision.describe()
    assert handler.get_stats()["configs_filtered"] == 0


@each_op
def test_observing_a_cpu_as_if_it_were_a_gpu(op: str) -> None:
    """On a machine without a GPU, observing ranks what the named GPU would have been offered."""
    function, shapes = OPS[op]
    inputs = [torch.randn(shape).to(torch.bfloat16) for shape in shapes]
    handler = hooked(TileModel(vendor_us=20.5), observe=True)
    with quiet_torch(), fresh_cache(), install(handler), inductor_config.patch(fx_graph_cache=False):
        result = compile_and_run(function, *inputs)
    torch.testing.assert_close(result, function(*inputs), rtol=2e-2, atol=2e-1)
    (decision,) = handler.decisions()
    assert decision.candidates > 1000
    assert len(decision.chosen) == 4


def test_nothing_is_ranked_as_if_on_a_gpu_unless_observing() -> None:
    """Kernels of another device cannot be run, so only observing lists them."""
    handler = hooked()
    with quiet_torch(), fresh_cache(), install(handler), inductor_config.patch(fx_graph_cache=False):
        compile_and_run(OPS["mm"][0], torch.randn(128, 512), torch.randn(512, 256))
    assert [decision.candidates for decision in handler.decisions()] == [1]


def test_no_model_leaves_stock(tmp_path: Path) -> None:
    """Without a usable model the handler leaves everything to stock Inductor and says why."""
    handler = DiodeInductorChoices(tmp_path / "none.pt", hardware="h200")
    assert handler.model is None
    stock = compile_op("mm", None)
    assert compile_op("mm", handler).left == stock.left
    assert handler.get_stats()["fallback_no_model"] == 1
    assert "no such model" in handler.decisions()[0].reason


def test_no_model_is_an_error_without_fallback(tmp_path: Path) -> None:
    """Without fallback a missing model is an error, outside of any compile."""
    with pytest.raises(ModelError, match="no such model"):
        DiodeInductorChoices(tmp_path / "none.pt", enable_fallback=False)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "tpu"}, SettingsError, "device must be cpu or cuda, not 'tpu'"),
        ({"search_space": "ALL"}, SettingsError, "search_space must be EXHAUSTIVE, DEFAULT or inherit, not 'ALL'"),
        ({"mode": "two"}, SettingsError, "mode must be one of top_k, zero, not 'two'"),
        ({"top_k_configs": 0}, SettingsError, "top_k_configs must be a whole number of at least 1, not 0"),
        (
            {"hardware": "abacus"},
            HardwareError,
            "no device is known by the name 'abacus'; pass a Hardware record instead",
        ),
    ],
    ids=["device", "search_space", "mode", "top_k", "hardware"],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """An option that cannot be used is refused in one line when the handler is made."""
    with pytest.raises(error) as refused:
        hooked(**options)
    assert str(refused.value) == message


def test_every_option_that_changes_choices_is_in_the_uuid() -> None:
    """Handlers that may choose differently have different cache keys; equal ones have equal keys."""
    variants: list[dict[str, Any]] = [
        {},
        {"model": TileModel(sha256="b" * 64)},
        {"top_k_configs": 2},
        {"performance_threshold": 1.2},
        {"mode": Mode.ZERO},
        {"search_space": "DEFAULT"},
        {"search_space": "inherit"},
        {"hardware": "NVIDIA B200"},
        {"hardware": None},
        {"observe": True},
    ]
    uuids = [hooked(**options).uuid() for options in variants]
    assert len(set(uuids)) == len(variants)
    assert uuids == [hooked(**options).uuid() for options in variants]


def test_device_option_changes_nothing() -> None:
    """The device that upstream's option names is accepted and chooses the same."""
    assert hooked(device="cuda:1").uuid() == hooked(device="cpu").uuid()


def test_hardware_may_be_a_record() -> None:
    """A device that nobody has a name for can be passed as a record."""
    handler = hooked(hardware=H200)
    compile_op("mm", handler)
    assert handler.get_stats()["model_selections"] == 1


def test_unmarked_choices_are_nobodys_business() -> None:
    """A list without a mark of ours goes through the final selection untouched."""
    choices = [SimpleNamespace(annotations={}), SimpleNamespace()]
    assert final.final_selection(choices) is choices


def test_final_selection_survives_a_bug() -> None:
    """An error in the final selection leaves the list as it was and is counted."""
    handler = hooked()
    call = final.RankedCall(handler, "mm", ranking=None, ktcs=())  # type: ignore[arg-type]  # the bug
    choices = [SimpleNamespace(annotations={final.ANNOTATION: final.Mark(call, 0)})]
    assert final.final_selection(choices) is choices
    assert handler.get_stats()["fallback_error"] == 1


def test_stats_name_what_was_promised() -> None:
    """Before any call every promised statistic is there, and zero."""
    stats = hooked().get_stats()
    assert stats == dict.fromkeys(
        ("total_calls", "passed_through", "model_selections", "configs_filtered", "seconds", "seconds_listing"), 0
    )


def test_listing_is_most_of_the_time() -> None:
    """The time spent is measured, and that of Inductor's own listing apart."""
    handler = hooked()
    compile_op("mm", handler)
    stats = handler.get_stats()
    assert 0 < stats["seconds_listing"] < stats["seconds"] < 5
