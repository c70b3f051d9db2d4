"""Which problems may share kernels in a sweep (``sweep.lane.shared_source``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_collectors.inductor.indexing import MOST_INDEXED
from diode_store.operands import dtype_bytes, row_lengths

if TYPE_CHECKING:
    from diode_collectors.problems.problem import SweepProblem
    from diode_store.records import ProblemShape

Kind = tuple[str, str, str]
"""Equal for problems whose kernels may be the same."""
_BITS = (16, 12, 18)
"""Of the bound of an index along a size, in the order in which they are tried."""
_BITS_BESIDE_K = (16, 18)
"""Likewise where K is an argument."""
ACCESS_BYTES = 16
"""Of the widest load and store."""


def index_bits(size: int, most_k: int) -> int | None:
    """Return the bits that hold an index along a size, such that 32 hold K times it; None if there are none.

    Args:
        size: M, N or the batch.
        most_k: K, or the largest that it may be where it is an argument.
    """
    return next((bits for bits in _BITS if size <= 2**bits and most_k * 2**bits <= MOST_INDEXED), None)


def k_bits(m: int, n: int, k: int) -> int | None:
    """Return the bits that hold K as an argument, such that 32 hold it times an index; None if there are none."""
    of_index = next((bits for bits in _BITS_BESIDE_K if max(m, n) <= 2**bits), None)
    if of_index is None or k >= MOST_INDEXED >> of_index:
        return None
    return (MOST_INDEXED >> of_index).bit_length() - 1


def told_divisor(size: int, item_bytes: int) -> int:
    """Return the largest power of two that divides a size, as far as it matters: no load or store has over 16 bytes."""
    return min(size & -size, ACCESS_BYTES // item_bytes)


def has_whole_rows(shape: ProblemShape | SweepProblem) -> bool:
    """Whether the rows of both operands are whole 16 bytes, so that the widest loads read them.

    Only such problems share kernels: by shared ones the times of three others scattered by 6 to 8% about those by their
    own, before K was an argument, where the times of five such ones scattered by 0.9 to 2.3% (one H100).
    """
    return all(length * dtype_bytes(shape.dtype) % ACCESS_BYTES == 0 for length in row_lengths(shape))


def kernel_kind(shape: ProblemShape) -> Kind:
    """Return what problems have in common of which one's kernels may serve the other.

    A kernel does if it is of the same config, and if what it is told of their sizes is the same: whether M and N are at
    least a block, whether blocks divide K, which power of two divides a row, and how many bits hold an index.
    """
    return shape.op, shape.arithmetic, shape.layout
