"""The memory that a lane needs for a problem, and what it leaves to the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.errors import HardwareError

if TYPE_CHECKING:
    from diode_collectors.problems.problem import SweepProblem

_CPU = "cpu"
_KEPT = 4
"""A lane keeps no more than one in so many parts of its share of the device's memory from one problem to the next."""
_KIB = 1024


def check_memory(problem: SweepProblem, device: str) -> None:
    """Check that a problem's operands fit into what is free.

    Raises:
        HardwareError: they do not.
    """
    needed, free = problem.needed_bytes(on_cpu=device == _CPU), _free_bytes(device)
    if needed > free:
        raise HardwareError(
            f"{problem} needs about {needed / 2**30:.1f} GiB of memory and {free / 2**30:.1f} GiB are free on the "
            "device; leave it out, or stop what else runs there"
        )


def _free_bytes(device: str) -> int:
    import torch

    if device != _CPU:
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * _KIB for line in lines if line.startswith("MemAvailable:"))


def give_back(device: str, lanes: int) -> None:
    """Leave memory of a device to the others of so many lanes, unless it is little: torch keeps what it has had."""
    import torch

    if device != _CPU and torch.cuda.memory_reserved() * _KEPT * lanes > torch.cuda.mem_get_info()[1]:
        torch.cuda.empty_cache()
