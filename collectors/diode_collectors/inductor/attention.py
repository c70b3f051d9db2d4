"""Flex attention as Inductor lowers it: which problem a call is, and a block mask for one that is known."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diode_collectors.inductor.adapter import dtype_name, hinted
from diode_store.errors import RecordError
from diode_store.ops import OPS
from diode_store.ops.attending import (
    BLOCK,
    CAUSAL,
    DOCUMENTS,
    MASK,
    OTHER,
    PREFIX,
    USUAL_BLOCK,
    WINDOW,
    WITHOUT_MASK,
    Mask,
    Range,
)
from diode_store.records import Problem, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

FORWARD, DECODING, BACKWARD = (name for name, op in OPS.items() if op.is_attention)
METHODS = {
    FORWARD: "get_flex_attention_fwd_configs",
    DECODING: "get_flex_decode_configs",
    BACKWARD: "get_flex_attention_bwd_configs",
}
"""Op → method of Inductor's choices handlers that lists its configs. Its arguments differ between versions of torch."""
FEWEST_UNMASKED = 2**20
"""Size of a block from which a call has no mask; torch takes 2**30."""
_FEWEST_IN_MASK = 10
"""A block mask has more parts, of which the last are its block sizes and its function."""
_WITH_GROUPS = 5
_MOST_ROWS = 9
"""Queries whose keys tell which mask a function is."""


def problem_of_attention(op: str, input_nodes: Sequence[Any], block: int | None) -> Problem:
    """Return the problem of an autotuning event, whose mask nobody knows: Inductor times with a mask of its own.

    Args:
        op: Inductor's name of the op.
        input_nodes: queries, keys and values first. For decoding, queries are in groups of those with common keys.
        block: queries of a block; None if nobody knows.

    Raises:
        RecordError: inputs that make no attention.
    """
    specs = [_spec(node) for node in input_nodes[:3]]
    query = specs[0]
    if len(query.size) == _WITH_GROUPS:
        (batch, kv_heads, shared, *size), stride = query.size, query.stride
        specs[0] = TensorSpec(query.dtype, (batch, kv_heads * shared, *size), (stride[0], *stride[2:]))
    return Problem.create(op, tuple(specs), _scalars(Mask(OTHER), block or USUAL_BLOCK))


class Call(NamedTuple):
    """A call of attention that Inductor is about to lower, forward or backward; tensors are its nodes."""

    query: Any
    key: Any
    value: Any
    query_block: int
    """Queries of a block of the mask."""
    key_block: int
    graph: Any
    """Graph of the mask's function."""
    captured: Sequence[Any]
    """Tensors that the function looks at."""

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> Call:
        """Return the call with a lowering's arguments, of which different versions have more or fewer.

        Raises:
            RecordError: they are not those of attention.
        """
        mask = next(
            (each for each in arguments if isinstance(each, (tuple, list)) and len(each) > _FEWEST_IN_MASK), None
        )
        if mask is None or not isinstance(arguments[-1], (tuple, list)):
            raise RecordError("attention without a block mask among its arguments")
        *_, query_block, key_block, graph = mask
        query, key, value = arguments[:3]
        return cls(query, key, value, int(query_block), int(key_block), graph, arguments[-1])

    def problem(self, op: str) -> Problem | None:
        """Return the call's problem; None if its sizes are symbolic.

        Raises:
            RecordError: inputs that make no attention.
        """
        nodes = (self.query, self.key, self.value)
        if not all(map(_is_static, nodes)):
            return None
        specs = tuple(map(_spec, nodes))
        mask = Mask(OTHER)
        if self.key_block >= FEWEST_UNMASKED:
            mask = Mask(WITHOUT_MASK)
        elif not self.captured:
            mask = mask_of(self.graph.graph_module, specs[0].size[2], specs[1].size[2])
        return Problem.create(op, specs, _scalars(mask, self.key_block))


def mask_of(function: Callable[..., Any], queries: int, keys: int) -> Mask:
    """Return the mask that a function of batch, head, query and key computes; ``other`` for one that nobody described.

    Args:
        function: a ``mask_mod`` or its graph, on tensors that broadcast.
        queries: number of queries.
        keys: number of keys.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    rows = np.unique(np.linspace(0, queries - 1, min(queries, _MOST_ROWS)).round().astype(np.int64))
    with _disable_current_modes():
        zero = torch.zeros((), dtype=torch.int32)
        every = torch.arange(keys, dtype=torch.int32)
        try:
            answer = function(zero, zero, torch.from_numpy(rows.astype(np.int32))[:, None], every[None, :])
        except Exception:  # noqa: BLE001 - a graph of tensors on another device, or of any Python
            return Mask(OTHER)
        answer = answer[0] if isinstance(answer, (tuple, list)) else answer
        seen = torch.broadcast_to(answer, (len(rows), keys)).numpy()
    for mask in _candidates(seen, rows + (keys - queries)):
        if np.array_equal(seen, _between([mask.seen(int(row), queries, keys) for row in rows], keys)):
            return mask
    return Mask(OTHER)


def block_mask(problem: Problem, device: str) -> Any:
    """Return the ``BlockMask`` of a problem, as ``create_block_mask`` makes it; None for one without a mask.

    That function computes the mask of every query and key, which takes 17 GB for 131,072 of each.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    shape = problem.shape
    mask = Mask.of(problem.op, shape.dimension(MASK))
    if mask.kind in {WITHOUT_MASK, OTHER}:
        return None
    block = int(shape.dimension(BLOCK, USUAL_BLOCK))
    computed, full, columns = mask.blocks(shape.m, shape.n, block)
    is_full = _between(full, columns)
    lists: list[Any] = []
    for wanted in (_between(computed, columns) & ~is_full, is_full):
        order = np.argsort(~wanted, axis=1, kind="stable")
        lists += [torch.from_numpy(each.astype(np.int32))[None, None].to(device) for each in (wanted.sum(1), order)]
    function = mask_function(mask, shape.m, shape.n)
    make: Any = BlockMask.from_kv_blocks
    return make(*lists, BLOCK_SIZE=block, mask_mod=function, seq_lengths=(shape.m, shape.n))


def mask_function(mask: Mask, queries: int, keys: int) -> Callable[[Any, Any, Any, Any], Any]:
    """Return the ``mask_mod`` of a known mask; it is traced, so it has no branches."""
    ahead, size = keys - queries, mask.size
    if mask.kind == CAUSAL:
        return lambda _b, _h, query, key: query + ahead >= key
    if mask.kind == WINDOW:
        return lambda _b, _h, query, key: (query + ahead >= key) & (query + ahead - key < size)
    if mask.kind == PREFIX:
        return lambda _b, _h, query, key: (query + ahead >= key) | (key < size)
    if mask.kind == DOCUMENTS:
        return lambda _b, _h, query, key: (query + ahead >= key) & ((query + ahead) // size == key // size)
    raise RecordError(f"a mask of the kind {mask.kind!r} has no function")


def _candidates(seen: NDArray[np.bool_], positions: NDArray[np.int64]) -> list[Mask]:
    """Return the masks that may be one of which some rows are known.

    Args:
        seen: shape (rows, keys).
        positions: position of each row among the keys, shape (rows,).
    """
    found = [Mask(WITHOUT_MASK), Mask(CAUSAL)]
    if not seen.any(1).all():
        return found
    first, counts = seen.argmax(1), seen.sum(1)
    windows = counts[first > 0]
    if len(windows):
        found += [Mask(WINDOW, int(windows[0])), Mask(DOCUMENTS, gcd(*map(int, first)))]
    ahead = counts - 1 > positions
    if ahead.any():
        found.append(Mask(PREFIX, int(counts[ahead][0])))
    return found


def _between(ranges: Sequence[Range], columns: int) -> NDArray[np.bool_]:
    """Return which columns lie within each row's range, shape (rows, columns)."""
    bounds, column = np.array(ranges, dtype=np.int64), np.arange(columns)[None, :]
    return (column >= bounds[:, :1]) & (column <= bounds[:, 1:])


def _scalars(mask: Mask, block: int) -> dict[str, Any]:
    if block >= FEWEST_UNMASKED or mask.kind == WITHOUT_MASK:
        return {}
    return {MASK: str(mask), BLOCK: block}


def _spec(node: Any) -> TensorSpec:
    size = hinted(node.get_size())
    stride = node.maybe_get_stride()  # open for what is not computed yet, which Inductor then makes dense
    if stride is None:
        stride = [int(np.prod(size[place + 1 :])) for place in range(len(size))]
    return TensorSpec(dtype_name(node.get_dtype()), size, hinted(stride))


def _is_static(node: Any) -> bool:
    try:
        return all(int(each) > 0 for each in node.get_size())
    except TypeError:
        return False
