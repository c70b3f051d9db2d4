"""Attention of a sweep as text: ``flex_attention:4x16x2048x64/causal``, ``flex_decoding:8x32x1x128:8x8192``.

The sizes of the queries come first: batch, heads, positions, head size. Then come the heads and positions of the keys,
where they differ from those of the queries, and the head size of the values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diode_store.errors import RecordError, SettingsError
from diode_store.ops import OPS
from diode_store.ops.attending import (
    BACKWARD,
    BLOCK,
    CAUSAL,
    DECODING,
    DOCUMENTS,
    FORWARD,
    MASK,
    OTHER,
    PREFIX,
    USUAL_BLOCK,
    WINDOW,
    Mask,
    attention_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.ops import ProblemShape
    from diode_store.records import Scalar

NAMES: tuple[str, ...] = (FORWARD, DECODING, BACKWARD)
EXAMPLE = f"{FORWARD}:4x16x2048x64/causal"
WORDS: tuple[str, ...] = (CAUSAL, f"{WINDOW}N", f"{PREFIX}N", f"{DOCUMENTS}N", f"{BLOCK}N")
"""Words that may follow the sizes, besides layouts and dtypes."""
DECODED = 128
"""Number of queries below which Inductor takes the kernel for decoding."""
LEAST_HEAD_SIZE = 16
"""Smallest size of Triton's matrix products."""
LEAST_BLOCK = 64
"""Smallest block that some config of each list divides."""
_SHAPE = re.compile(rf"({'|'.join(NAMES)}):(\d+(?:x\d+){{3}})(?::(\d+x\d+(?:x\d+)?))?((?:/[\w+=.]+)*)")
_BLOCK = re.compile(rf"{BLOCK}([1-9]\d*)")


def split_text(text: str) -> tuple[str, tuple[tuple[int, ...], ...], list[str]]:
    """Return the op, the sizes of queries, keys and values, and the words behind them.

    Raises:
        SettingsError: the text is no attention.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"{text!r} is no attention; write {FORWARD}:BxHxMxD (batch, heads, queries, head size), then :HxN or :HxNxD"
            " for other heads and positions of the keys and another size of the values, then words such as /causal or "
            f"/{WINDOW}1024 if you like, such as {EXAMPLE}"
        )
    op, queries, keys, words = match.groups()
    batch, heads, m, head_size = map(int, queries.split("x"))
    kv_heads, n, *value = map(int, keys.split("x")) if keys else (heads, m)
    value_size = value[0] if value else head_size
    sizes = (batch, heads, m, head_size), (batch, kv_heads, n, head_size), (batch, kv_heads, n, value_size)
    return op, sizes, words.split("/")[1:]


def scalar_of(word: str) -> dict[str, Scalar] | None:
    """Return the scalar that a word means; None for any other word."""
    block = _BLOCK.fullmatch(word)
    if block is not None:
        return {BLOCK: int(block.group(1))}
    try:
        return {MASK: str(Mask.of(FORWARD, word))}
    except RecordError:
        return None


def sizes_of(
    op: str, sizes: tuple[tuple[int, ...], ...], scalars: dict[str, Scalar]
) -> tuple[tuple[int, int, int, int], dict[str, Scalar]]:
    """Return B, M, N and K of attention, and its dimensions.

    Args:
        op: name of the op.
        sizes: sizes of queries, keys and values.
        scalars: mask and block.

    Raises:
        SettingsError: there is no such attention.
    """
    if min(map(min, sizes)) < 1:
        raise SettingsError(f"{op}: sizes must be positive")
    try:
        found = attention_of(op, sizes, scalars)
    except RecordError as error:
        raise SettingsError(str(error)) from error
    return found.sizes, found.dimensions


def usual_layout(_sizes: Sequence[Sequence[int]]) -> str:
    """Return the layout of a model that gives each head its positions side by side."""
    return OPS[FORWARD].layouts[0]


def text_of(shape: ProblemShape) -> str:
    """Return the sizes of attention as ``split_text`` takes them, without layout and dtype."""
    batch, heads = int(shape.dimension("batch")), int(shape.dimension("heads"))
    kv_heads, value_size = shape.dimension("kv_heads", heads), shape.dimension("value_size")
    text = f"{shape.op}:{batch}x{heads}x{shape.m}x{shape.k}"
    if value_size is not None:
        return f"{text}:{kv_heads}x{shape.n}x{value_size}"
    return text if (kv_heads, shape.n) == (heads, shape.m) else f"{text}:{kv_heads}x{shape.n}"


def words_of(shape: ProblemShape) -> list[str]:
    """Return the words for the mask of attention."""
    mask, block = shape.dimension(MASK), shape.dimension(BLOCK)
    return [*([str(mask)] if mask else []), *([f"{BLOCK}{block}"] if block else [])]


def check_attention(shape: ProblemShape) -> None:
    """Check attention against what a sweep can time.

    Raises:
        SettingsError: Inductor takes another kernel for these sizes, or nobody knows the mask.
    """
    if not shape.dimension("heads"):
        raise SettingsError(f"{shape.op} needs a batch and heads; write it as {EXAMPLE}")
    heads = int(shape.dimension("heads"))
    kv_heads = int(shape.dimension("kv_heads", heads))
    if shape.layout != OPS[shape.op].layouts[0] and kv_heads == 1 and 1 in {heads, shape.m}:
        raise SettingsError(f"{shape.op} with one head of keys, and one of queries or one query, has one layout, nn")
    if shape.dimension(MASK) == OTHER:
        raise SettingsError(f"{shape.op}: nobody knows the blocks of another mask; known: {', '.join(WORDS)}")
    if min(shape.k, int(shape.dimension("value_size", shape.k))) < LEAST_HEAD_SIZE:
        raise SettingsError(f"{shape.op} needs head sizes of at least {LEAST_HEAD_SIZE}")
    block = int(shape.dimension(BLOCK, USUAL_BLOCK))
    if block % LEAST_BLOCK:
        raise SettingsError(f"{shape.op} needs a {BLOCK} that is a multiple of {LEAST_BLOCK}, as Inductor's configs do")
    if shape.op == DECODING and shape.dimension(MASK) and block % _power_of_2(shape.m * heads // kv_heads):
        raise SettingsError(f"{shape.op} needs a {BLOCK} that is a multiple of the queries of a head of keys")
    wanted = kernel_of(shape)
    if shape.op not in {BACKWARD, wanted}:
        raise SettingsError(f"{shape.op}: Inductor takes {wanted} for these sizes; write that instead")


def _power_of_2(number: int) -> int:
    """Return the smallest power of 2 from 16 on that is not less."""
    return max(1 << (number - 1).bit_length(), LEAST_HEAD_SIZE)


def kernel_of(shape: ProblemShape) -> str:
    """Return the op whose kernel Inductor takes for a forward pass, as ``_use_flex_decoding`` in torch decides."""
    heads = int(shape.dimension("heads"))
    shared = heads // int(shape.dimension("kv_heads", heads))
    return DECODING if shape.m < DECODED and shared & (shared - 1) == 0 else FORWARD
