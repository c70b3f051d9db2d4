"""Division of the cores among the workers of a sweep."""

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
"""Limit on the lanes of a device if problems share kernels and memory allows. A problem holds the device for a small
part of its time in a lane, so many lanes keep the device busy.
"""
_BYTES_PER_SHARING_LANE = 4 * 2**30
"""Device memory that a lane needs. Contexts and torch's cached memory leave less room for large problems, so small
devices get fewer lanes.
"""
_ENOUGH_TO_KEEP_ONE = 4
_WORKERS_PER_CORE = 0.7
_MOST_LISTING_WORKERS = 16
"""Limit on the compile workers of each of many lanes: a problem of a small sample has few kernels to compile."""


@dataclass(frozen=True)
class CoreShare:
    """Cores of one device's worker."""

    compiling: tuple[int, ...]
    benchmarking: int | None
    """Core kept free for benchmarking; None with too few cores."""


def cores_of_rank(cores: list[int], environment: Mapping[str, str]) -> list[int]:
    """Return this process's share of ``cores`` among the processes that ``torchrun`` started here.

    A launcher that binds its processes has given each process its own cores; then the process uses all of them.
    """
    count = environment.get("LOCAL_WORLD_SIZE", "")
    rank = environment.get("LOCAL_RANK", "")
    if not (count.isdecimal() and rank.isdecimal()) or len(cores) < (os.cpu_count() or 1):
        return cores
    size = len(cores) // max(int(count), 1)
    return cores[int(rank) * size : (int(rank) + 1) * size] or cores


def share_cores(cores: list[int], devices: int) -> list[CoreShare]:
    """Return a share of ``cores`` for each device.

    Neighbors go together, because a host numbers cores and GPUs by socket. With fewer cores than devices, all devices
    share all cores.
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
    """Return the number of processes for a device: while one benchmarks, the others list and compile.

    Listing takes much of the time of problems that share kernels or have none to compile.

    Args:
        share: Cores of the device.
        device: Name of the device.
        compiles_little: Whether problems share kernels or have none to compile.
        memory_bytes: Memory of the device, if there are kernels to compile; None if unknown.
    """
    if device == "cpu":
        return 1
    most, cores = _MOST_LANES, _CORES_PER_LANE
    if compiles_little:
        have_room = (memory_bytes or 0) // _BYTES_PER_SHARING_LANE
        most, cores = max(_MOST_LISTING_LANES, min(have_room, _MOST_SHARING_LANES)), _CORES_PER_LISTING_LANE
    return max(1, min(most, len(share.compiling) // cores))


def workers_for(cores: int, lanes: int) -> int:
    """Return the number of compile workers for each of a device's lanes.

    With few lanes, two compile most of the time, and their workers together should slightly outnumber the cores. With
    many lanes, each gets as many workers as a small sample can use.
    """
    if lanes == 1:
        return cores
    most = _MOST_LISTING_WORKERS if lanes > _MOST_LANES else cores
    return max(1, min(math.ceil(cores * _WORKERS_PER_CORE), most))
