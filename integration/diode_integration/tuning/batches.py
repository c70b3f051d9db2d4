"""Problems that are measured together because the same kernels serve them, and in which order that is done."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from diode_collectors.problems.kinds import kernel_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_collectors.problems.kinds import Kind
    from diode_collectors.problems.problem import SweepProblem

LARGEST_BATCH = 6
"""Problems of a batch. More of a kind cost next to nothing, but teach less than a problem of another kind."""
_APART = 3
"""With each further problem of a batch so many batches have begun. Two lanes that had problems of one kind would both
compile its kernels, and while some compile, others should find theirs compiled."""


def by_kind(problems: Sequence[SweepProblem]) -> list[list[int]]:
    """Return indices into ``problems`` by kind, in the order of the first of each."""
    kinds: dict[Kind, list[int]] = defaultdict(list)
    for i, problem in enumerate(problems):
        kinds[kernel_kind(problem.problem().shape)].append(i)
    return list(kinds.values())


def batched(problems: Sequence[SweepProblem]) -> list[list[int]]:
    """Return indices into ``problems`` by kind, of large kinds in several batches."""
    return [
        members[start : start + LARGEST_BATCH]
        for members in by_kind(problems)
        for start in range(0, len(members), LARGEST_BATCH)
    ]


def in_turn(batches: Sequence[Sequence[int]]) -> list[int]:
    """Return the members of batches such that those of one are apart, as far as there are others to come between."""
    turns = [
        (number + _APART * place, index)
        for number, members in enumerate(batches)
        for place, index in enumerate(members)
    ]
    return [index for _, index in sorted(turns, key=lambda turn: turn[0])]
