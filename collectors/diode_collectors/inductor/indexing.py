"""What the kernels of Inductor's templates can index: up to torch 2.11 not every matrix."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from diode_store.records import MATMUL_OPERANDS

if TYPE_CHECKING:
    from diode_store.records import Problem

MOST_INDEXED = 2**31
"""The first index that 32 bits do not hold."""


def overflows(problem: Problem) -> bool:
    """Whether Triton's kernels of a product would index A or B by more than 32 bits, and read other memory.

    Up to torch 2.11 the templates of products without a batch multiply an index along K, in 32 bits, by the stride
    there; from 2.12 on those for NVIDIA have 64 where a matrix needs them. The batched ones walk along K by pointers.
    On an NVIDIA H200 (torch 2.11) each kernel that was tried for mm 46x120401x20327 tn in bf16 ended in an illegal
    memory access, which no process survives; none was of the TMA template, as the rows are not whole 16 bytes.

    Args:
        problem: of any op that has matrices; strides count, not sizes.
    """
    first, second, _ = MATMUL_OPERANDS[problem.op]
    a, b = problem.inputs[first], problem.inputs[second]
    is_batched = len(a.size) > 2  # noqa: PLR2004 - a matrix
    return not is_batched and a.size[-1] * max(a.stride[-1], b.stride[-2]) >= MOST_INDEXED and k_has_32_bits()


@cache
def k_has_32_bits() -> bool:
    """Whether this torch has the templates of 2.11 and before."""
    import torch

    return bool(torch.__version__ < "2.12")  # which compares versions, not texts
