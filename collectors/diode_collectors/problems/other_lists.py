"""Estimates of the kernels that Inductor lists for int8, scaled and grouped products, sums, convolutions and attention.

The lists are those of torch 2.11 for NVIDIA GPUs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.problems.search_space import GUIDED
from diode_store.candidates.grouped_space import grouped_configs
from diode_store.ops.attending import BACKWARD, DECODING, FORWARD
from diode_store.ops.convolving import DILATION, numbers_of
from diode_store.ops.scaling import ROW, TENSOR, recipes_of

if TYPE_CHECKING:
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.search_space import SearchSpace


class _Lists(NamedTuple):
    """Numbers of a template's configs."""

    default: int
    exhaustive: int


_PLAIN = {"int_mm": _Lists(11, 11), "mm_plus_mm": _Lists(10, 10), "scaled_mm": _Lists(92, 1240)}
_CONVOLUTION = 17
"""Configs of the templates of images and volumes; small sizes make some of them equal. There are none with a dilation,
nor for most signals.
"""
_SCALED_TMA = _Lists(13, 635)
_ATTENTION = {
    FORWARD: _Lists(7, 147),
    DECODING: _Lists(4, 48),
    BACKWARD: _Lists(13, 903),
}
"""Lists of torch 2.13 for Hopper; the longer ones with what they lack of the shorter ones."""


def count_other(
    problem: SweepProblem, space: SearchSpace, *, shared_memory_bytes: int | None, include_tma: bool
) -> int:
    """Return the number of choices of a problem, vendor kernels included; arguments as in ``count_choices``."""
    if problem.entry.is_convolution:
        is_signal = len(numbers_of(problem.shape.dimension("kernel", "1"))) == 1
        return 1 if is_signal or problem.shape.dimension(DILATION) is not None else 1 + _CONVOLUTION
    if problem.entry.is_attention:
        lists = _ATTENTION[problem.op]
        most = {"DEFAULT": 0, "EXHAUSTIVE": lists.exhaustive}.get(space.kind, space.sample or 0)
        return min(max(most, lists.default), lists.exhaustive)
    if problem.entry.is_grouped:
        listed = len(
            list(grouped_configs(problem.shape, math.inf if shared_memory_bytes is None else shared_memory_bytes))
        )
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
