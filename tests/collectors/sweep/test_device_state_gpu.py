"""What a real GPU says of itself under load."""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from diode_collectors.inductor.device import device_uuid
from diode_collectors.sweep.device_state import DeviceMonitor, flags_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def test_under_load() -> None:
    """Every reading of a busy GPU is there and plausible, takes under 2 ms, and raises no false flag."""
    with DeviceMonitor(device_uuid("cuda:0")) as monitor:
        assert monitor.is_open
        a = torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16)
        samples, seconds = [], []
        for _ in range(50):
            for _ in range(20):
                torch.mm(a, a)
            began = time.perf_counter()
            samples.append(monitor.sample())
            seconds.append(time.perf_counter() - began)
            torch.cuda.synchronize()
        state = monitor.summary(samples)
        print(f"\nmedian sample {statistics.median(seconds) * 1e3:.3f} ms, worst {max(seconds) * 1e3:.3f} ms")  # noqa: T201 - for the log of a GPU run
        print(state, monitor.flags(samples), flags_of(samples[10:]), monitor.before)  # noqa: T201 - likewise
        properties = torch.cuda.get_device_properties(0)
        assert state.sm_clock_mhz is not None
        assert 300 < state.sm_clock_mhz <= getattr(properties, "clock_rate", 4_000_000) // 1000
        assert state.memory_clock_mhz is not None
        assert state.temperature_c is not None
        assert 10 < state.temperature_c < 110
        assert state.throttle_reasons is not None
        assert not state.foreign_processes
        assert "foreign_process" not in monitor.flags(samples)
        assert statistics.median(seconds) < 0.002
