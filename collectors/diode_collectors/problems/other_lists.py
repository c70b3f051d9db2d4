"""Estimates of the kernels that Inductor lists for int8, scaled and grouped products and for sums of products.

The lists are those of torch 2.11 for NVIDIA GPUs.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.problems.search_space import GUIDED
from diode_store.ops.grouping import ROWS
from diode_store.ops.scaling import ROW, TENSOR, recipes_of
from diode_store.ops.work import itemsize

if TYPE_CHECKING:
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.search_space import SearchSpace


class _Lists(NamedTuple):
    """Numbers of a template's configs."""

    default: int
    exhaustive: int


_PLAIN = {"int_mm": _Lists(11, 11), "mm_plus_mm": _Lists(10, 10), "scaled_mm": _Lists(92, 1240)}
_SCALED_TMA = _Lists(13, 635)
_GROUPED_BLOCKS = tuple(itertools.product((16, 32, 64, 128), (64, 128, 256), (64, 128, 256), (3, 4), (4, 8)))
_GROUPED_BOUNDS = ((16, 1, 32), (32, 1, 64), (64, 32, 128))
"""Largest mean of rows in a group, and the least and largest BLOCK_M up to there."""


def count_other(
    problem: SweepProblem, space: SearchSpace, *, shared_memory_bytes: int | None, include_tma: bool
) -> int:
    """Return the number of choices of a problem, vendor kernels included; arguments as in ``count_choices``."""
    if problem.entry.is_grouped:
        listed = _grouped(problem, shared_memory_bytes)
        return 1 + (listed if space.sample is None else min(listed, space.sample))
    recipes = set(recipes_of(str(problem.shape.dimension("scaling", TENSOR))))
    is_in_blocks = not recipes <= {TENSOR, ROW}
    if is_in_blocks and len(recipes) > 1:  # see inductor.indexing.reads_beyond_scales
        return 1 + problem.entry.is_scaled
    found = 1 if is_in_blocks else 1 + _taken(_PLAIN[problem.op], space, space.sample or 0)
    if problem.entry.is_scaled and include_tma and not problem.shape.dimension("bias"):
        found += _taken(_SCALED_TMA, space, space.tma_sample)
    return found


def _taken(lists: _Lists, space: SearchSpace, sample: int) -> int:
    if space.sample is None:
        return lists.exhaustive if space.kind == "EXHAUSTIVE" else lists.default
    least = 0 if space.kind == GUIDED else lists.default
    return min(max(sample, least), lists.exhaustive)


def _grouped(problem: SweepProblem, shared_memory_bytes: int | None) -> int:
    """Return the number of configs that ``mm_grouped.early_config_prune`` leaves."""
    item_bytes = itemsize(problem.dtype)
    total, form = problem.shape.dimension("total", 0), problem.shape.dimension("form")
    rows = total // problem.b if form == ROWS else problem.m
    bounds = next(((least, most) for mean, least, most in _GROUPED_BOUNDS if rows <= mean), (64, 128))
    return sum(
        bounds[0] <= m <= bounds[1]
        and (shared_memory_bytes is None or (m + n) * k * stages * item_bytes <= shared_memory_bytes)
        for m, n, k, stages, _ in _GROUPED_BLOCKS
    )
