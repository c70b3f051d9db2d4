"""Which of the problems that wait may be measured beside others, so that all fit into the memory of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_collectors.problems.problem import SweepProblem

_SHARE = 0.75
"""Of a device's memory, what problems may need together; the rest is what lanes keep from one to the next."""
_SMALL = 8
"""A problem is small whose tensors need no more than one in so many parts of a lane's share of the memory. With seven
lanes on 80 GB that is 1.4 GB, and 84% of the standard set of `diode tune` is small; with twelve it is 0.8 GB."""


def next_with_room(
    waiting: Iterable[SweepProblem], beside: Iterable[SweepProblem], *, memory_bytes: int | None, lanes: int
) -> int | None:
    """Return which problem is measured next beside others on a device, or None if all have to wait.

    A small one never waits. A large one does until there is room for it, or no other large one is measured; until then
    no other large one goes before it, so that its turn comes.

    Args:
        waiting: in the order in which they are wanted.
        beside: what the other lanes of the device measure.
        memory_bytes: of the device, None if that is unknown.
        lanes: how many measure on the device.
    """
    if memory_bytes is None:
        return 0
    most_of_small = memory_bytes / (lanes * _SMALL)

    def is_small(problem: SweepProblem) -> bool:
        return problem.needed_bytes(on_cpu=True) <= most_of_small  # the tensors alone

    others = list(beside)
    room = _SHARE * memory_bytes - sum(problem.needed_bytes(on_cpu=False) for problem in others)
    is_free = all(map(is_small, others))
    one_waits = False
    for place, problem in enumerate(waiting):
        if is_small(problem):
            return place
        if not one_waits and (is_free or problem.needed_bytes(on_cpu=False) <= room):
            return place
        one_waits = True
    return None
