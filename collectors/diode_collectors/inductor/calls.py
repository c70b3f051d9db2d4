"""The call that makes Inductor lower a problem: what torch calls for each op, as a node of an fx graph.

The sweep and the hook's previews both use this module, so both ask Inductor about the same op.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from diode_store.ops import OPS, Role
from diode_store.ops.convolving import GROUPS, USUAL, split
from diode_store.ops.inputs import scaled_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.records import Problem

_KEYWORDS = {Role.OFFSETS: "offs", Role.BIAS: "bias"}
"""Names of the arguments that torch takes behind optional ones."""


def add_call(graph: Any, problem: Problem, inputs: Sequence[Any]) -> Any:
    """Add to an fx graph what torch calls for a problem, over the nodes of its inputs in order; return the result."""
    import torch

    entry, scalars, roles = OPS[problem.op], dict(problem.scalars), problem.roles()
    function = getattr(torch, entry.function or entry.name)
    if entry.products > 1:
        products = [graph.call_function(function, pair) for pair in zip(inputs[::2], inputs[1::2], strict=True)]
        return reduce(lambda total, each: graph.call_function(torch.add, (total, each)), products)
    if entry.is_convolution:
        return graph.call_function(function, (*inputs, *([None] * (3 - len(inputs))), *_geometry(problem)))
    by_name = {} if entry.has_bias else _KEYWORDS
    given = list(zip(roles, inputs, strict=True))
    named = {by_name[Role(role)]: node for role, node in given if role in by_name}
    if entry.is_scaled:
        named["use_fast_accum"] = bool(scalars.get("use_fast_accum"))
        named["out_dtype"] = getattr(torch, scaled_output(problem.shape))
    return graph.call_function(function, tuple(node for role, node in given if role not in by_name), named)


def _geometry(problem: Problem) -> tuple[Any, ...]:
    """Return the arguments of ``torch.convolution`` behind the bias."""
    scalars, spatial = dict(problem.scalars), len(problem.inputs[0].size) - 2
    stride, padding, dilation = (list(split(problem.op, name, scalars.get(name), spatial)) for name in USUAL)
    return stride, padding, dilation, False, [0] * spatial, int(scalars.get(GROUPS, 1))
