"""What the hook leaves to stock Inductor: what no model knows, and what fails."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from hooked import OPS, compile_op, each_op, each_path, hooked, watching

from diode_integration.choices import DiodeInductorChoices
from diode_integration.inductor import entry
from diode_integration.install import install
from inductor_harness import compile_and_run
from stand_ins import DOMAIN, BrokenModel, TileModel, card_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.quick(1)
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
        "stock Inductor chooses: ZeroDivisionError: a bug in the model (logged once)"
    ]


@pytest.mark.quick(1)
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


@pytest.mark.quick(1)
@each_op
def test_unknown_hardware_leaves_stock(op: str) -> None:
    """On a device that the model was not trained on, stock Inductor chooses and the decision gives the reason."""
    stock = compile_op(op, None)
    handler = hooked(hardware=None)
    watch = compile_op(op, handler)
    assert watch.left == stock.left
    assert handler.get_stats()["fallback_hardware"] >= 1
    (decision,) = handler.decisions()
    assert decision.abstained
    assert (
        "left to Inductor (hardware: the model knows the architecture sm_90 (NVIDIA H200), not" in decision.describe()
    )


@pytest.mark.quick(1)
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
    """Outside what the card says the model was trained on, stock Inductor chooses if that is asked for."""
    stock = compile_op("mm", None)
    model = TileModel(card=card_of(DOMAIN.__class__(**{**vars(DOMAIN), **domain})))
    handler = hooked(model, unknown="stock")
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


def test_no_model_leaves_stock(tmp_path: Path) -> None:
    """Without a usable model the handler leaves everything to stock Inductor and gives the reason."""
    handler = DiodeInductorChoices(tmp_path / "none.pt", hardware="h200")
    assert handler.model is None
    stock = compile_op("mm", None)
    assert compile_op("mm", handler).left == stock.left
    assert handler.get_stats()["fallback_no_model"] == 1
    assert "no such model" in handler.decisions()[0].reason


def test_unmarked_choices_are_left_alone() -> None:
    """A list without a mark of ours goes through the final selection untouched."""
    choices = [SimpleNamespace(annotations={}), SimpleNamespace()]
    assert entry.final_selection(choices) is choices


def test_final_selection_survives_a_bug() -> None:
    """An error in the final selection leaves the list as it was and is counted."""
    handler = hooked()
    call = entry.RankedCall("mm", ranking=None, ktcs=())  # type: ignore[arg-type]  # the bug
    choices = [SimpleNamespace(annotations={entry.CallMark.KEY: entry.CallMark(handler, call, 0)})]
    assert entry.final_selection(choices) is choices
    assert handler.get_stats()["fallback_error"] == 1
