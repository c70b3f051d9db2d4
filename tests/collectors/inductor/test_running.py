"""The call behind Inductor's benchmark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._inductor import select_algorithm
from torch._inductor.codegen.subgraph import SubgraphChoiceCaller
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.select_algorithm import DataProcessorChoiceCallerWrapper
from torch.fx.experimental.proxy_tensor import make_fx

from diode_collectors.inductor.running import captured, unload
from inductor_harness import compile_and_run, triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_call_is_kept_and_not_timed() -> None:
    """It is what Inductor's benchmarker was asked to time, with its arguments, and can be made again and again."""
    made: list[int] = []
    run = captured(SimpleNamespace(), lambda: benchmarker.benchmark(made.append, (7,), {}))
    assert made == []
    run()
    run()
    assert made == [7, 7]


def test_other_threads_still_benchmark() -> None:
    """A compile in another thread gets its time while a call is being kept in this one."""
    found: list[float] = []

    def benchmark() -> None:
        other = threading.Thread(target=lambda: found.append(benchmarker.benchmark_cpu(lambda: None, 1, 1)))
        other.start()
        other.join()
        benchmarker.benchmark_cpu(lambda: None)

    captured(SimpleNamespace(), benchmark)
    assert len(found) == 1
    assert found[0] > 0
    assert "benchmark_cpu" not in vars(benchmarker)


class Request:
    """Stands in for what loads a kernel; it runs as often as it is asked to, until it is unloaded."""

    def __init__(self) -> None:
        """Be loaded by nobody yet."""
        self.runs, self.unloaded = 0, 0

    def make_run_fn(self, *_inputs: object) -> Callable[[], None]:
        """Return the launch."""

        def run() -> None:
            self.runs += 1

        return run

    def cleanup_run_fn(self) -> None:
        """Unload it."""
        self.unloaded += 1

    def benchmark(self) -> None:
        """Benchmark it, and unload it behind that, as torch 2.13 does."""
        benchmarker.benchmark_cpu(self.make_run_fn(1))
        self.cleanup_run_fn()


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("name", ["bmreq", "_bmreq"])
def test_a_kernel_stays_loaded_until_it_is_unloaded(name: str, *, is_wrapped: bool) -> None:
    """Inductor keeps what loads a kernel under one name or another, behind a wrapper where operands are packed."""
    request = Request()
    choice: Any = SimpleNamespace(**{name: request})
    if is_wrapped:
        choice = DataProcessorChoiceCallerWrapper(choice, None, None)
    run = captured(choice, request.benchmark)
    run()
    assert (request.runs, request.unloaded) == (1, 0)
    unload(choice)
    assert request.unloaded == 1


class Slotted:
    """A choice that has nothing of what Inductor's have."""

    __slots__ = ()


class Raising:
    """A choice whose request cannot be asked for."""

    @property
    def _bmreq(self) -> object:
        raise AssertionError("not today")


@pytest.mark.parametrize(
    "choice", [Slotted(), Raising(), SimpleNamespace(bmreq=object())], ids=["slotted", "raising", "bare"]
)
def test_unloading_never_raises(choice: object) -> None:
    """It runs in the end, whatever choice it is."""
    unload(choice)


def test_a_choice_that_is_a_graph_runs() -> None:
    """Torch 2.13 has a property on it that raises, except with pipelined autotuning."""
    a, b = torch.randn(128, 64), torch.randn(64, 32)
    found: list[torch.Tensor] = []

    def run_as_a_graph(choices: list[Any]) -> list[Any]:
        functions.remove(run_as_a_graph)  # Inductor compiles the graph, and asks again
        graph = SubgraphChoiceCaller("graph", choices[0].input_nodes, choices[0].layout, "", make_fx(torch.mm))
        run: Any = captured(graph, lambda: graph.benchmark(a, b, out=torch.zeros(128, 32)))
        found.extend(run()[0])
        unload(graph)
        return choices

    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
    functions.append(run_as_a_graph)
    with triton_choices_on_cpu():
        compile_and_run(torch.mm, a, b)
    torch.testing.assert_close(found[0], a @ b)
