"""A picked kernel that cannot be compiled does not fail the user's compile."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import OPS, each_op, each_path, hooked, watching
from torch._inductor import config as inductor_config

from diode_integration.inductor import second_try
from diode_integration.install import install
from inductor_harness import compile_and_run, quiet_torch
from stand_ins import TileModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

PICKS_A_TEMPLATE = TileModel(vendor_us=1000.0)
"""A Triton kernel, which this CPU cannot run: compiling it fails for real."""


@pytest.fixture
def compile_fx() -> ModuleType:
    """Return Inductor's compiler, whose import warns."""
    with quiet_torch():
        from torch._inductor import compile_fx
    return compile_fx


@pytest.mark.quick(2)
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
    assert "the vendor kernel is kept alone (failed: " in kept.describe()
    said = "a kernel that was picked cannot be used, so the graph is compiled without picks and models: "
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

    monkeypatch.setattr(compile_fx, second_try.ENTRANCE, fails)
    with watching(), install(hooked(mode="zero")), pytest.raises(Exception, match="a bug in Inductor"):
        compile_and_run(OPS["mm"][0], *(torch.randn(shape) for shape in OPS["mm"][1]))
    assert len(tries) == 1


def test_a_second_failure_is_reported_as_the_first(compile_fx: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the vendor's kernels do not help it was not the pick, and what failed first is raised."""
    tries = []
    handler = hooked(PICKS_A_TEMPLATE, mode="zero")

    def fails(*_args: object, **_kwargs: object) -> None:
        tries.append(1)
        handler.graphs._thread.has_template = True
        raise ZeroDivisionError(f"failure {len(tries)}") from KeyError("its cause")

    monkeypatch.setattr(compile_fx, second_try.ENTRANCE, fails)
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    tuned = inductor_config.patch(max_autotune_gemm=True)
    with tuned, watching(), install(handler), pytest.raises(ZeroDivisionError, match="failure 1") as error:
        compile_fx.fx_codegen_and_compile(graph)
    assert isinstance(error.value.__cause__, KeyError)
    assert len(tries) == 2
    assert handler.get_stats()["failed_graphs"] == 0


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt, ZeroDivisionError])
def test_what_is_not_tried_again(
    error: type[BaseException], compile_fx: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's exception amid a compile is the user's; and a graph that cannot be copied has one try."""
    tries: list[int] = []
    handler = hooked(PICKS_A_TEMPLATE, mode="zero")

    def stopped(*_args: object, **_kwargs: object) -> None:
        tries.append(1)
        handler.graphs._thread.has_template = True
        raise error

    monkeypatch.setattr(compile_fx, second_try.ENTRANCE, stopped)
    graph = None if error is ZeroDivisionError else torch.fx.symbolic_trace(torch.nn.ReLU())
    with inductor_config.patch(max_autotune_gemm=True), install(handler), pytest.raises(error):
        compile_fx.fx_codegen_and_compile(graph)
    assert len(tries) == 1


def add_to_input(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Change a copy of the input, in place, before and behind a product."""
    z = x.clone()
    add_one_(z)
    y = z @ w
    add_one_(y)
    return y, z.sin()


def add_between(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Change what goes into a product, in place, behind it."""
    z = x.sin()
    y = z @ w
    add_one_(z)
    return (y + z[:, :1],)


@torch.library.custom_op("diode_tests::add_one_", mutates_args=("x",))
def add_one_(x: torch.Tensor) -> None:
    """Add 1 in place, as Inductor must not see through."""
    x.add_(1)


@add_one_.register_fake
def _(_x: torch.Tensor) -> None:
    return None


@torch.no_grad()
@pytest.mark.parametrize("function", [pytest.param(add_to_input, marks=pytest.mark.long), add_between])
def test_the_second_try_compiles_the_graph_as_it_was(
    function: Callable[..., Any], compile_fx: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's passes have made the first one's graph one with mutations, over which they would be wrong."""
    handler = hooked(mode="zero")
    stock = getattr(compile_fx, second_try.ENTRANCE)
    tries = []

    def fails_at_first(*args: Any, **kwargs: Any) -> Any:
        result = stock(*args, **kwargs)
        tries.append(result)
        if len(tries) == 1:
            handler.graphs._thread.has_template = True
            raise ZeroDivisionError("behind all passes")
        return result

    monkeypatch.setattr(compile_fx, second_try.ENTRANCE, fails_at_first)
    inputs = [torch.rand(8, 16), torch.rand(16, 16)]
    before = [each.clone() for each in inputs]
    torch._dynamo.reset()
    with quiet_torch(), install(handler), inductor_config.patch(fx_graph_cache=False):
        options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN"}
        results = torch.compile(function, options=options)(*inputs)
    assert (len(tries), handler.get_stats()["failed_graphs"]) == (2, 1)
    torch.testing.assert_close(inputs, before)
    torch.testing.assert_close(results, function(*before))


def test_a_wrapper_that_came_later_stays(compile_fx: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninstalling takes out what was put in, not what somebody else put around it."""
    stock = getattr(compile_fx, second_try.ENTRANCE)
    monkeypatch.setattr(compile_fx, second_try.ENTRANCE, stock)
    installation = install(hooked(mode="zero"))
    ours = getattr(compile_fx, second_try.ENTRANCE)

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    setattr(compile_fx, second_try.ENTRANCE, theirs)
    installation.close()
    assert getattr(compile_fx, second_try.ENTRANCE) is theirs
    function, shapes = OPS["mm"]
    inputs = [torch.randn(shape) for shape in shapes]
    torch.testing.assert_close(compile_and_run(function, *inputs), function(*inputs), rtol=1e-4, atol=1e-3)


def test_uninstall_takes_the_guard_out(compile_fx: ModuleType) -> None:
    """Afterwards Inductor's own function is back."""
    before = getattr(compile_fx, second_try.ENTRANCE)
    with install(hooked()):
        assert getattr(compile_fx, second_try.ENTRANCE) is not before
    assert getattr(compile_fx, second_try.ENTRANCE) is before
