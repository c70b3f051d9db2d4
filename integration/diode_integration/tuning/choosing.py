"""Which problems of many to measure first: those that are like many others, unlike what is measured, and uncertain.

Greedy facility location (Nemhauser et al., "An analysis of approximations for maximizing submodular set functions",
1978): each pick covers the problems that are like it, and the next is the one that covers most of what is left for
what measuring it costs. What a problem counts is how unsure the models are of it, where there are any.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from diode_store.operands import dtype_bytes, row_lengths
from diode_trainer.launch import widest_access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_collectors.problems.problem import SweepProblem

    Floats = NDArray[np.float32]

_REACH = 1.5
"""How far a measurement reaches, in octaves of one size: a standard deviation of the likeness."""
_OTHER_KIND = 2.0
"""How many octaves another op, dtype or layout is away."""
_ACCESS = {16: 0.0, 8: 1.0, 4: 1.3, 2: 1.6, 1: 1.9}
"""Likewise rows that are not whole 16 bytes, by the bytes of the widest load that an operand's rows allow: most is lost
by the first halving, and each is another kernel of the vendor's, and other instructions of a template."""
_MOST_COVERED = 2000
"""Of a larger pool so many, drawn, stand for all in what is to be covered."""
_DRAW = 0


def choose(
    pool: Sequence[SweepProblem],
    costs_s: Sequence[float],
    budget_s: float,
    *,
    counts: Floats | None = None,
    measured: Sequence[SweepProblem] = (),
) -> list[int]:
    """Return indices into ``pool``, the most telling first, that take about ``budget_s`` seconds to measure.

    Args:
        pool: the problems that are to be covered.
        costs_s: what measuring each takes, seconds.
        budget_s: what all may take; one is chosen in any case.
        counts: how much each is worth covering; all alike unless given.
        measured: what is measured already, and covers what is like it.
    """
    if not pool:
        return []
    places = _places(pool)
    some = np.sort(np.random.default_rng(_DRAW).permutation(len(pool))[:_MOST_COVERED])
    likeness = _likeness(places, places[some])  # (n, c)
    weight = np.ones(len(some), dtype=np.float32) if counts is None else counts[some]
    covered = np.zeros(len(some), dtype=np.float32)
    for problem in measured:
        np.maximum(covered, _likeness(_places([problem]), places[some])[0], out=covered)
    cost = np.maximum(np.array(costs_s, dtype=np.float32), 1e-6)
    # What a problem gains only shrinks as others are chosen, so that most gains need not be computed anew (Minoux,
    # "Accelerated greedy algorithms for maximizing submodular set functions", 1978).
    gains = [(-float(gain), i) for i, gain in enumerate(np.maximum(likeness - covered, 0) @ weight / cost)]
    heapq.heapify(gains)
    chosen: list[int] = []
    spent = 0.0
    while gains and (not chosen or spent < budget_s):
        _, best = heapq.heappop(gains)
        gain = float(np.maximum(likeness[best] - covered, 0) @ weight / cost[best])
        if gains and gain < -gains[0][0]:
            heapq.heappush(gains, (-gain, best))
            continue
        chosen.append(best)
        spent += float(cost[best])
        np.maximum(covered, likeness[best], out=covered)
    return chosen


def nearest(pool: Sequence[SweepProblem], to: Sequence[SweepProblem], count: int) -> list[int]:
    """Return indices into ``pool`` of what is most like the problems of ``to``: the nearest of each in turn."""
    if not pool or not to:
        return []
    likeness = _likeness(_places(to), _places(pool))  # (t, n)
    turns = np.argsort(-likeness, axis=1, kind="stable").T.ravel()
    return list(dict.fromkeys(turns.tolist()))[:count]


def _places(problems: Sequence[SweepProblem]) -> Floats:
    return np.array([_place(problem) for problem in problems], dtype=np.float32)


def _place(problem: SweepProblem) -> tuple[float, ...]:
    """Return where a problem is, such that the distance of two is in octaves."""
    kinds = (
        problem.op in {"bmm", "baddbmm"},
        problem.op in {"addmm", "baddbmm"},
        problem.dtype == "float32",
        problem.dtype == "float32" and not problem.allow_tf32,
        problem.layout[0] == "t",
        problem.layout[1] == "t",
    )
    sizes = [float(np.log2(size)) for size in (problem.b, problem.m, problem.n, problem.k)]
    access = [_ACCESS[widest_access(size, dtype_bytes(problem.dtype))] for size in row_lengths(problem)]
    return (*sizes, *(_OTHER_KIND * kind for kind in kinds), *access)


def _likeness(one: Floats, other: Floats) -> Floats:
    """Return how like each of (n, d) places is to each of (m, d), shape (n, m), from 0 to 1."""
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1)[None] - 2 * one @ other.T
    likeness: Floats = np.exp(-np.maximum(squares, 0) / np.float32(2 * _REACH**2))
    return likeness
