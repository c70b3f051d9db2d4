"""Scaling recipes of ``scaled_mm``: how many elements of an operand share one scale.

The names are those of ``torch.nn.functional.ScalingType`` in short. A recipe follows from a scale's sizes, as in
``get_scaling_options`` of torch/_inductor/kernel/mm.py.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from diode_store.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

TENSOR, ROW, ROW_BLOCK, SQUARE_BLOCK = "tensor", "row", "1x128", "128x128"
RECIPES = (TENSOR, ROW, ROW_BLOCK, SQUARE_BLOCK)
"""Recipes of one operand: one scale for the tensor, for a row of A or column of B, or for a block along K."""
BLOCK = 128
"""Elements along K that share a scale in the recipes with blocks."""
BOTH = "/"
"""Separator of two recipes, if A and B have different ones."""
PAIRS = (
    (TENSOR, TENSOR),
    (ROW, ROW),
    (ROW_BLOCK, SQUARE_BLOCK),
    (ROW_BLOCK, ROW_BLOCK),
    (SQUARE_BLOCK, ROW_BLOCK),
)
"""Recipes of A and B that torch takes, in the order in which Inductor tries them."""


def scaling_of(op: str, a: Sequence[int], b: Sequence[int], scale_a: Sequence[int], scale_b: Sequence[int]) -> str:
    """Return the recipe of a product's scales: one word, or A's and B's as in ``1x128/128x128``.

    Args:
        op: name of the op, for the error.
        a: sizes of A, (M, K).
        b: sizes of B, (K, N).
        scale_a: sizes of the scale of A.
        scale_b: sizes of the scale of B.

    Raises:
        RecordError: a scale that fits no recipe.
    """
    found = [
        _fitting(op, name, size, scale, is_b=name == "B")
        for name, size, scale in (("A", a[-2:], scale_a), ("B", b[-2:][::-1], scale_b))
    ]
    # With one row or one block, the sizes of a scale fit several recipes.
    pairs = [pair for pair in PAIRS if pair[0] in found[0] and pair[1] in found[1]]
    first, second = pairs[0] if pairs else (found[0][0], found[1][0])
    return paired(first, second)


def paired(first: str, second: str) -> str:
    """Return the recipes of A and B as one word, or as two."""
    return first if first == second else BOTH.join((first, second))


def scale_size(recipe: str, rows: int, k: int, *, is_b: bool) -> tuple[int, ...]:
    """Return the sizes of a scale.

    Args:
        recipe: one of ``RECIPES``.
        rows: M for A, N for B.
        k: K.
        is_b: True for the scale of B, whose sizes are in B's order.
    """
    size = {
        TENSOR: (1, 1),
        ROW: (rows, 1),
        ROW_BLOCK: (rows, _blocks(k)),
        SQUARE_BLOCK: (_blocks(rows), _blocks(k)),
    }[recipe]
    return size[::-1] if is_b else size


def scale_stride(recipe: str, rows: int, k: int, *, is_b: bool) -> tuple[int, ...]:
    """Return the strides of a scale as torch's vendor kernels demand them, for the sizes of ``scale_size``."""
    stride = {ROW_BLOCK: (1, rows), SQUARE_BLOCK: (_blocks(k), 1)}.get(recipe, (1, 1))
    if recipe == ROW and is_b:
        return rows, 1
    return stride[::-1] if is_b else stride


def grouped_scaling_of(op: str, scales: Sequence[tuple[Sequence[int], Sequence[int]]]) -> str:
    """Return the recipe of a grouped product's scales: one scale for each row of A and each column of B.

    Args:
        op: name of the op, for the error.
        scales: sizes of the scale of A and the sizes that are expected, and the same of B.

    Raises:
        RecordError: scales of another recipe.
    """
    for found, expected in scales:
        if prod(found) != prod(expected):
            raise RecordError(f"{op}: a scale of {list(found)} is not one for each row; expected {list(expected)}")
    return ROW


def recipes_of(scaling: str) -> tuple[str, str]:
    """Return the recipes of A and B that ``scaling_of`` put together."""
    first, _, second = scaling.partition(BOTH)
    return first, second or first


def _fitting(op: str, name: str, size: Sequence[int], scale: Sequence[int], *, is_b: bool) -> list[str]:
    rows, k = size
    along = tuple(scale)
    fitting = [recipe for recipe in RECIPES[1:] if along in _spellings(scale_size(recipe, rows, k, is_b=is_b))]
    if prod(scale) == 1:
        return [TENSOR, *fitting]
    if not fitting:
        raise RecordError(
            f"{op}: a scale of {list(scale)} does not fit {name} of {list(size[::-1] if is_b else size)}; expected one "
            f"value, one for each {'column' if is_b else 'row'}, or one for each block of {ROW_BLOCK} or {SQUARE_BLOCK}"
        )
    return fitting


def _spellings(size: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return a scale's sizes, and those of the vector that some ops take for it."""
    return (size, (prod(size),)) if 1 in size else (size,)


def _blocks(size: int) -> int:
    return -(-size // BLOCK)
