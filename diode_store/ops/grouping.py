"""Grouped products: which dimension the offsets divide, and how long the groups are.

Routing decides at run time how long each group is, so a compiler does not know it. A sweep times a problem with the
sizes of ``group_sizes``. They depend on one number, the skew: the standard deviation of the sizes over their mean.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

from diode_store.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS, COLUMNS, DEPTH, BATCH = "2d3d", "3d2d", "2d2d", "3d3d"
FORMS = (ROWS, COLUMNS, DEPTH, BATCH)
"""Dimensions of A and B. Groups divide M in ``2d3d``, N in ``3d2d``, K in ``2d2d``; ``3d3d`` is a plain batch."""
MOST_SKEW = 8.0
"""Largest skew that a problem may have."""
_MATRIX, _BATCHED = 2, 3
# A step near the golden ratio of the groups, so that long groups do not lie side by side.
_STEP = (5**0.5 - 1) / 2


def form_of(op: str, a: Sequence[int], b: Sequence[int]) -> str:
    """Return which of ``FORMS`` the sizes of A and B make.

    Raises:
        RecordError: sizes that make no grouped product.
    """
    form = f"{len(a)}d{len(b)}d"
    is_batch_equal = form != BATCH or a[0] == b[0]
    if form not in FORMS or a[-1] != b[-2] or not is_batch_equal:
        raise RecordError(f"{op}: {list(a)} x {list(b)} is not a grouped product")
    return form


def grouped_total(form: str, a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the dimension that the offsets divide; 0 for a batch."""
    return {ROWS: a[0], COLUMNS: b[-1], DEPTH: a[-1], BATCH: 0}[form]


def mean_size(total: int, groups: int) -> int:
    """Return the mean length of a group as ``ProblemShape`` has it: whole, at least 1."""
    return max(1, round(total / groups))


def scale_sizes(form: str, groups: int, m: int, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of the scales of A and B, one for each row of A and each column of B.

    Args:
        form: one of ``FORMS``.
        groups: number of groups.
        m: rows of A, of all groups together in the form ``2d3d``.
        n: columns of B, of all groups together in the form ``3d2d``.
    """
    rows, columns = {DEPTH: (m * groups, n * groups)}.get(form, (m, n))
    is_a_batched, is_b_batched = form in {COLUMNS, BATCH}, form in {ROWS, BATCH}
    return (groups, rows) if is_a_batched else (rows,), (groups, columns) if is_b_batched else (columns,)


def alignment_of(form: str, itemsize: int) -> int:
    """Return the number that every offset is a multiple of: 16 bytes, where a group begins inside a row in memory."""
    return 1 if form == ROWS else 16 // itemsize


def group_sizes(groups: int, total: int, skew: float = 0.0, alignment: int = 1) -> list[int]:
    """Return the sizes of groups that sum to ``total``.

    With a skew they follow the quantiles of a log-normal distribution, whose standard deviation over its mean is
    ``sqrt(exp(sigma**2) - 1)``. Rounding and empty groups change the skew of short groups.

    Args:
        groups: number of groups.
        total: sum of the sizes.
        skew: standard deviation over mean, from 0 for equal groups.
        alignment: every size but the last is a multiple of this.
    """
    sigma = math.sqrt(math.log1p(skew * skew))
    normal = NormalDist()
    weights = [math.exp(sigma * normal.inv_cdf((i + 0.5) / groups)) for i in range(groups)]
    step = _coprime_step(groups)
    scale = total / sum(weights)
    sizes, end, exact = [], 0, 0.0
    for i in range(groups):
        exact += weights[i * step % groups] * scale
        next_end = total if i == groups - 1 else min(total, round(exact / alignment) * alignment)
        sizes.append(next_end - end)
        end = next_end
    return sizes


def skew_of(sizes: Sequence[int]) -> float:
    """Return the standard deviation of the sizes over their mean, to two digits; 0 if all groups are empty.

    Raises:
        RecordError: there are no groups, or one ends before it begins.
    """
    if not sizes or min(sizes) < 0:
        raise RecordError(f"groups of {list(sizes)} elements: their offsets must ascend, and there must be a group")
    mean = sum(sizes) / len(sizes)
    variance = sum((size - mean) ** 2 for size in sizes) / len(sizes)
    return round(math.sqrt(variance) / mean, 2) if mean else 0.0


def _coprime_step(groups: int) -> int:
    step = max(1, round(groups * _STEP))
    while math.gcd(step, groups) != 1:
        step += 1
    return step
