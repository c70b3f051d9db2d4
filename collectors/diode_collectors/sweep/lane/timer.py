"""Times single runs of a kernel, so that nothing but the kernel is in the figure.

On a GPU each run follows a flush of the L2 cache and a short device sleep behind which the launch is hidden: the
dispatch of a small vendor kernel takes longer than the kernel, and an event pair around a launch that was late times
the gap too (39 us read for 5.5 us of kernel on an H200). Whether a launch was hidden is checked for each run.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from diode_store.records import TimingMethod

if TYPE_CHECKING:
    from collections.abc import Callable

US_PER_MS, NS_PER_US = 1e3, 1e3
_SLEEP_CYCLES, _MOST_SLEEP_CYCLES = 160_000, 4_000_000  # 80 us to 2 ms at 2 GHz
_MOST_LATE_SHARE = 0.25
_ATTEMPTS = 6
# The L2 of a large GPU has two partitions that may hold the same line; twice its size empties both.
_FLUSH_FACTOR = 2
_L2_IF_UNKNOWN = 128 * 2**20


class Timer(Protocol):
    """What takes times on one kind of device."""

    method: TimingMethod
    overhead_us: float
    """What a run takes beside the kernel, about."""
    late_launches: int
    """Runs so far that were kept although their launch could not be hidden."""

    def warm_up(self, function: Callable[[], object], for_us: float) -> None:
        """Keep the device busy until its clocks have risen."""

    def runs_us(self, function: Callable[[], object], count: int) -> list[float]:
        """Return how long each of ``count`` runs took, in microseconds."""

    def synchronize(self) -> None:
        """Wait for the device, which raises errors of what ran there."""


class GpuTimer:
    """Times on the current CUDA or ROCm device."""

    method = TimingMethod(statistic="median", flush_l2=True, launch_hidden=True)
    overhead_us = 130.0

    def __init__(self) -> None:
        """Allocate the buffer that empties the L2 cache."""
        import torch

        self._torch = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        l2_bytes = getattr(properties, "L2_cache_size", 0) or _L2_IF_UNKNOWN
        self._flush = torch.empty(_FLUSH_FACTOR * l2_bytes // 4, dtype=torch.int32, device="cuda")
        # Untyped in torch.
        self._event: Any = torch.cuda.Event
        self._sleep: Any = torch.cuda._sleep  # noqa: SLF001 - the only device sleep there is
        self._stream = torch.cuda.current_stream()  # given to each event, which would look it up for 10 us
        self._events: list[tuple[Any, Any]] = []
        self._sleep_cycles = _SLEEP_CYCLES
        self.late_launches = 0

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

    def _batch(self, function: Callable[[], object], count: int) -> tuple[list[float], list[float]]:
        """Return the times of the runs whose launch was hidden, and of the others."""
        while len(self._events) < count:
            self._events.append((self._event(enable_timing=True), self._event(enable_timing=True)))
        hidden = []
        for start, end in self._events[:count]:
            self._flush.zero_()
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

    method = TimingMethod(statistic="median", flush_l2=False, launch_hidden=False)
    overhead_us = 1.0
    late_launches = 0

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
