"""What tests of several modules of a sweep need."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
import torch
from swept import VARIABLES

from diode_collectors.inductor.timer import GpuTimer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import RunCommand


@pytest.fixture
def gpu() -> Iterator[GpuTimer]:
    """Return a GPU's timer, warm, with its stream as the current one."""
    timer = GpuTimer()
    with timer.active():
        a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
        timer.warm_up(lambda: torch.mm(a, a), 200_000)
        yield timer
    torch.cuda.synchronize()


@pytest.fixture
def collect(diode: RunCommand, monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Return a function that runs ``diode collect`` in this process."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return functools.partial(diode, "collect")
