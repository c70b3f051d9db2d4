"""Find the products that Inductor's templates cannot index."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from diode_store.ops import OPS

if TYPE_CHECKING:
    from diode_store.records import Problem

MOST_INDEXED = 2**31
"""First index that 32 bits do not hold."""


def overflows(problem: Problem) -> bool:
    """Return True if Triton kernels of a product would index A or B beyond 32 bits and read other memory.

    Up to torch 2.11, templates of products without a batch multiply an index along K by its stride in 32 bits. From
    2.12 on, the templates for NVIDIA use 64 bits if a matrix needs them. Batched templates walk along K by pointers.
    Such a kernel ends in an illegal memory access, which no process survives.

    Args:
        problem: any op with matrices; strides count, not sizes.
    """
    first, second, _ = OPS[problem.op].operands
    a, b = problem.inputs[first], problem.inputs[second]
    is_batched = len(a.size) > 2  # noqa: PLR2004 - a matrix
    return not is_batched and a.size[-1] * max(a.stride[-1], b.stride[-2]) >= MOST_INDEXED and k_has_32_bits()


@cache
def k_has_32_bits() -> bool:
    """Return True if this torch has the templates of 2.11 and before."""
    import torch

    return bool(torch.__version__ < "2.12")  # which compares versions, not texts
