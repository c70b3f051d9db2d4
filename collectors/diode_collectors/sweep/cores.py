"""Which cores each worker of a sweep uses."""

from __future__ import annotations

import math
from dataclasses import dataclass

_CORES_PER_LANE, _MOST_LANES = 3, 4
_ENOUGH_TO_KEEP_ONE = 4
_WORKERS_PER_CORE = 0.7


@dataclass(frozen=True)
class CoreShare:
    """The cores of one device's worker."""

    compiling: tuple[int, ...]
    benchmarking: int | None
    """Kept free of everything else; None where there are too few cores for that."""


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


def lanes_for(share: CoreShare, device: str) -> int:
    """Return how many processes a device gets: while one benchmarks, the others list and compile."""
    if device == "cpu":
        return 1
    return max(1, min(_MOST_LANES, len(share.compiling) // _CORES_PER_LANE))


def workers_for(cores: int, lanes: int) -> int:
    """Return how many compile workers each of a device's lanes gets.

    Two lanes compile at most of the time: together their workers should be a few more than there are cores.
    """
    return cores if lanes == 1 else max(1, math.ceil(cores * _WORKERS_PER_CORE))
