"""Time kernels as they run in a deployed model, and nothing but the kernel.

In a model on a GPU, a layer's weights are never in the L2 cache when the layer runs, and nothing waits for a launch.
A kernel under 50 us is therefore timed in a CUDA graph of launches, each over operands of its own. A longer kernel is
timed between two events, behind a flush that reads. A flush that writes leaves lines that are written back while the
kernel runs, and a pair of events adds overhead; both matter for short kernels.

Every run waits behind a short device sleep, because the dispatch of a small vendor kernel takes longer than the
kernel. Otherwise a late launch would add its gap to the time. Each run is checked for a hidden launch.
"""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from diode_collectors.inductor.graphs import Rotation, graph_of
from diode_store.records import GRAPH, READ_FLUSH, WRITE_FLUSH, TimingMethod
from diode_store.values.units import NS_PER_US, US_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

GRAPH_BELOW_US = 50.0
"""Time of a problem's fastest kernel, in microseconds, below which all of its kernels are timed in graphs."""
_BEHIND_A_SLEEP = TimingMethod(statistic="median", flush_l2=True, launch_hidden=True)
_SLEEP_CYCLES, _MOST_SLEEP_CYCLES = 160_000, 4_000_000  # 80 us to 2 ms at 2 GHz
_MOST_LATE_SHARE = 0.25
_ATTEMPTS = 6
# The L2 of a large GPU has two partitions that may hold the same line, so a flush covers twice its size.
_FLUSH_FACTOR = 2
_L2_IF_UNKNOWN = 128 * 2**20
_REPLAY_US = 160.0
_FEWEST_LAUNCHES, _MOST_LAUNCHES = 4, 16


@dataclass(frozen=True)
class Sampled:
    """The run that gives one sample of a kernel's time."""

    run: Callable[[], object]
    launches: int = 1
    """Number of kernel launches in ``run``."""
    held: object = field(default=None, repr=False, compare=False)
    """Objects whose device memory ``run`` uses. A CUDA graph holds only addresses, such as those of a workspace."""


class Timer(Protocol):
    """Clock of one kind of device."""

    overhead_us: float
    """Approximate time of a run beside the kernel, in microseconds."""
    late_launches: int
    """Number of runs so far that were kept although their launch was not hidden."""

    def active(self) -> AbstractContextManager[None]:
        """Return the context in which kernels must be prepared and run."""

    def method_for(self, best_us: float) -> TimingMethod:
        """Return the timing method for a problem whose fastest kernel takes about ``best_us``."""

    def sampled(self, run: Callable[[], object], rotation: Rotation | None, us: float, method: TimingMethod) -> Sampled:
        """Prepare to take samples of one kernel.

        Args:
            run: launches the kernel once.
            rotation: launches the kernel over other operands; None if there are no others.
            us: approximate kernel time in microseconds.
            method: the result of ``method_for``.

        Raises:
            CaptureError: the kernel cannot be launched in a graph.
        """

    def warm_up(self, function: Callable[[], object], for_us: float) -> None:
        """Keep the device busy until its clocks have risen."""

    def runs_us(self, function: Callable[[], object], count: int) -> list[float]:
        """Return the time of each of ``count`` runs in microseconds."""

    def synchronize(self) -> None:
        """Wait for the device; raise the errors of what ran there."""


def samples_us(timer: Timer, sampled: Sampled, count: int) -> list[float]:
    """Return ``count`` samples of a kernel's time, in microseconds."""
    return [us / sampled.launches for us in timer.runs_us(sampled.run, count)]


def deployed_method(best_us: float) -> TimingMethod:
    """Return a GPU's timing method for a problem whose fastest kernel takes about ``best_us``."""
    return replace(_BEHIND_A_SLEEP, regime=GRAPH if best_us < GRAPH_BELOW_US else READ_FLUSH)


@functools.cache
def _stream_of(device: int) -> Any:
    """Return the stream that all timers of a device share, because freed memory is cached for its stream only.

    The default stream cannot be captured. Triton binds a kernel to the current stream.
    """
    import torch

    new_stream: Any = torch.cuda.Stream
    return new_stream(device)


class GpuTimer:
    """Times on the current CUDA or ROCm device."""

    overhead_us = 130.0

    def __init__(self, *, write_flush: bool = False) -> None:
        """Prepare the stream on which kernels are timed.

        Args:
            write_flush: time every kernel between two events behind a flush that writes. The measurements that shipped
                first were taken this way.
        """
        import torch

        self._torch = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._l2_bytes = getattr(properties, "L2_cache_size", 0) or _L2_IF_UNKNOWN
        self._flush: Any = None
        self._sum: Any = None
        self._write_flush = write_flush
        # Untyped in torch.
        self._event: Any = torch.cuda.Event
        self._sleep: Any = torch.cuda._sleep  # noqa: SLF001 - the only device sleep there is
        self._stream = _stream_of(torch.cuda.current_device())
        self._pool: Any = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self._stream):
            # Keeps the pool alive: the allocator refuses a pool whose last graph is gone.
            self._keeper = graph_of([torch.zeros(1, device="cuda").zero_], self._stream, self._pool)
        self._events: list[tuple[Any, Any]] = []
        self._sleep_cycles = _SLEEP_CYCLES
        self.late_launches = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Prepare and run kernels on the stream that is timed."""
        outer = self._torch.cuda.current_stream()
        self._stream.wait_stream(outer)
        with self._torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                outer.wait_stream(self._stream)

    def release(self) -> None:
        """Give back device memory until the timer is used again."""
        self._flush = self._sum = None

    def method_for(self, best_us: float) -> TimingMethod:
        """Return the timing method for a problem whose fastest kernel takes about ``best_us``."""
        if self._write_flush:
            return replace(_BEHIND_A_SLEEP, regime=WRITE_FLUSH)
        return deployed_method(best_us)

    def sampled(self, run: Callable[[], object], rotation: Rotation | None, us: float, method: TimingMethod) -> Sampled:
        """Return the launch between two events, or a graph of several."""
        if method.regime != GRAPH or rotation is None:
            return Sampled(run)
        launches = int(min(max(_REPLAY_US / us, _FEWEST_LAUNCHES), _MOST_LAUNCHES))
        held = rotation.launches(launches, self._l2_bytes)
        return Sampled(graph_of(held, self._stream, self._pool).replay, launches, held)

    def warm_up(self, function: Callable[[], object], for_us: float) -> None:
        """Run ``function`` back to back for ``for_us`` microseconds."""
        started = time.perf_counter_ns()
        while time.perf_counter_ns() - started < for_us * NS_PER_US:
            for _ in range(10):
                function()
            self.synchronize()

    def runs_us(self, function: Callable[[], object], count: int) -> list[float]:
        """Return the times of ``count`` runs; repeat runs whose launch came late."""
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
        """Sleep longer if launches keep coming late, and less if the sleep was long enough."""
        if late_share > _MOST_LATE_SHARE and not is_first:
            self._sleep_cycles = min(2 * self._sleep_cycles, _MOST_SLEEP_CYCLES)
        elif not late_share:
            self._sleep_cycles = max(_SLEEP_CYCLES, self._sleep_cycles * 3 // 4)

    def synchronize(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize()

    def _empty_cache(self) -> None:
        if self._flush is None:
            size = _FLUSH_FACTOR * self._l2_bytes // 4
            self._flush = self._torch.zeros(size, dtype=self._torch.float32, device="cuda")
            self._sum = self._torch.zeros((), dtype=self._torch.float32, device="cuda")
        if self._write_flush:
            self._flush.zero_()
        else:
            self._torch.sum(self._flush, dim=0, out=self._sum)

    def _batch(self, function: Callable[[], object], count: int) -> tuple[list[float], list[float]]:
        """Return the times of the runs with a hidden launch, and of the others."""
        while len(self._events) < count:
            self._events.append((self._event(enable_timing=True), self._event(enable_timing=True)))
        hidden = []
        for start, end in self._events[:count]:
            self._empty_cache()
            self._sleep(self._sleep_cycles)
            start.record(self._stream)
            function()
            end.record(self._stream)
            # If the device has passed the start by now, it may have waited for the kernel.
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
        """Return the only method."""
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
        """Run ``function`` back to back for ``for_us`` microseconds."""
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
