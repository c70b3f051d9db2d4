"""Which cores each worker of a sweep uses."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CORES_PER_LANE, _MOST_LANES = 3, 4
_CORES_PER_LISTING_LANE, _MOST_LISTING_LANES = 2, 12
"""A problem of a sample has an H200 for 0.17 s and takes a lane 1.5 s at least, also where cores are idle: first rounds
of `diode tune` on one H200 with 32 virtual cores timed 49 kernels a second by 7 lanes, with half of the cores idle, and
73 by 12, which leave the device little time between them."""
_ENOUGH_TO_KEEP_ONE = 4
_WORKERS_PER_CORE = 0.7
_MOST_LISTING_WORKERS = 16
"""Of each of many lanes, whose problems have few kernels to compile: 15 of a sample of 12."""


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


def lanes_for(share: CoreShare, device: str, *, compiles_little: bool = False) -> int:
    """Return how many processes a device gets: while one benchmarks, the others list and compile.

    Where problems share kernels most find theirs compiled, or have none to compile, listing is what takes longest.
    """
    if device == "cpu":
        return 1
    most, cores = (_MOST_LISTING_LANES, _CORES_PER_LISTING_LANE) if compiles_little else (_MOST_LANES, _CORES_PER_LANE)
    return max(1, min(most, len(share.compiling) // cores))


def workers_for(cores: int, lanes: int) -> int:
    """Return how many compile workers each of a device's lanes gets.

    Two lanes compile at most of the time: together their workers should be a few more than there are cores.
    """
    if lanes == 1:
        return cores
    most = _MOST_LISTING_WORKERS if lanes > _MOST_LANES else cores
    return max(1, min(math.ceil(cores * _WORKERS_PER_CORE), most))
