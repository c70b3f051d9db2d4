"""Attention as matrix products: its sizes, its mask, and the blocks that the mask leaves.

The scores multiply queries (M rows) by keys (N) over the head size (K). B counts the heads of all sequences. A second
product multiplies the scores by the values. Flex attention divides the scores into blocks. A full block needs no mask,
a partial one does, and no kernel computes an empty one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from diode_store.errors import RecordError
from diode_store.values.checks import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_store.kernels import Scalar

FORWARD, DECODING, BACKWARD = "flex_attention", "flex_decoding", "flex_attention_backward"
"""Names of the ops, as Inductor has them."""
MASK, BLOCK = "mask", "block"
"""Names of the scalars."""
SIZES = ("heads", "kv_heads", "value_size")
"""Dimensions to show of a problem."""
CAUSAL, WINDOW, PREFIX, DOCUMENTS, OTHER = "causal", "window", "prefix", "documents", "other"
USUAL_BLOCK = 128
"""Queries and keys of a block, unless a caller asks for others."""
WITHOUT_MASK = ""
"""Mask of a problem that has none."""
_SIZED = (WINDOW, PREFIX, DOCUMENTS)
_MASK = re.compile(rf"({CAUSAL}|{OTHER})|({'|'.join(_SIZED)})([1-9]\d*)")
_DIGITS = 4
_DIMENSIONS = 4


Input = tuple["Sequence[int]", "Sequence[int]"]
"""Size and strides of an input."""


class Range(NamedTuple):
    """A range of keys, or of blocks of keys; empty if the last comes before the first."""

    first: int
    last: int

    @property
    def length(self) -> int:
        """Number of keys or blocks."""
        return max(self.last - self.first + 1, 0)


class Blocks(NamedTuple):
    """Blocks of keys for each row of blocks: those that a kernel computes, and the full ones among them."""

    computed: list[Range]
    full: list[Range]
    columns: int
    """Blocks of keys in all."""


@dataclass(frozen=True)
class Mask:
    """Kind of a mask that lets each query see a range of keys. The last query is at the position of the last key.

    - ``causal``: the keys up to its own position.
    - ``window``: the last ``size`` of these.
    - ``prefix``: these, and the first ``size`` keys.
    - ``documents``: those of its own document, of ``size`` tokens each.
    - ``other``: a mask that nobody described.
    """

    kind: str = WITHOUT_MASK
    size: int = 0

    @classmethod
    def of(cls, op: str, text: Scalar | None) -> Mask:
        """Return the mask that a scalar names: ``causal``, ``window1024``, ``prefix256``, ``documents512``, ``other``.

        Raises:
            RecordError: it names none.
        """
        if text is None or text == WITHOUT_MASK:
            return cls()
        match = _MASK.fullmatch(str(text))
        if match is None:
            known = f"{CAUSAL}, {', '.join(f'{kind}N' for kind in _SIZED)} or {OTHER}"
            raise RecordError(f"{op}: {MASK} must be {known}, not {shown(text)}")
        return cls(match.group(1) or match.group(2), int(match.group(3) or 0))

    def __str__(self) -> str:
        """Return the text that ``of`` takes."""
        return f"{self.kind}{self.size or ''}"

    def normal(self, queries: int, keys: int) -> Mask:
        """Return the one mask of all that let the queries see the same keys, so that a problem has one key.

        A block mask that hides nothing is a prefix of all keys, or causal for a single query.
        """
        mask = self
        if mask.kind == DOCUMENTS and queries == 1:
            mask = Mask(WINDOW, (keys - 1) % mask.size + 1)
        if mask.kind == DOCUMENTS and mask.size == 1:
            mask = Mask(WINDOW, 1)
        if mask.kind == PREFIX:
            mask = Mask(PREFIX, min(mask.size, keys))
        is_causal = (mask.kind in {WINDOW, DOCUMENTS} and mask.size >= keys) or (
            mask.kind == PREFIX and mask.size <= keys - queries + 1
        )
        return Mask(CAUSAL) if is_causal or (mask.kind == PREFIX and queries == 1) else mask

    def seen(self, query: int, queries: int, keys: int) -> Range:
        """Return the keys that a query sees.

        Args:
            query: index of the query, from 0.
            queries: number of queries.
            keys: number of keys.
        """
        position = query + keys - queries
        first, last = 0, position
        if self.kind in {WITHOUT_MASK, OTHER}:
            last = keys - 1
        elif self.kind == WINDOW:
            first = max(position - self.size + 1, 0)
        elif self.kind == PREFIX:
            last = max(position, self.size - 1)
        elif self.kind == DOCUMENTS:
            first = max(position, 0) // self.size * self.size
        return Range(first, min(last, keys - 1))

    def blocks(self, queries: int, keys: int, block: int) -> Blocks:
        """Return the blocks for each row of blocks, as ``torch.nn.attention.flex_attention.create_block_mask`` does.

        A block beyond the last query or key is partial, because torch fills it up with what nobody sees. The bounds of
        ``seen`` grow with the query. So what the first and the last query of a row see encloses what any other sees.
        """
        computed, full = [], []
        for start in range(0, queries, block):
            top = self.seen(start, queries, keys)
            bottom = self.seen(min(start + block, queries) - 1, queries, keys)
            computed.append(Range(top.first // block, bottom.last // block if bottom.length else -1))
            is_whole = start + block <= queries and top.length > 0
            first_full = -(-bottom.first // block)
            full.append(Range(first_full, (top.last + 1) // block - 1 if is_whole else first_full - 1))
        return Blocks(computed, full, -(-keys // block))


@dataclass(frozen=True)
class Attention:
    """Sizes of one call of attention."""

    batch: int
    heads: int
    queries: int
    head_size: int
    kv_heads: int
    keys: int
    value_size: int
    mask: Mask = Mask()
    block: int = USUAL_BLOCK

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, M, N and K of the scores."""
        return self.batch * self.heads, self.queries, self.keys, self.head_size

    @property
    def dimensions(self) -> dict[str, Scalar]:
        """Named dimensions of the problem: what the sizes of the scores leave open, and the shares of the blocks."""
        found: dict[str, Scalar] = {"batch": self.batch, "heads": self.heads}
        if self.kv_heads != self.heads:
            found["kv_heads"] = self.kv_heads
        if self.value_size != self.head_size:
            found["value_size"] = self.value_size
        return found | self.scalars() | self._shares()

    def scalars(self) -> dict[str, Scalar]:
        """Return the mask and the size of its blocks, unless they are the usual ones."""
        if not self.mask.kind:
            return {}
        return {MASK: str(self.mask)} | ({BLOCK: self.block} if self.block != USUAL_BLOCK else {})

    def _shares(self) -> dict[str, Scalar]:
        if self.mask.kind == OTHER:
            return {}
        if not self.mask.kind:
            return {"full": 1.0}
        computed, full, columns = self.mask.blocks(self.queries, self.keys, self.block)
        every = len(computed) * columns
        of_full, of_all = (sum(each.length for each in ranges) for ranges in (full, computed))
        shares = {"full": round(of_full / every, _DIGITS), "partial": round((of_all - of_full) / every, _DIGITS)}
        return {name: share for name, share in shares.items() if share}


def attention_of(op: str, sizes: Sequence[Sequence[int]], scalars: Mapping[str, Scalar]) -> Attention:
    """Return the sizes of a call of attention.

    Args:
        op: name of the op, for errors.
        sizes: sizes of the query, the key and the value: batch, heads, positions and head size each.
        scalars: ``mask`` and ``block``; each is the usual one if it is missing.

    Raises:
        RecordError: sizes that make no attention.
    """
    query, key, value = sizes
    if any(len(size) != _DIMENSIONS for size in sizes):
        raise RecordError(f"{op}: queries, keys and values have batch, heads, positions and a head size")
    same = query[0] == key[0] == value[0] and query[3] == key[3] and key[1:3] == value[1:3]
    if not same or query[1] % key[1]:
        shown_sizes = ", ".join(str(list(size)) for size in sizes)
        raise RecordError(f"{op}: {shown_sizes} are no queries, keys and values of one attention")
    mask, block = Mask.of(op, scalars.get(MASK)), scalars.get(BLOCK, USUAL_BLOCK)
    if type(block) is not int or block < 1:
        raise RecordError(f"{op}: {BLOCK} must be a number of queries and keys from 1, not {shown(block)}")
    mask = mask.normal(query[2], key[2])
    return Attention(query[0], query[1], query[2], query[3], key[1], key[2], value[3], mask, block)


def attention_strides(size: Sequence[int], letter: str) -> tuple[int, ...]:
    """Return the strides of a dense input in elements; ``letter`` as in ``attention_layout``."""
    _, heads, positions, head_size = size
    whole = heads * positions * head_size
    if letter == "t":
        return whole, head_size, heads * head_size, 1
    return whole, positions * head_size, head_size, 1


def attention_layout(query: Input, key: Input) -> str:
    """Return the letters of the memory formats of queries and keys, each a size and strides.

    n is for the positions of a head side by side. t is for the heads of a position side by side, as after a projection.
    s is for elements of a head apart. With one head, or one position, both are true; then the other input decides.
    """
    letters = _letter(*query), _letter(*key)
    known = [letter for letter in letters if letter in {"n", "t"}] or ["n"]
    return "".join(letter or known[0] for letter in letters)


def _letter(size: Sequence[int], stride: Sequence[int]) -> str:
    """Return the letter of an input; empty if it is n and t at once."""
    _, heads, positions, head_size = size
    if head_size > 1 and stride[3] != 1:
        return "s"
    if heads == 1 or positions == 1:
        return ""
    return "t" if stride[1] < stride[2] else "n"


def dense_strides(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Return the strides without the space between heads and positions, for which no kernel cares."""
    letter = _letter(size, stride)
    return tuple(stride) if letter == "s" else attention_strides(size, letter)
