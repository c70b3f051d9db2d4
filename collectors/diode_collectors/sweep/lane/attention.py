"""Attention in a sweep: its call, the mask that its kernels are timed with, and what they should compute.

No vendor kernel computes flex attention, so a reference is computed here, for some queries or keys of some heads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_collectors.inductor.attention import block_mask
from diode_collectors.sweep.lane.benchmark import relative_error
from diode_store.ops.attending import BACKWARD, DECODING, MASK, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_store.records import Problem

_KEYS = ("kv_num_blocks", "kv_indices")
_FULL_KEYS = ("full_kv_num_blocks", "full_kv_indices")
_FORWARD_LISTS = (*_KEYS, *_FULL_KEYS)
_BACKWARD_LISTS = (*_KEYS, "q_num_blocks", "q_indices", *_FULL_KEYS, "full_q_num_blocks", "full_q_indices")
"""Attributes of a ``BlockMask`` in the order of a kernel's inputs."""
_LOGSUMEXP, _DELTA, _GRAD_OUT, _GRAD_QUERY, _GRAD_VALUE = 3, 4, 5, 6, 7
_ROW_MAXIMA, _ROW_SUMS = 3, 4
"""Places among a kernel's inputs, behind queries, keys and values: backward, and for decoding."""
_SAMPLED = 64
"""Most queries or keys of a head that are compared."""


def attention_call(problem: Problem, device: str) -> Callable[[Any, Any, Any], Any]:
    """Return a function of queries, keys and values that computes a problem's attention, for ``torch.compile``."""
    from torch.nn.attention.flex_attention import flex_attention

    mask = block_mask(problem, device)
    is_grouped = problem.inputs[0].size[1] != problem.inputs[1].size[1]

    def attend(query: Any, key: Any, value: Any) -> Any:
        return flex_attention(query, key, value, block_mask=mask, enable_gqa=is_grouped)

    return attend


def give_mask(problem: Problem, inputs: Sequence[Any]) -> None:
    """Write the problem's mask over the one that Inductor makes up, which computes every block.

    Backward the weights follow from the sums of a forward pass, so these get a plausible value as well.
    """
    import torch

    is_backward = problem.op == BACKWARD
    lists = [tensor for tensor in inputs if tensor.dtype is torch.int32]
    mask = block_mask(problem, str(inputs[0].device))
    if mask is None:  # one block of everything: a count of one, and its index
        for place, tensor in enumerate(lists):
            tensor.fill_(1 - place % 2)
    else:
        names = _BACKWARD_LISTS if is_backward else _FORWARD_LISTS
        for name, tensor in zip(names, lists, strict=True):
            tensor.copy_(getattr(mask, name))
    if is_backward:
        inputs[_LOGSUMEXP].fill_(math.log2(problem.shape.n))


class _Head(NamedTuple):
    """One head of a sequence."""

    sequence: int
    head: int
    kv_head: int


class AttentionReference:
    """Computes in float32 what a problem's kernels should, from the inputs that they are timed with."""

    def __init__(self, problem: Problem, inputs: Sequence[Any]) -> None:
        """Compute nothing yet.

        Args:
            problem: the problem.
            inputs: the tensors that its kernels get.
        """
        self._problem, self._inputs = problem, inputs
        self._shape = problem.shape
        self._expected: Any = None

    def error_of(self, output: Any, *, is_vendor: bool) -> float | None:
        """Return the relative error of a kernel's output; backward, the largest one of the three gradients."""
        if is_vendor:
            return None
        if self._expected is None:
            self._expected = self.expected()
        computed = self.sampled(output)
        errors = [relative_error(*pair) for pair in zip(computed, self._expected, strict=True)]
        if self._is_backward:
            for place in (_GRAD_QUERY, _GRAD_VALUE):
                self._inputs[place].fill_(math.nan)  # else a kernel that writes nothing would pass
        return math.nan if any(map(math.isnan, errors)) else max(errors)

    def expected(self) -> list[Any]:
        """Return the expected values, each of shape (heads, sampled positions, head size).

        Forward these are the attended values, and backward the gradients of keys, values and queries.
        """
        import torch

        compute = self._gradients if self._is_backward else self._attended
        return [torch.stack(each) for each in zip(*map(compute, self._heads()), strict=True)]

    def sampled(self, output: Any) -> list[Any]:
        """Return the values of a kernel's output that ``expected`` has, in the same shapes."""
        if self._problem.op == DECODING:
            output = self._reduced(output)
        if not self._is_backward:
            return [self._values(output, self._some(self._shape.m), of_keys=False)]
        keys, queries = self._some(self._shape.n), self._some(self._shape.m)
        return [
            self._values(output, keys, of_keys=True),
            self._values(self._inputs[_GRAD_VALUE], keys, of_keys=True),
            self._values(self._inputs[_GRAD_QUERY], queries, of_keys=False),
        ]

    @property
    def _is_backward(self) -> bool:
        return self._problem.op == BACKWARD

    def _values(self, tensor: Any, positions: Any, *, of_keys: bool) -> Any:
        import torch

        heads = ((each.sequence, each.kv_head if of_keys else each.head) for each in self._heads())
        return torch.stack([tensor[sequence, head][positions].float() for sequence, head in heads])

    def _heads(self) -> list[_Head]:
        """Return the first head of the first sequence and the last one of the last."""
        (batch, heads, *_), (_, kv_heads, *_) = (spec.size for spec in self._problem.inputs[:2])
        return list(dict.fromkeys([_Head(0, 0, 0), _Head(batch - 1, heads - 1, kv_heads - 1)]))

    def _some(self, count: int) -> Any:
        """Return some of so many positions, spread over all."""
        import torch

        chosen = torch.linspace(0, count - 1, min(count, _SAMPLED)).round().long()
        return chosen.to(self._inputs[0].device)

    def _query(self, sequence: int, head: int) -> Any:
        """Return the queries of a head, shape (queries, head size); for decoding they are in groups of heads."""
        query = self._inputs[0]
        found = query.flatten(1, 2) if query.dim() > 4 else query  # noqa: PLR2004 - batch, heads, positions, head size
        return found[sequence, head].float()

    def _scores(self, query: Any, key: Any, rows: Any, columns: Any) -> Any:
        """Return the scaled scores of some queries and keys, minus infinity where a query sees no key."""
        import torch

        mask, (m, n) = Mask.of(self._problem.op, self._shape.dimension(MASK)), (self._shape.m, self._shape.n)
        seen = torch.tensor([mask.seen(row, m, n) for row in rows.tolist()], device=query.device)
        hidden = (columns[None, :] < seen[:, :1]) | (columns[None, :] > seen[:, 1:])
        return (query @ key.T / math.sqrt(self._shape.k)).masked_fill(hidden, float("-inf"))

    def _every(self, count: int) -> Any:
        import torch

        return torch.arange(count, device=self._inputs[0].device)

    def _attended(self, head: _Head) -> tuple[Any]:
        import torch

        rows = self._some(self._shape.m)
        key, value = (tensor[head.sequence, head.kv_head].float() for tensor in self._inputs[1:3])
        query = self._query(head.sequence, head.head)[rows]
        scores = self._scores(query, key, rows, self._every(self._shape.n))
        return (torch.softmax(scores, 1).nan_to_num(0.0) @ value,)

    def _gradients(self, head: _Head) -> tuple[Any, Any, Any]:
        """Return gradients of some keys and values, which all heads that share them add up, and of some queries."""
        columns, rows = self._some(self._shape.n), self._some(self._shape.m)
        key, value = (tensor[head.sequence, head.kv_head].float() for tensor in self._inputs[1:3])
        shared = self._inputs[0].shape[1] // self._inputs[1].shape[1]
        of_keys: Any = 0.0
        of_values: Any = 0.0
        for each in range(head.kv_head * shared, (head.kv_head + 1) * shared):
            query, grad_out = self._query(head.sequence, each), self._inputs[_GRAD_OUT][head.sequence, each].float()
            weights, of_scores = self._of_scores(head.sequence, each, self._every(self._shape.m), columns, key, value)
            of_keys = of_keys + of_scores.T @ query
            of_values = of_values + weights.T @ grad_out
        _, of_scores = self._of_scores(head.sequence, head.head, rows, self._every(self._shape.n), key, value)
        scale = math.sqrt(self._shape.k)
        return of_keys / scale, of_values, of_scores @ key / scale

    def _of_scores(self, sequence: int, head: int, rows: Any, columns: Any, key: Any, value: Any) -> tuple[Any, Any]:
        """Return the weights of some queries and keys, and the gradients of their scores, shape (rows, columns)."""
        import torch

        query = self._query(sequence, head)[rows]
        logsumexp, delta, grad_out = (
            self._inputs[place][sequence, head][rows].float() for place in (_LOGSUMEXP, _DELTA, _GRAD_OUT)
        )
        scores = self._scores(query, key[columns], rows, columns)
        weights = torch.exp2(scores * math.log2(math.e) - logsumexp[:, None])
        return weights, weights * (grad_out @ value[columns].T - delta[:, None])

    def _reduced(self, parts: Any) -> Any:
        """Return the attention of parts along the keys, as the lowering of decoding adds them up.

        Args:
            parts: shape (batch, parts, heads, queries, head size).
        """
        import torch

        maxima, sums = (self._inputs[place] for place in (_ROW_MAXIMA, _ROW_SUMS))  # (batch, parts, heads, queries)
        most = maxima.amax(1, keepdim=True)
        factors = torch.exp2(torch.where(most == float("-inf"), 0.0, maxima - most))
        total = (sums * factors).sum(1)
        return (parts * factors[..., None]).sum(1) / torch.where(total == 0, 1.0, total)[..., None]
