"""How the operands of a matrix product lie in memory."""

from __future__ import annotations

import re
from typing import Protocol

_BITS = re.compile(r"\d+")
_BITS_PER_BYTE = 8


class Operands(Protocol):
    """What is asked of a matrix product here."""

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
        """What is summed over."""

    @property
    def layout(self) -> str:
        """Two letters, as in ``ProblemShape``."""


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of an element of torch's ``dtype``, from the bits in its name."""
    bits = _BITS.search(dtype)
    return int(bits.group()) // _BITS_PER_BYTE if bits else 1


def row_lengths(shape: Operands) -> tuple[int, int]:
    """Return how many elements the rows of A and of B have, as they lie in memory."""
    return shape.m if shape.layout[0] == "t" else shape.k, shape.k if shape.layout[1] == "t" else shape.n
