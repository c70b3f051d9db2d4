"""A picked kernel that cannot be compiled does not fail the user's compile."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import torch
from hooked import OPS, each_op, each_path, hooked, watching
from stand_ins import TileModel

from diode_integration import retry
from diode_integration.install import install
from inductor_harness import compile_and_run, quiet_torch

if TYPE_CHECKING:
    from types import ModuleType

PICKS_A_TEMPLATE = TileModel(vendor_us=1000.0)
"""A Triton kernel, which this CPU cannot run: compiling it fails for real."""


@pytest.fixture
def compile_fx() -> ModuleType:
    """Return Inductor's compiler, whose import warns."""
    with quiet_torch():
        from torch._inductor import compile_fx
    return compile_fx


@each_op
@each_path
def test_the_vendors_kernel_takes_over(op: str, deferred: bool, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001 - a parameter of pytest's
    """The graph is compiled again with the vendor's kernel, its result is right, and one line says why."""
    function, shapes = OPS[op]
    inputs = [torch.randn(shape) for shape in shapes]
    handler = hooked(PICKS_A_TEMPLATE, mode="zero")
    with caplog.at_level(logging.WARNING, "diode_integration"), watching(deferred=deferred) as watch, install(handler):
        result = compile_and_run(function, *inputs)
    torch.testing.assert_close(result, function(*inputs), rtol=1e-4, atol=1e-3)
    assert watch.left[0][0].startswith("triton")
    assert watch.left[1] in ([op], [f"bias_{op}"])  # torch 2.10 and 2.11 offer two of an addmm
    assert watch.timed == []
    assert handler.get_stats()["failed_graphs"] == 1
    picked, kept = handler.decisions()
    assert picked.keeps_template
    assert "the vendor's kernel is kept alone (failed: " in kept.describe()
    said = "a kernel that was picked cannot be used, so the graph has the vendor's: "
    assert sum(record.getMessage().startswith(said) for record in caplog.records) == 1


def test_the_next_graph_asks_the_model_again() -> None:
    """A failure is one graph's."""
    function, shapes = OPS["mm"]
    inputs = [torch.randn(shape) for shape in shapes]
    handler = hooked(PICKS_A_TEMPLATE, mode="zero")
    for _ in range(2):
        with watching() as watch, install(handler):
            compile_and_run(function, *inputs)
        assert watch.left[0][0].startswith("triton")
    assert handler.get_stats()["failed_graphs"] == 2


def test_failures_of_others_are_not_ours(compile_fx: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no template was kept alone the compile fails as it would have, after one try."""
    tries = []

    def fails(*_args: object, **_kwargs: object) -> None:
        tries.append(1)
        raise ZeroDivisionError("a bug in Inductor")

    monkeypatch.setattr(compile_fx, retry.ENTRANCE, fails)
    with watching(), install(hooked(mode="zero")), pytest.raises(Exception, match="a bug in Inductor"):
        compile_and_run(OPS["mm"][0], *(torch.randn(shape) for shape in OPS["mm"][1]))
    assert len(tries) == 1


def test_a_second_failure_is_reported_as_the_first(compile_fx: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the vendor's kernels do not help it was not the pick, and what failed first is raised."""
    tries = []
    handler = hooked(PICKS_A_TEMPLATE, mode="zero")

    def fails(*_args: object, **_kwargs: object) -> None:
        tries.append(1)
        handler.graph.picked()
        raise ZeroDivisionError(f"failure {len(tries)}") from KeyError("its cause")

    monkeypatch.setattr(compile_fx, retry.ENTRANCE, fails)
    with watching(), install(handler), pytest.raises(ZeroDivisionError, match="failure 1") as error:
        compile_fx.fx_codegen_and_compile()
    assert isinstance(error.value.__cause__, KeyError)
    assert len(tries) == 2
    assert handler.get_stats()["failed_graphs"] == 0


def test_uninstall_takes_the_guard_out(compile_fx: ModuleType) -> None:
    """Afterwards Inductor's own function is back."""
    before = getattr(compile_fx, retry.ENTRANCE)
    with install(hooked()):
        assert getattr(compile_fx, retry.ENTRANCE) is not before
    assert getattr(compile_fx, retry.ENTRANCE) is before
