"""Memory that a lane needs for a problem, may read, and leaves to the other lanes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from diode_collectors.inductor.indexing import overflows
from diode_store.errors import HardwareError
from diode_store.values.units import GIB, KIB

if TYPE_CHECKING:
    from diode_collectors.problems.problem import SweepProblem

_CPU = "cpu"
_KEPT = 4
"""Divisor of a lane's share of the device's memory: a lane keeps at most the quotient between problems."""
_PATIENCE_S, _POLL_S = 20.0, 0.5
"""Seconds that a lane waits for memory that others hold for a moment, and seconds between looks."""


def check_memory(problem: SweepProblem, device: str, lanes: int = 1) -> None:
    """Check that a problem's operands fit into free memory, or will once others of the ``lanes`` are done.

    Two lanes that look at the same time may both see room for one; the other then fails to allocate.

    Raises:
        HardwareError: the operands do not fit.
    """
    needed, free = problem.needed_bytes(on_cpu=device == _CPU), _free_bytes(device)
    if needed > free and lanes > 1 and needed <= _all_bytes(device):
        free = _wait_for(needed, device)
    if needed > free:
        raise HardwareError(
            f"{problem} needs about {needed / GIB:.1f} GiB of memory and {free / GIB:.1f} GiB are free on the "
            "device; leave it out, or stop what else runs there"
        )


def check_indexing(problem: SweepProblem, device: str) -> None:
    """Check that Triton kernels stay inside a problem's matrices: reading beyond kills a lane.

    Raises:
        HardwareError: kernels of this version of torch would read beyond.
    """
    if device != _CPU and overflows(problem.problem()):
        raise HardwareError(
            f"Triton's kernels of this torch would read beyond the matrices of {problem}, which ends a process; time "
            "the vendor's alone with `diode-collect --search-space VENDOR`, or use torch 2.12 or later"
        )


def _wait_for(needed: int, device: str) -> int:
    """Wait a while for ``needed`` free bytes, and return the number of free bytes."""
    import torch

    torch.cuda.empty_cache()  # this lane's own cache takes memory too
    give_up_at = time.monotonic() + _PATIENCE_S
    while (free := _free_bytes(device)) < needed and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)
    return free


def _free_bytes(device: str) -> int:
    import torch

    if device != _CPU:
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("MemAvailable:"))


def _all_bytes(device: str) -> int:
    """Return a GPU's memory in bytes. The one lane of a CPU waits for no memory."""
    import torch

    return 0 if device == _CPU else int(torch.cuda.mem_get_info(torch.device(device))[1])


def give_back(device: str, lanes: int) -> None:
    """Free memory that torch has cached, for the other lanes, unless the amount is small."""
    import torch

    if device != _CPU and torch.cuda.memory_reserved() * _KEPT * lanes > torch.cuda.mem_get_info()[1]:
        torch.cuda.empty_cache()
