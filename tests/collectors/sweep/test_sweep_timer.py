"""The clocks of a sweep: this thread's on a CPU, the device's own on a GPU."""

from __future__ import annotations

import gc
import statistics
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from diode_collectors.inductor import timer as timers
from diode_collectors.inductor.graphs import OperandSets, Rotation
from diode_collectors.inductor.timer import CpuTimer, GpuTimer, Sampled, samples_us
from diode_store.records import GRAPH, READ_FLUSH, WRITE_FLUSH, TimingMethod

if TYPE_CHECKING:
    from collections.abc import Callable

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def busy_us(us: float) -> Callable[[], None]:
    """Return a function that keeps this thread busy for so long."""

    def spin() -> None:
        until = time.perf_counter_ns() + us * 1e3
        while time.perf_counter_ns() < until:
            pass

    return spin


def test_a_cpu_run_takes_as_long_as_it_takes() -> None:
    """In microseconds, each run by itself."""
    found = CpuTimer().runs_us(busy_us(200), 50)
    assert len(found) == 50
    assert 200 <= min(found) < 260  # of fifty, some are left in peace on the busiest host


def test_a_cpu_timer_costs_little() -> None:
    """A run of nothing reads below a microsecond or so, which is what it says of itself."""
    timer = CpuTimer()
    assert min(timer.runs_us(lambda: None, 1000)) < 2 * timer.overhead_us


def test_a_cpu_timer_says_how_it_times() -> None:
    """No flush, no queue to hide a launch in; nothing to wait for, and no launch can be late."""
    timer = CpuTimer()
    assert timer.method_for(3.0) == TimingMethod("median", flush_l2=False, launch_hidden=False)
    assert timer.synchronize() is None  # type: ignore[func-returns-value]
    assert timer.late_launches == 0


def test_a_cpu_sample_is_one_call() -> None:
    """There is no graph to put several into."""
    timer = CpuTimer()
    run = busy_us(100)
    with timer.active():
        sampled = timer.sampled(run, None, 100.0, timer.method_for(100.0))
        assert sampled == Sampled(run)
        assert 100 <= min(samples_us(timer, sampled, 20)) < 160


def test_a_sample_is_a_launchs_share() -> None:
    """Of what runs several, the time of one."""
    assert 50 <= min(samples_us(CpuTimer(), Sampled(busy_us(200), launches=4), 20)) < 80


def test_warming_up_takes_the_time_it_is_told_to() -> None:
    """Running what it is given all the while."""
    calls = [0]

    def count() -> None:
        calls[0] += 1
        busy_us(100)()

    began = time.perf_counter()
    CpuTimer().warm_up(count, 20_000)
    assert time.perf_counter() - began >= 0.02
    assert 1 <= calls[0] <= 200


def product(size: int) -> Callable[[], Any]:
    """Return an mm of square bf16 matrices into a tensor that is there."""
    a, b, out = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def test_a_graph_keeps_what_its_launches_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch owns memory, such as the workspace of a TMA kernel, whose address the graph goes on using."""
    monkeypatch.setattr(timers, "graph_of", lambda *_: SimpleNamespace(replay=lambda: None))
    timer = GpuTimer.__new__(GpuTimer)
    timer._l2_bytes, timer._stream, timer._pool, timer._write_flush = 1000, None, None, False
    workspaces: list[weakref.ref[torch.Tensor]] = []

    def launch_over(_number: int) -> Callable[[], object]:
        workspace = torch.empty(4)
        workspaces.append(weakref.ref(workspace))
        return workspace.zero_

    rotation = Rotation(OperandSets([torch.zeros(250)]), launch_over)
    sampled = timer.sampled(lambda: None, rotation, 10.0, TimingMethod(regime=GRAPH))
    del rotation
    gc.collect()
    assert len(workspaces) >= 2
    assert all(workspace() is not None for workspace in workspaces)
    del sampled
    gc.collect()
    assert all(workspace() is None for workspace in workspaces)


class TestGpuTimer:
    """On a real GPU."""

    pytestmark = needs_gpu

    def test_a_small_vendor_kernel_reads_its_own_time(self, gpu: GpuTimer) -> None:
        """64 x 64 x 64 takes a few microseconds; with its launch in view it would read tens of them."""
        found = gpu.runs_us(product(64), 100)
        assert len(found) == 100
        assert 1 < statistics.median(found) < 8
        assert gpu.late_launches == 0

    def test_without_the_sleep_launches_are_late_and_that_is_seen(
        self, gpu: GpuTimer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then the launch gap is in the figure; every run is kept but counted."""
        hidden = statistics.median(gpu.runs_us(product(64), 50))
        monkeypatch.setattr(timers, "_SLEEP_CYCLES", 0)
        monkeypatch.setattr(timers, "_MOST_SLEEP_CYCLES", 0)
        gpu._sleep_cycles = 0
        gpu._flush = gpu._flush[:1]  # which would hide it as well
        found = gpu.runs_us(product(64), 50)
        assert len(found) == 50
        assert gpu.late_launches > 25
        assert statistics.median(found) > hidden

    def test_launches_that_come_late_are_hidden_by_a_longer_sleep(self, gpu: GpuTimer) -> None:
        """A launch that takes 300 us is timed all the same, without those."""
        run = product(64)

        def slow_launch() -> None:
            busy_us(300)()
            run()

        found = gpu.runs_us(slow_launch, 40)
        assert len(found) == 40
        assert gpu.late_launches == 0
        assert statistics.median(found) < 8

    def test_repeats_agree(self, gpu: GpuTimer) -> None:
        """Medians of forty, small kernels and large, within 3% or two steps of the events' clock of 0.5 us."""
        for size in (128, 1024, 4096):
            run = product(size)
            medians = [statistics.median(gpu.runs_us(run, 40)) for _ in range(5)]
            assert max(medians) - min(medians) < max(0.03 * min(medians), 1), (size, medians)

    def test_a_long_kernel_reads_what_the_wall_clock_says(self, gpu: GpuTimer) -> None:
        """Of 8192 x 8192 x 8192, back to back, to a fifth: the flush costs it little, the power cap may cost more."""
        run = product(8192)
        gpu.warm_up(run, 1_000_000)
        began = time.perf_counter()
        for _ in range(20):
            run()
        torch.cuda.synchronize()
        wall_us = (time.perf_counter() - began) / 20 * 1e6
        assert statistics.median(gpu.runs_us(run, 20)) == pytest.approx(wall_us, rel=0.2)

    def test_the_flush_is_larger_than_the_cache(self, gpu: GpuTimer) -> None:
        """Twice the L2; a kernel that reads what fits into it is slower after the flush than without."""
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        assert gpu._flush.numel() * gpu._flush.element_size() == 2 * l2_bytes
        source = torch.zeros(l2_bytes // 4, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        flushed = statistics.median(gpu.runs_us(lambda: target.copy_(source), 40))
        gpu._flush = gpu._flush[:1]
        cached = statistics.median(gpu.runs_us(lambda: target.copy_(source), 40))
        assert flushed > 1.1 * cached

    def test_errors_of_the_device_come_out(self, gpu: GpuTimer) -> None:
        """What cannot be launched raises where it is launched."""
        a = torch.randn(4, 4, device="cuda")
        with pytest.raises(RuntimeError):
            gpu.runs_us(lambda: torch.mm(a, a[:3]), 1)

    def test_the_method_goes_by_the_fastest(self, gpu: GpuTimer) -> None:
        """Graphs under 50 us, a flush that reads from there on, and one that writes where that was asked for."""
        method = TimingMethod("median", flush_l2=True, launch_hidden=True)
        assert gpu.method_for(49.9) == replace(method, regime=GRAPH)
        assert gpu.method_for(50.0) == replace(method, regime=READ_FLUSH)
        assert GpuTimer(write_flush=True).method_for(3.0) == replace(method, regime=WRITE_FLUSH)
