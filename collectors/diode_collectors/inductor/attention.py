"""Flex attention as Inductor lowers it: which problem a call is, and a block mask for one that is known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from diode_collectors.inductor.adapter import dtype_name, hinted, static
from diode_store.errors import RecordError
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
    attention_strides,
)
from diode_store.records import Problem, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

FEWEST_UNMASKED = 2**20
"""Size of a block from which a call has no mask; torch takes 2**30."""
_FEWEST_IN_MASK = 10
"""A block mask has more parts, of which the last are its block sizes and its function."""
_WITH_GROUPS = 5
_OF_A_CONFIG = re.compile(
    r"(fwd_|bwd_)?(BLOCK_[MN]\d?|num_warps|num_stages|USE_TMA|SPLIT_KV|kpack|waves_per_eu|matrix_\w+)"
)
"""Options of a caller that are parts of a config."""
_MOST_ROWS, _MOST_QUERIES = 9, 2048
"""Queries of which all keys tell which mask a function is, and queries of which a few keys confirm it."""


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
    query_block: Any
    """Queries of a block of the mask, perhaps symbolic."""
    key_block: Any
    mask: Any
    """Graph of the mask's function."""
    scores: Any
    """Graph of the function that changes scores."""
    captured: Sequence[Any]
    """Tensors that the mask's function looks at."""
    options: Mapping[str, Any]
    """Options of the kernel that the caller sets."""

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> Call:
        """Return the call with a lowering's arguments, of which different versions have more or fewer.

        Raises:
            RecordError: they are not those of attention.
        """
        masks = (each for each in arguments if isinstance(each, (tuple, list)) and len(each) > _FEWEST_IN_MASK)
        mask = next(masks, None)
        scores = next((each for each in arguments if hasattr(each, "graph_module")), None)
        if mask is None or scores is None or not isinstance(arguments[-1], (tuple, list)):
            raise RecordError("attention without a block mask or a function of scores among its arguments")
        options = next((each for each in arguments if isinstance(each, dict)), {})
        query, key, value = arguments[:3]
        query_block, key_block, graph = mask[-3:]
        return cls(query, key, value, query_block, key_block, graph, scores, arguments[-1], options)

    def with_static_blocks(self) -> Self | None:
        """Return the call with blocks of a fixed size, as Inductor's lowering makes them; None if it cannot.

        In a compile of dynamic shapes they are symbols, which every lowering replaces by their values with a guard.
        """
        blocks = static((self.query_block, self.key_block))
        if blocks is None:
            from torch._inductor.virtualized import V

            sizes = V.graph.sizevars
            guard = getattr(sizes, "guard_int", None) or getattr(sizes, "evaluate_static_shape", None)
            blocks = None if guard is None else (guard(self.query_block), guard(self.key_block))
        return None if blocks is None else self._replace(query_block=blocks[0], key_block=blocks[1])

    def problem(self, op: str) -> Problem | None:
        """Return the call's problem; None if it has none.

        That is so for symbolic sizes, masks that nobody described, functions of scores, and configs of the caller.
        """
        nodes = (self.query, self.key, self.value)
        blocks = static((self.query_block, self.key_block))
        if blocks is None or blocks[0] != blocks[1] or not all(static(node.get_size()) for node in nodes):
            return None
        if _is_function(self.scores.graph_module) or any(map(_OF_A_CONFIG.fullmatch, self.options)):
            return None
        specs = tuple(map(_spec, nodes))
        mask = Mask(WITHOUT_MASK)
        if blocks[1] < FEWEST_UNMASKED:
            mask = Mask(OTHER)
            if not self.captured:
                mask = mask_of(self.mask.graph_module, specs[0].size[2], specs[1].size[2])
        if mask.kind == OTHER:
            return None
        try:
            return Problem.create(op, specs, _scalars(mask, blocks[1]))
        except RecordError:  # keys of one sequence for all, which no problem describes
            return None


def mask_of(function: Callable[..., Any], queries: int, keys: int) -> Mask:
    """Return the mask that a function of batch, head, query and key computes; ``other`` for one that nobody described.

    Args:
        function: a ``mask_mod`` or its graph, on tensors that broadcast.
        queries: number of queries.
        keys: number of keys.
    """
    graph = getattr(function, "graph", None)
    if graph is not None:
        if any(node.users for node in graph.find_nodes(op="placeholder")[:2]):
            return Mask(OTHER)  # it depends on the sequence or the head
        function = _on_cpu(function)
    ahead = keys - queries
    rows, many = _some(queries, _MOST_ROWS), _some(queries, _MOST_QUERIES)
    try:
        # Documents begin at the first key of the last query; the query before it, if there is one, sees another.
        start = int(_computed(function, rows[-1:], np.arange(keys))[0].argmax())
        rows = np.unique([*rows, *(row for row in (start - ahead - 1, start - ahead) if 0 <= row < queries)])
        seen = _computed(function, rows, np.arange(keys))
        columns = np.unique([0, keys // 2, keys - 1])
        below = _computed(function, many, columns)
    except Exception:  # noqa: BLE001 - a graph of any Python
        return Mask(OTHER)
    for mask in _candidates(seen, rows, ahead):
        if np.array_equal(seen, _seen_by(mask, rows, np.arange(keys), queries, keys)):
            expected = _seen_by(mask, many, columns, queries, keys)
            return mask.normal(queries, keys) if np.array_equal(below, expected) else Mask(OTHER)
    return Mask(OTHER)


def _some(count: int, most: int) -> NDArray[np.int64]:
    """Return up to ``most`` of so many indices, spread over all, ascending."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _on_cpu(module: Any) -> Callable[..., Any]:
    """Return a function that runs a graph of a compile for a GPU on a CPU: what it makes, it makes there."""
    import torch.fx

    class OnCpu(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            return super().call_function(target, args, {**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})

    return OnCpu(module).run


def _seen_by(mask: Mask, rows: NDArray[Any], columns: NDArray[Any], queries: int, keys: int) -> NDArray[np.bool_]:
    """Return which keys queries see through a mask, shape (rows, columns)."""
    return _between([mask.seen(row, queries, keys) for row in rows.tolist()], columns)


def _computed(function: Callable[..., Any], rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Return what a mask's function says of queries and keys, shape (rows, columns)."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        zero = torch.zeros((), dtype=torch.int32)
        query, key = (torch.from_numpy(each.astype(np.int32)) for each in (rows, columns))
        answer = function(zero, zero, query[:, None], key[None, :])
        answer = answer[0] if isinstance(answer, (tuple, list)) else answer
        found: NDArray[np.bool_] = torch.broadcast_to(answer, (len(rows), len(columns))).numpy()
        return found


def _is_function(graph_module: Any) -> bool:
    """Return whether a graph of scores changes them; without a function it returns its first input."""
    nodes = list(graph_module.graph.nodes)
    result = nodes[-1].args[0]
    result = result[0] if isinstance(result, (tuple, list)) and result else result
    return result is not nodes[0]


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
    every = np.arange(columns)
    is_full = _between(full, every)
    lists: list[Any] = []
    for wanted in (_between(computed, every) & ~is_full, is_full):
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


def _candidates(seen: NDArray[np.bool_], rows: NDArray[np.int64], ahead: int) -> Iterator[Mask]:
    """Yield the masks that may be one of which some rows are known.

    Args:
        seen: shape (rows, keys).
        rows: the queries, shape (rows,).
        ahead: keys before the first query's position.
    """
    yield Mask(CAUSAL)
    first, counts = seen.argmax(1), seen.sum(1)
    if not seen.any(1).all():
        return
    windows = counts[first > 0]
    if len(windows):
        yield Mask(WINDOW, int(windows[0]))
        last = int(first[-1])
        before = first[rows == last - ahead - 1]
        if len(before) and last > before[0]:
            yield Mask(DOCUMENTS, int(last - before[0]))
    early = counts - 1 > rows + ahead
    if early.any():
        yield Mask(PREFIX, int(counts[early][0]))


def _between(ranges: Sequence[Range], columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which columns lie within each row's range, shape (rows, columns)."""
    bounds = np.array(ranges, dtype=np.int64)
    return (columns[None, :] >= bounds[:, :1]) & (columns[None, :] <= bounds[:, 1:])


def _scalars(mask: Mask, block: int) -> dict[str, Any]:
    if block >= FEWEST_UNMASKED or mask.kind == WITHOUT_MASK:
        return {}
    return {MASK: str(mask), BLOCK: block}


def _spec(node: Any) -> TensorSpec:
    size = hinted(node.get_size())
    stride = node.maybe_get_stride()  # open for what is not computed yet, which Inductor then makes dense
    if stride is None:
        stride = attention_strides(size, "n")
    return TensorSpec(dtype_name(node.get_dtype()), size, hinted(stride))
