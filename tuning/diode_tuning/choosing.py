"""Choice of the problems to measure first.

Greedy facility location (Nemhauser et al., "An analysis of approximations for maximizing submodular set functions",
1978): each chosen problem covers the problems like it. The next one covers most of the rest for its cost. A problem
weighs more if the models are unsure of it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from diode_store.candidates.operands import row_lengths
from diode_store.ops.work import itemsize
from diode_trainer.work import widest_access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_collectors.problems.problem import SweepProblem

    Floats = NDArray[np.float32]

_REACH = 1.5
"""Reach of a measurement in octaves of one size: a standard deviation of the likeness."""
_OTHER_KIND = 2.0
"""Distance to another op, dtype or layout, in octaves."""
_ACCESS = {16: 0.0, 8: 1.0, 4: 1.3, 2: 1.6, 1: 1.9}
"""Distance in octaves to rows that are not a multiple of 16 bytes, by the bytes of the widest load that the operands'
rows allow.

The first halving costs most. Each width is another vendor kernel, and other instructions of a template.
"""
_MOST_COVERED = 2000
"""Number of problems, drawn from a larger pool, that stand for all problems to cover."""
_DRAW = 0


def choose(
    pool: Sequence[SweepProblem],
    costs_s: Sequence[float],
    budget_s: float,
    *,
    counts: Floats | None = None,
    measured: Sequence[SweepProblem] = (),
) -> list[int]:
    """Return indices into ``pool``, the most informative first, that take about ``budget_s`` seconds to measure.

    Args:
        pool: Problems to cover.
        costs_s: Seconds to measure each problem.
        budget_s: Seconds for all problems. One problem is chosen in any case.
        counts: Weights of the problems; equal weights by default.
        measured: Measured problems, which cover the problems like them.
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
    # A problem's gain only shrinks as others are chosen, so most gains need not be computed again (Minoux, "Accelerated
    # greedy algorithms for maximizing submodular set functions", 1978).
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
    """Return indices into ``pool`` of ``count`` problems most like those of ``to``: the nearest to each in turn."""
    if not pool or not to:
        return []
    likeness = _likeness(_places(to), _places(pool))  # (t, n)
    turns = np.argsort(-likeness, axis=1, kind="stable").T.ravel()
    return list(dict.fromkeys(turns.tolist()))[:count]


def _places(problems: Sequence[SweepProblem]) -> Floats:
    return np.array([_place(problem) for problem in problems], dtype=np.float32)


def _place(problem: SweepProblem) -> tuple[float, ...]:
    """Return a problem's coordinates; distances between problems are in octaves."""
    kinds = (
        problem.entry.is_batched,
        problem.entry.has_bias,
        problem.dtype == "float32",
        problem.dtype == "float32" and not problem.allow_tf32,
        problem.layout[0] == "t",
        problem.layout[1] == "t",
        problem.entry.is_scaled,
        problem.entry.is_grouped,
        problem.entry.products > 1,
        problem.dtype == "int8",
    )
    sizes = [float(np.log2(size)) for size in (problem.b, problem.m, problem.n, problem.k)]
    access = [_ACCESS[widest_access(size, itemsize(problem.dtype))] for size in row_lengths(problem)]
    return (*sizes, *(_OTHER_KIND * kind for kind in kinds), *access)


def _likeness(one: Floats, other: Floats) -> Floats:
    """Return the likeness, from 0 to 1, of each of (n, d) places to each of (m, d), shape (n, m)."""
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1)[None] - 2 * one @ other.T
    likeness: Floats = np.exp(-np.maximum(squares, 0) / np.float32(2 * _REACH**2))
    return likeness
