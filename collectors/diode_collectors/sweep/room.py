"""Selection of the problems that fit into a device's memory beside those under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_collectors.problems.problem import SweepProblem

_SHARE = 0.75
"""Share of a device's memory for problems under way; lanes keep the rest from one problem to the next."""
_SMALL = 8
"""Divisor of a lane's share of the memory. A problem is small if its tensors need no more than the quotient, and most
problems of `diode tune`'s standard set are small.
"""


def next_with_room(
    waiting: Iterable[SweepProblem], beside: Iterable[SweepProblem], *, memory_bytes: int | None, lanes: int
) -> int | None:
    """Return the problem to measure next beside others on a device, or None if all have to wait.

    A small problem never waits. A large one waits until there is room for it, or no other large one is measured. No
    other large one overtakes it, so its turn comes.

    Args:
        waiting: Problems in the order of preference.
        beside: Problems under way in the other lanes of the device.
        memory_bytes: Memory of the device; None if unknown.
        lanes: Number of lanes of the device.
    """
    if memory_bytes is None:
        return 0
    most_of_small = memory_bytes / (lanes * _SMALL)

    def is_small(problem: SweepProblem) -> bool:
        return problem.needed_bytes(on_cpu=True) <= most_of_small  # counts the tensors alone

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
