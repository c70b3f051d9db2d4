"""Which problems are timed by the same kernels, in a sweep in which they share them (``sweep.lane.shared_source``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_collectors.problems.problem import dtype_bytes
from diode_store.inductor_default import LARGEST_BLOCK, largest_blocks

if TYPE_CHECKING:
    from diode_store.records import ProblemShape

Kind = tuple[str | int, ...]
"""Equal for problems that share kernels."""
_ACCESS_BYTES = 16


def kernel_kind(shape: ProblemShape) -> Kind:
    """Return the kind of a problem: all but the batch, M where A is row-major, and N where B is transposed as well.

    Of such an N counts which power of two divides it, up to 16 bytes, because the output is stored accordingly; and of
    both how large a block may be, because that decides which kernels there are.
    """
    blocks = tuple(min(block, LARGEST_BLOCK) for block in largest_blocks(shape.m, shape.n, shape.k)[:2])
    m, n = (1 if shape.layout[0] == "n" else shape.m), shape.n
    if m == 1 and shape.layout[1] == "t":
        n = min(n & -n, _ACCESS_BYTES // dtype_bytes(shape.dtype))
    return (shape.op, shape.arithmetic, shape.layout, m, n, shape.k, *blocks)
