"""Work of a product: the operations, and the bytes that have to move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.ops.attending import BACKWARD
from diode_store.ops.grouping import COLUMNS, DEPTH, ROWS
from diode_store.ops.table import OPS

if TYPE_CHECKING:
    from diode_store.ops.problem import ProblemShape

ITEMSIZES = {
    **dict.fromkeys(("float64", "int64"), 8),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16"), 2),
    **dict.fromkeys(("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}
"""Bytes of one element."""
OTHER_ITEMSIZE = 4
"""Bytes assumed for any other dtype."""


def itemsize(dtype: str) -> int:
    """Return the bytes of one element of torch's ``dtype``."""
    return ITEMSIZES.get(dtype, OTHER_ITEMSIZE)


def is_int8(dtype: str) -> bool:
    """Return whether ``dtype`` is an integer of one byte, which has a peak of its own."""
    return dtype in {"int8", "uint8"}


def flops(shape: ProblemShape) -> int:
    """Return the multiplications and additions; of attention those of all blocks that a mask does not leave empty."""
    b, m, n, k = _mean_sizes(shape)
    products = OPS[shape.op].products
    if not OPS[shape.op].is_attention:
        return round(2 * products * b * m * n * k)
    # Backward, three of the five products are over the head size of the queries: the scores and their two gradients.
    value_size = int(shape.dimension("value_size", shape.k))
    return round(2 * b * m * n * _computed(shape) * ((products + 1) // 2 * k + products // 2 * value_size))


def bytes_read(shape: ProblemShape) -> int:
    """Return the bytes of the operands, without a bias and scales; of grouped weights at least one group each is read.

    A convolution reads its input once, however often a position is part of a patch.

    ``views/sql/base.sql`` has the same formula.
    """
    b, m, n, k = _mean_sizes(shape)
    if OPS[shape.op].is_convolution:
        return round((int(shape.dimension("input", 0)) + b * k * n) * itemsize(shape.dtype))
    if OPS[shape.op].is_attention:
        return (shape.b * shape.m * shape.k + _keys_and_values(shape)) * itemsize(shape.dtype)
    form, total = shape.dimension("form"), shape.dimension("total", 0)
    used = min(shape.b, total) if total else b
    a_groups, b_groups = {ROWS: (b, used), COLUMNS: (used, b)}.get(form, (b, b))
    elements = OPS[shape.op].products * (a_groups * m * k + b_groups * k * n)
    return round(elements * itemsize(shape.dtype))


def bytes_written(shape: ProblemShape) -> int:
    """Return the bytes of the output; backward, of the gradients of queries, keys and values."""
    b, m, n, _ = _mean_sizes(shape)
    if OPS[shape.op].is_attention:
        is_backward = shape.op == BACKWARD
        rows = shape.k if is_backward else int(shape.dimension("value_size", shape.k))
        elements = shape.b * shape.m * rows + (_keys_and_values(shape) if is_backward else 0)
        return elements * itemsize(shape.dtype)
    return round(b * m * n * itemsize(shape.out_dtype))


def _computed(shape: ProblemShape) -> float:
    """Return the share of attention's blocks that a kernel computes; 1 for a mask that nobody described."""
    full, partial = shape.dimension("full"), shape.dimension("partial")
    return 1.0 if full is None and partial is None else (full or 0.0) + (partial or 0.0)


def _keys_and_values(shape: ProblemShape) -> int:
    """Return the elements of attention's keys and values."""
    heads = int(shape.dimension("kv_heads", shape.dimension("heads", 1)))
    return int(shape.dimension("batch", 1)) * heads * shape.n * (shape.k + int(shape.dimension("value_size", shape.k)))


def _mean_sizes(shape: ProblemShape) -> tuple[int, float, float, float]:
    """Return B, M, N and K, the grouped one as its exact mean."""
    total = shape.dimension("total")
    sizes: dict[str, float] = {ROWS: shape.m, COLUMNS: shape.n, DEPTH: shape.k}
    if total:
        sizes[shape.dimension("form")] = total / shape.b
    return shape.b, sizes[ROWS], sizes[COLUMNS], sizes[DEPTH]
