"""Get the call behind Inductor's benchmark of a choice, so that another clock can time it."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.graphs import Rotation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from diode_collectors.inductor.graphs import OperandSets

_one_at_a_time = threading.RLock()


def captured(choice: Any, benchmark: Callable[[], object]) -> Callable[[], object]:
    """Return the call that Inductor would have timed in ``benchmark``, to be made any number of times.

    Every kind of choice ends in a method of the one benchmarker that all modules share. Other threads can still
    benchmark with it meanwhile.

    Args:
        choice: the choice to benchmark.
        benchmark: has Inductor benchmark the choice.

    Raises:
        RuntimeError: Inductor did not benchmark it.
        Exception: any error of preparing the kernel.
    """
    with _one_at_a_time, _benchmarker_kept() as found, _kept_ready(choice) as tensors:
        benchmark()
    if not found:
        raise RuntimeError("Inductor refused to benchmark it")
    function = found[-1]
    return lambda: (function(), tensors)


def rotation_of(choice: Any, operands: Sequence[Any], sets: OperandSets) -> Rotation:
    """Return the rotation of a choice's kernel over ``sets``; ``operands`` are its inputs and then its output."""

    def launch_over(number: int) -> Callable[[], object]:
        *inputs, output = sets.of(number, operands)
        return captured(choice, lambda: choice.benchmark(*inputs, out=output))

    return Rotation(sets, launch_over)


@contextmanager
def _benchmarker_kept() -> Iterator[list[Callable[[], object]]]:
    """Keep Inductor's benchmarker from timing in this thread, and yield the calls that it should have timed."""
    from torch._inductor.runtime.benchmarking import benchmarker

    found: list[Callable[[], object]] = []
    thread = threading.get_ident()

    def keep(function: Any, arguments: Any = (), named: Any = None, **_: Any) -> float:
        # benchmark_cpu and benchmark_gpu get a warm-up time in place of the arguments that benchmark gets.
        if isinstance(arguments, (tuple, list)) and (arguments or named):
            found.append(lambda: function(*arguments, **(named or {})))
        else:
            found.append(function)
        return 0.0

    def keeping(stock: Callable[..., Any]) -> Callable[..., Any]:
        def chosen(*given: Any, **named: Any) -> Any:
            return (keep if threading.get_ident() == thread else stock)(*given, **named)

        return chosen

    names = [name for name in ("benchmark", "benchmark_cpu", "benchmark_gpu") if hasattr(benchmarker, name)]
    for name in names:
        setattr(benchmarker, name, keeping(getattr(benchmarker, name)))
    try:
        yield found
    finally:
        for name in names:
            delattr(benchmarker, name)


@contextmanager
def _kept_ready(choice: Any) -> Iterator[list[Any]]:
    """Keep a kernel loaded after Inductor's benchmark, and yield its tensors, which the caller must hold meanwhile.

    A C++ kernel gets only addresses of tensors that may exist for the benchmark alone. From torch 2.13 on, a benchmark
    unloads its Triton kernel; ``unload`` does that in the end.
    """
    request: Any = request_of(choice)
    tensors: list[Any] = []
    make = getattr(request, "make_run_fn", None)
    if make is None:
        yield tensors
        return

    def make_and_hold(*inputs: Any, **named: Any) -> Any:
        tensors.extend((inputs, named))
        return make(*inputs, **named)

    request.make_run_fn, request.cleanup_run_fn = make_and_hold, lambda: None
    try:
        yield tensors
    finally:
        del request.make_run_fn, request.cleanup_run_fn


def unload(choice: Any) -> None:
    """Unload a choice's kernel after its last run, as Inductor does after its benchmark. Never raises."""
    with suppress(Exception):  # an error would harm nothing: the kernel is not needed any more
        request_of(choice).cleanup_run_fn()


def request_of(choice: Any) -> Any:
    """Return the object that loads and launches a choice's kernel; None if there is none.

    A choice with packed operands is a wrapper that passes attributes on. ``bmreq`` of a choice that is a graph is a
    property that may raise (torch 2.13).
    """
    for name in ("_bmreq", "bmreq"):
        with suppress(Exception):
            found = getattr(choice, name, None)
            if found is not None:
                return found
    return None
