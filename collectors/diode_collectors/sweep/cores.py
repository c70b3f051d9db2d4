"""Which cores each worker of a sweep uses."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CORES_PER_LANE, _MOST_LANES = 3, 4
_CORES_PER_LISTING_LANE, _MOST_LISTING_LANES = 2, 7
_MOST_SHARING_LANES = 12
"""Where problems share kernels on a device with the memory for it. A problem of a sample has an H200 for 0.18 s, and
took each of seven lanes 2 s, though half of 32 virtual cores were idle: the first sweep of `diode tune` timed 49
kernels a second by seven, and on two other such machines 61 to 73 by twelve."""
_BYTES_PER_SHARING_LANE = 4 * 2**30
"""A lane's context and the memory that torch keeps are in the way of large problems, so small devices have no more than
seven."""
_ENOUGH_TO_KEEP_ONE = 4
_WORKERS_PER_CORE = 0.7
_MOST_LISTING_WORKERS = 16
"""Of each of many lanes: a problem of a sample of 12 has 15 kernels to compile."""


@dataclass(frozen=True)
class CoreShare:
    """The cores of one device's worker."""

    compiling: tuple[int, ...]
    benchmarking: int | None
    """Kept free of everything else; None where there are too few cores for that."""


def cores_of_rank(cores: list[int], environment: Mapping[str, str]) -> list[int]:
    """Return this process's share of ``cores`` among the processes that ``torchrun`` started here.

    A launcher that binds its processes has given each its own cores already; then these are all there are.
    """
    count = environment.get("LOCAL_WORLD_SIZE", "")
    rank = environment.get("LOCAL_RANK", "")
    if not (count.isdecimal() and rank.isdecimal()) or len(cores) < (os.cpu_count() or 1):
        return cores
    size = len(cores) // max(int(count), 1)
    return cores[int(rank) * size : (int(rank) + 1) * size] or cores


def share_cores(cores: list[int], devices: int) -> list[CoreShare]:
    """Return a share of ``cores`` for each of so many devices.

    Neighbours go together, because a host numbers cores and GPUs by socket. With fewer cores than devices all
    devices share all cores.
    """
    size = len(cores) // devices
    if not size:
        return [CoreShare(tuple(cores), None)] * devices
    shares = []
    for i in range(devices):
        mine = cores[i * size : (i + 1) * size]
        keeps_one = size >= _ENOUGH_TO_KEEP_ONE
        shares.append(CoreShare(tuple(mine[keeps_one:]), mine[0] if keeps_one else None))
    return shares


def lanes_for(share: CoreShare, device: str, *, compiles_little: bool = False, memory_bytes: int | None = None) -> int:
    """Return how many processes a device gets: while one benchmarks, the others list and compile.

    Where problems share kernels, or have none to compile, listing is much of what they take.

    Args:
        share: its cores.
        device: its name.
        compiles_little: whether problems are such.
        memory_bytes: of the device, where they have kernels to compile; None if that is unknown.
    """
    if device == "cpu":
        return 1
    most, cores = _MOST_LANES, _CORES_PER_LANE
    if compiles_little:
        have_room = (memory_bytes or 0) // _BYTES_PER_SHARING_LANE
        most, cores = max(_MOST_LISTING_LANES, min(have_room, _MOST_SHARING_LANES)), _CORES_PER_LISTING_LANE
    return max(1, min(most, len(share.compiling) // cores))


def workers_for(cores: int, lanes: int) -> int:
    """Return how many compile workers each of a device's lanes gets.

    Of few lanes two compile at most of the time: together their workers should be a few more than there are cores. Of
    many each has what a small sample can use.
    """
    if lanes == 1:
        return cores
    most = _MOST_LISTING_WORKERS if lanes > _MOST_LANES else cores
    return max(1, min(math.ceil(cores * _WORKERS_PER_CORE), most))
