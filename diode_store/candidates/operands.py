"""Memory layout of the operands of a matrix product."""

from __future__ import annotations

from typing import Protocol

from diode_store.ops.grouping import COLUMNS, DEPTH, ROWS
from diode_store.ops.work import itemsize

ACCESS_BYTES = 16
"""Bytes of the widest load and store."""


class Operands(Protocol):
    """The dtype, sizes and layout of a matrix product."""

    @property
    def dtype(self) -> str:
        """Torch's name."""

    @property
    def m(self) -> int:
        """Rows of A."""

    @property
    def n(self) -> int:
        """Columns of B."""

    @property
    def k(self) -> int:
        """Length of the summed dimension."""

    @property
    def layout(self) -> str:
        """Two letters, as in ``ProblemShape``."""


def row_lengths(shape: Operands) -> tuple[int, int]:
    """Return the lengths of the rows of A and of B in memory, in elements.

    A row along the dimension that groups divide has the length of all groups.
    """
    m, n, k = shape.m, shape.n, shape.k
    named = dict(getattr(shape, "dimensions", ()))
    if named.get("total"):
        form, total = named["form"], named["total"]
        m, n, k = (total if form == its else size for its, size in ((ROWS, m), (COLUMNS, n), (DEPTH, k)))
    return m if shape.layout[0] == "t" else k, k if shape.layout[1] == "t" else n


def has_whole_rows(shape: Operands) -> bool:
    """Return whether the rows of both operands are a multiple of 16 bytes, so that the widest loads read them."""
    return all(length * itemsize(shape.dtype) % ACCESS_BYTES == 0 for length in row_lengths(shape))
