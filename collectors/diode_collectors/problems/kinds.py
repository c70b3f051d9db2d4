"""Kinds of problems that may share kernels in a sweep (``sweep.lane.shared_source``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_collectors.inductor.indexing import MOST_INDEXED
from diode_store.candidates.operands import ACCESS_BYTES

if TYPE_CHECKING:
    from diode_store.records import ProblemShape

Kind = tuple[str, str, str]
"""Value that is equal for problems whose kernels may be the same."""
_BITS = (16, 12, 18)
"""Bits for the bound of an index along a size, in the order to try."""
_BITS_BESIDE_K = (16, 18)
"""Bits to try where K is an argument."""


def index_bits(size: int, most_k: int) -> int | None:
    """Return the bits of an index along a size, such that 32 bits hold K times the index; None if there are none.

    Args:
        size: M, N or the batch.
        most_k: K, or its largest value where K is an argument.
    """
    return next((bits for bits in _BITS if size <= 2**bits and most_k * 2**bits <= MOST_INDEXED), None)


def k_bits(m: int, n: int, k: int) -> int | None:
    """Return the bits that hold K as an argument, such that 32 bits hold K times an index; None if there are none."""
    of_index = next((bits for bits in _BITS_BESIDE_K if max(m, n) <= 2**bits), None)
    if of_index is None or k >= MOST_INDEXED >> of_index:
        return None
    return (MOST_INDEXED >> of_index).bit_length() - 1


def told_divisor(size: int, item_bytes: int) -> int:
    """Return the largest power of two that divides a size, up to the 16 bytes of the widest load or store."""
    return min(size & -size, ACCESS_BYTES // item_bytes)


def kernel_kind(shape: ProblemShape) -> Kind:
    """Return the properties that problems must have in common to share kernels.

    A kernel serves two problems if all facts about sizes that are compiled into the kernel are equal. The facts
    are: whether M and N are at least a block; whether blocks divide K; the power of two in a row; the bits of an index.

    Only problems with whole rows share kernels. For others, the times of shared kernels differed too much from those of
    their own kernels.
    """
    return shape.op, shape.arithmetic, shape.layout
