"""The memory that a lane needs for a problem and may read, and what it leaves to the others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from diode_collectors.inductor.indexing import overflows
from diode_store.errors import HardwareError

if TYPE_CHECKING:
    from diode_collectors.problems.problem import SweepProblem

_CPU = "cpu"
_KEPT = 4
"""A lane keeps no more than one in so many parts of its share of the device's memory from one problem to the next."""
_KIB = 1024
_PATIENCE_S, _POLL_S = 20.0, 0.5
"""How long a lane waits for what the others hold for a moment: on a GPU of 80 GiB a problem that needed 31.7 was given
up when 31.2 were free, though all others that were measured were small."""


def check_memory(problem: SweepProblem, device: str, lanes: int = 1) -> None:
    """Check that a problem's operands fit into what is free, or will be as soon as others of so many lanes are done.

    Two lanes that look at the same time may both see room that is enough for one; the other then fails as it allocates.

    Raises:
        HardwareError: they do not.
    """
    needed, free = problem.needed_bytes(on_cpu=device == _CPU), _free_bytes(device)
    if needed > free and lanes > 1 and needed <= _all_bytes(device):
        free = _wait_for(needed, device)
    if needed > free:
        raise HardwareError(
            f"{problem} needs about {needed / 2**30:.1f} GiB of memory and {free / 2**30:.1f} GiB are free on the "
            "device; leave it out, or stop what else runs there"
        )


def check_indexing(problem: SweepProblem, device: str) -> None:
    """Check that Triton's kernels stay inside a problem's matrices: a lane does not survive what reads beyond.

    Raises:
        HardwareError: they do not, by this version of torch.
    """
    if device != _CPU and overflows(problem.problem()):
        raise HardwareError(
            f"Triton's kernels of this torch would read beyond the matrices of {problem}, which ends a process; time "
            "the vendor's alone with `diode-collect --search-space VENDOR`, or use torch 2.12 or later"
        )


def _wait_for(needed: int, device: str) -> int:
    """Wait until so many bytes are free, for a while; return how many are."""
    import torch

    torch.cuda.empty_cache()  # what this lane keeps is in its own way
    give_up_at = time.monotonic() + _PATIENCE_S
    while (free := _free_bytes(device)) < needed and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)
    return free


def _free_bytes(device: str) -> int:
    import torch

    if device != _CPU:
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * _KIB for line in lines if line.startswith("MemAvailable:"))


def _all_bytes(device: str) -> int:
    """Return what a GPU has; a CPU's memory is not waited for, as its one lane is all there is."""
    import torch

    return 0 if device == _CPU else int(torch.cuda.mem_get_info(torch.device(device))[1])


def give_back(device: str, lanes: int) -> None:
    """Leave memory of a device to the others of so many lanes, unless it is little: torch keeps what it has had."""
    import torch

    if device != _CPU and torch.cuda.memory_reserved() * _KEPT * lanes > torch.cuda.mem_get_info()[1]:
        torch.cuda.empty_cache()
