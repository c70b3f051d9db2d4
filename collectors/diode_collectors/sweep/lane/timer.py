"""Takes the time of kernels as they run in a deployed model, and of nothing but the kernel.

On a GPU the weights of a layer are never in the L2 cache when it runs, and nothing waits for a launch. Kernels under
50 us are therefore timed as a CUDA graph of launches, each over operands of its own; longer ones between two events,
behind a flush that reads. A flush that writes, as torch-diode used until version 3 of its schema, leaves lines that
are written back while the kernel runs, and a pair of events adds some 3 us: together 3 to 10 us on an H200.

Every run is behind a short device sleep too: the dispatch of a small vendor kernel takes longer than the kernel, and
an event pair around a launch that was late times the gap as well (39 us read for 5.5 us of kernel on an H200).
Whether a launch was hidden is checked for each run.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from diode_collectors.sweep.lane.graphs import Rotation, graph_of
from diode_store.records import GRAPH, READ_FLUSH, WRITE_FLUSH, TimingMethod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

US_PER_MS, NS_PER_US = 1e3, 1e3
GRAPH_BELOW_US = 50.0
"""Where the fastest kernel of a problem takes less, all of its kernels are timed in graphs."""
_SLEEP_CYCLES, _MOST_SLEEP_CYCLES = 160_000, 4_000_000  # 80 us to 2 ms at 2 GHz
_MOST_LATE_SHARE = 0.25
_ATTEMPTS = 6
# The L2 of a large GPU has two partitions that may hold the same line; twice its size empties both.
_FLUSH_FACTOR = 2
_L2_IF_UNKNOWN = 128 * 2**20
_REPLAY_US = 160.0
_FEWEST_LAUNCHES, _MOST_LAUNCHES = 4, 16


@dataclass(frozen=True)
class Sampled:
    """What is run for one sample of a kernel's time."""

    run: Callable[[], object]
    launches: int = 1
    """How often that launches the kernel."""


class Timer(Protocol):
    """What takes times on one kind of device."""

    overhead_us: float
    """What a run takes beside the kernel, about."""
    late_launches: int
    """Runs so far that were kept although their launch could not be hidden."""

    def active(self) -> AbstractContextManager[None]:
        """Return the context in which kernels must be prepared and run."""

    def method_for(self, best_us: float) -> TimingMethod:
        """Return how the kernels of a problem are timed whose fastest takes about ``best_us``."""

    def sampled(self, run: Callable[[], object], rotation: Rotation | None, us: float, method: TimingMethod) -> Sampled:
        """Prepare to take samples of one kernel.

        Args:
            run: launches it once.
            rotation: launches it over other operands; None where there are no others.
            us: about how long it takes.
            method: as ``method_for`` returned it.

        Raises:
            CaptureError: it cannot be launched in a graph.
        """

    def warm_up(self, function: Callable[[], object], for_us: float) -> None:
        """Keep the device busy until its clocks have risen."""

    def runs_us(self, function: Callable[[], object], count: int) -> list[float]:
        """Return how long each of ``count`` runs took, in microseconds."""

    def synchronize(self) -> None:
        """Wait for the device, which raises errors of what ran there."""


def samples_us(timer: Timer, sampled: Sampled, count: int) -> list[float]:
    """Return ``count`` samples of a kernel's time, in microseconds."""
    return [us / sampled.launches for us in timer.runs_us(sampled.run, count)]


class GpuTimer:
    """Times on the current CUDA or ROCm device."""

    overhead_us = 130.0
    _method = TimingMethod(statistic="median", flush_l2=True, launch_hidden=True)

    def __init__(self, *, write_flush: bool = False) -> None:
        """Allocate the buffer that empties the L2 cache.

        Args:
            write_flush: time between two events behind a flush that writes, whatever the kernel, as the measurements
                were taken that shipped first.
        """
        import torch

        self._torch = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._l2_bytes = getattr(properties, "L2_cache_size", 0) or _L2_IF_UNKNOWN
        self._flush = torch.zeros(_FLUSH_FACTOR * self._l2_bytes // 4, dtype=torch.float32, device="cuda")
        self._sum = torch.zeros((), dtype=torch.float32, device="cuda")
        self._write_flush = write_flush
        # Untyped in torch.
        self._event: Any = torch.cuda.Event
        self._sleep: Any = torch.cuda._sleep  # noqa: SLF001 - the only device sleep there is
        # Not the default stream, on which nothing can be captured; Triton binds a kernel to the stream of the moment.
        new_stream: Any = torch.cuda.Stream
        self._stream = new_stream()
        self._pool: Any = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self._stream):
            # Keeps the pool: the allocator refuses to use one again whose last graph is gone.
            self._keeper = graph_of([self._sum.zero_], self._stream, self._pool)
        self._events: list[tuple[Any, Any]] = []
        self._sleep_cycles = _SLEEP_CYCLES
        self.late_launches = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Prepare and run kernels on the stream that is timed."""
        self._stream.wait_stream(self._torch.cuda.current_stream())
        with self._torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                self._torch.cuda.default_stream().wait_stream(self._stream)

    def method_for(self, best_us: float) -> TimingMethod:
        """Return how the kernels of a problem are timed whose fastest takes about ``best_us``."""
        if self._write_flush:
            return replace(self._method, regime=WRITE_FLUSH)
        return replace(self._method, regime=GRAPH if best_us < GRAPH_BELOW_US else READ_FLUSH)

    def sampled(self, run: Callable[[], object], rotation: Rotation | None, us: float, method: TimingMethod) -> Sampled:
        """Return the launch between two events, or a graph of several."""
        if method.regime != GRAPH or rotation is None:
            return Sampled(run)
        launches = int(min(max(_REPLAY_US / us, _FEWEST_LAUNCHES), _MOST_LAUNCHES))
        graph = graph_of(rotation.launches(launches, self._l2_bytes), self._stream, self._pool)
        return Sampled(graph.replay, launches)

    def warm_up(self, function: Callable[[], object], for_us: float) -> None:
        """Run ``function`` back to back for so long."""
        started = time.perf_counter_ns()
        while time.perf_counter_ns() - started < for_us * NS_PER_US:
            for _ in range(10):
                function()
            self.synchronize()

    def runs_us(self, function: Callable[[], object], count: int) -> list[float]:
        """Return the times of ``count`` runs, repeating those whose launch came late."""
        found: list[float] = []
        late: list[float] = []
        for attempt in range(_ATTEMPTS):
            hidden, too_late = self._batch(function, count - len(found))
            found += hidden
            late += too_late
            self._adapt(len(too_late) / (len(too_late) + len(hidden)), is_first=attempt == 0)
            if len(found) >= count:
                return found
        missing = late[: count - len(found)]
        self.late_launches += len(missing)
        return found + missing

    def _adapt(self, late_share: float, *, is_first: bool) -> None:
        """Sleep longer for launches that come late again and again, and shorter when that was long enough."""
        if late_share > _MOST_LATE_SHARE and not is_first:
            self._sleep_cycles = min(2 * self._sleep_cycles, _MOST_SLEEP_CYCLES)
        elif not late_share:
            self._sleep_cycles = max(_SLEEP_CYCLES, self._sleep_cycles * 3 // 4)

    def synchronize(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize()

    def _empty_cache(self) -> None:
        if self._write_flush:
            self._flush.zero_()
        else:
            self._torch.sum(self._flush, dim=0, out=self._sum)

    def _batch(self, function: Callable[[], object], count: int) -> tuple[list[float], list[float]]:
        """Return the times of the runs whose launch was hidden, and of the others."""
        while len(self._events) < count:
            self._events.append((self._event(enable_timing=True), self._event(enable_timing=True)))
        hidden = []
        for start, end in self._events[:count]:
            self._empty_cache()
            self._sleep(self._sleep_cycles)
            start.record(self._stream)
            function()
            end.record(self._stream)
            # If the device is past the start by now, it may have waited for the kernel.
            hidden.append(not start.query())
        self.synchronize()
        times = [start.elapsed_time(end) * US_PER_MS for start, end in self._events[:count]]
        pairs = list(zip(times, hidden, strict=True))
        return [us for us, was in pairs if was], [us for us, was in pairs if not was]


class CpuTimer:
    """Times in this thread."""

    overhead_us = 1.0
    late_launches = 0
    _method = TimingMethod(statistic="median", flush_l2=False, launch_hidden=False)

    def active(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    def method_for(self, best_us: float) -> TimingMethod:  # noqa: ARG002 - any takes the same clock
        """Return the one method there is."""
        return self._method

    def sampled(
        self,
        run: Callable[[], object],
        rotation: Rotation | None,  # noqa: ARG002 - caches are left as they are
        us: float,  # noqa: ARG002 - a sample is one call
        method: TimingMethod,  # noqa: ARG002 - the one method there is
    ) -> Sampled:
        """Return the call itself."""
        return Sampled(run)

    def warm_up(self, function: Callable[[], object], for_us: float) -> None:
        """Run ``function`` back to back for so long."""
        started = time.perf_counter_ns()
        while time.perf_counter_ns() - started < for_us * NS_PER_US:
            function()

    def runs_us(self, function: Callable[[], object], count: int) -> list[float]:
        """Return the times of ``count`` runs."""
        found = []
        for _ in range(count):
            started = time.perf_counter_ns()
            function()
            found.append((time.perf_counter_ns() - started) / NS_PER_US)
        return found

    def synchronize(self) -> None:
        """Do nothing: a run is over when its call returns."""
