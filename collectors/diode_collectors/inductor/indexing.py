"""Find the products that Inductor's templates cannot index."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from diode_store.ops import OPS
from diode_store.ops.scaling import recipes_of

if TYPE_CHECKING:
    from diode_store.records import Problem, ProblemShape

_MAIN_LOOP, _OF_B = "main_loop_scaling", "SCALE_RECIPE_B == 5"
"""Name of the template for scales of blocks, and the line with which it looks at B's recipe."""
MOST_INDEXED = 2**31
"""First index that 32 bits do not hold."""


def overflows(problem: Problem) -> bool:
    """Return True if Triton kernels of a product would index A or B beyond 32 bits and read other memory.

    Up to torch 2.11, templates of products without a batch multiply an index along K by its stride in 32 bits. From
    2.12 on, the templates for NVIDIA use 64 bits if a matrix needs them. Batched templates walk along K by pointers.
    Templates of grouped products load blocks by descriptors. A kernel that overflows ends in an illegal memory access,
    which no process survives.

    Args:
        problem: any op with matrices; strides count, not sizes.
    """
    entry = OPS[problem.op]
    if entry.is_convolution:  # its template computes an element's position in the input in 32 bits
        return int(problem.shape.dimension("input", 0)) >= MOST_INDEXED
    first, second, _ = entry.operands
    a, b = problem.inputs[first], problem.inputs[second]
    walks = len(a.size) > 2 or entry.is_grouped  # noqa: PLR2004 - a matrix
    return not walks and a.size[-1] * max(a.stride[-1], b.stride[-2]) >= MOST_INDEXED and k_has_32_bits()


@cache
def k_has_32_bits() -> bool:
    """Return True if this torch has the templates of 2.11 and before."""
    import torch

    return bool(torch.__version__ < "2.12")  # which compares versions, not texts


def reads_beyond_scales(template: Any, shape: ProblemShape) -> bool:
    """Return True if a template would read the scales of B by the recipe of A, and so beyond them.

    In torch 2.11 the template for scales of blocks decides by A's recipe how it reads both. If B has square blocks, it
    has far fewer scales than such a kernel reads.
    """
    first, second = recipes_of(str(shape.dimension("scaling", "")))
    return first != second and _MAIN_LOOP in template.uid and not _looks_at_recipe_of_b()


@cache
def _looks_at_recipe_of_b() -> bool:
    try:
        from torch._inductor.kernel.mm_common import load_kernel_template
    except ImportError:
        return False
    return _OF_B in str(load_kernel_template("triton_main_loop_scaled_mm"))
