"""Which problems are timed by the same kernels, in a sweep in which they share them (``sweep.lane.shared_source``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_collectors.problems.problem import dtype_bytes
from diode_store.inductor_default import LARGEST_BLOCK, SMALLEST_BLOCK, largest_block

if TYPE_CHECKING:
    from diode_collectors.problems.problem import SweepProblem
    from diode_store.records import ProblemShape

Kind = tuple[str | int | tuple[int, ...], ...]
"""Equal for problems that share all of their Triton kernels."""
MOST_INDEXED = 2**31
"""What is computed in 32 bits."""
_BITS = (16, 12, 18)
"""Of the bound of an index along a size, in the order in which they are tried."""
ACCESS_BYTES = 16
"""Of the widest load and store."""


def index_bits(size: int, k: int) -> int | None:
    """Return the bits that hold an index along a size, such that 32 hold K times it; None if there are none."""
    return next((bits for bits in _BITS if size <= 2**bits and k * 2**bits <= MOST_INDEXED), None)


def told_divisor(n: int, item_bytes: int) -> int:
    """Return the largest power of two that divides N, as far as it matters: no store is wider than 16 bytes."""
    return min(n & -n, ACCESS_BYTES // item_bytes)


def row_lengths(shape: ProblemShape | SweepProblem) -> tuple[int, int]:
    """Return how many elements the rows of A and of B have, as they lie in memory."""
    return shape.k if shape.layout[0] == "n" else shape.m, shape.n if shape.layout[1] == "n" else shape.k


def has_whole_rows(shape: ProblemShape | SweepProblem) -> bool:
    """Whether the rows of both operands are whole 16 bytes, so that the widest loads read them."""
    return all(length * dtype_bytes(shape.dtype) % ACCESS_BYTES == 0 for length in row_lengths(shape))


def kernel_kind(shape: ProblemShape) -> Kind:
    """Return what problems have in common that share kernels.

    That is everything but the batch, M where A is row-major, and N where B is transposed as well. Of these sizes counts
    how large a block may be and whether it reaches over the end, as that decides which kernels there are, and of N
    which power of two divides it, up to 16 bytes, because the output is stored accordingly.

    Problems whose rows are not whole 16 bytes share none: by shared kernels their times scattered by 6 to 8% about
    those by their own, where the others' scattered by 0.9 to 2.3% (one H100, eight problems).
    """
    b, m, n, k = shape.b, shape.m, shape.n, shape.k
    if not has_whole_rows(shape):
        return (shape.op, shape.arithmetic, shape.layout, b, m, n, k)
    is_wide = max(b * m * k, b * k * n, b * m * n) >= MOST_INDEXED
    m_in_common: tuple[int, ...] = (m,) if shape.layout[0] == "t" else _class(m, k)
    n_in_common: tuple[int, ...] = (n,)
    if shape.layout == "nt":
        n_in_common = (told_divisor(n, dtype_bytes(shape.dtype)), *_class(n, k))
    return (shape.op, shape.arithmetic, shape.layout, m_in_common, n_in_common, k, is_wide)


def _class(size: int, k: int) -> tuple[int, ...]:
    """Return what sizes have in common that are arguments of the same kernels."""
    bits = index_bits(size, k)
    if bits is None or (size < SMALLEST_BLOCK // 2 and size not in {2, 4}):
        return (size,)  # it stays a number
    block = min(largest_block(size), LARGEST_BLOCK)
    return bits, block, size >= block, size < SMALLEST_BLOCK // 2
