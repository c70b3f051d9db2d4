"""What tests of several modules of a sweep need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from diode_collectors.sweep.lane.timer import GpuTimer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def gpu() -> Iterator[GpuTimer]:
    """Return a GPU's timer, warm, with its stream as the current one."""
    timer = GpuTimer()
    with timer.active():
        a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
        timer.warm_up(lambda: torch.mm(a, a), 200_000)
        yield timer
    torch.cuda.synchronize()
