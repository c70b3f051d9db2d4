"""The call that a sweep compiles: a module that computes one product of real tensors."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from diode_store.ops import OPS, Role
from diode_store.ops.inputs import ends_of_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_collectors.problems.problem import SweepProblem
    from diode_store.records import Problem

_KEYWORDS = {Role.OFFSETS: "offs", Role.BIAS: "bias"}
"""Names of the arguments that torch takes behind optional ones."""


def inputs_on(problem: SweepProblem, device: str) -> list[Any]:
    """Return the tensors to pass to the op. Inductor times with values of its own, so these need none.

    Offsets have their values nevertheless: if Inductor has nothing to choose, it runs the kernel.
    """
    import torch

    def tensor(role: Role, spec: Any) -> Any:
        if role is Role.OFFSETS:
            return torch.tensor(ends_of_groups(problem.shape), dtype=torch.int32, device=device)
        return torch.empty_strided(spec.size, spec.stride, dtype=getattr(torch, spec.dtype), device=device)

    specs = problem.inputs()
    return [tensor(role, spec) for role, spec in zip(problem.entry.roles(len(specs)), specs, strict=False)]


def activations(problem: Problem, inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs that the module of ``product`` takes: each A."""
    return [tensor for role, tensor in zip(problem.roles(), inputs, strict=True) if role == Role.A]


def product(problem: Problem, inputs: Sequence[Any]) -> Any:
    """Return a module that multiplies by all inputs but each A: Inductor's C++ templates need a weight beforehand."""
    import torch

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.others = torch.nn.ParameterList(
                torch.nn.Parameter(tensor, requires_grad=False)
                for role, tensor in zip(problem.roles(), inputs, strict=True)
                if role != Role.A
            )

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            first, others = iter(given), iter(self.others)
            found: torch.Tensor = call(problem, [next(first if role == Role.A else others) for role in problem.roles()])
            return found

    return Product()


def call(problem: Problem, tensors: Sequence[Any]) -> Any:
    """Return what torch computes for a problem from its inputs in order."""
    import torch

    entry, scalars = OPS[problem.op], dict(problem.scalars)
    function = getattr(torch, entry.function or entry.name)
    if entry.products > 1:
        return reduce(torch.add, (function(a, b) for a, b in zip(tensors[::2], tensors[1::2], strict=True)))
    given = list(zip(problem.roles(), tensors, strict=True))
    keywords = {} if entry.has_bias else {_KEYWORDS[Role(role)]: each for role, each in given if role in _KEYWORDS}
    if entry.is_scaled:
        keywords["use_fast_accum"] = bool(scalars.get("use_fast_accum"))
        keywords["out_dtype"] = getattr(torch, str(scalars["out_dtype"]))
    return function(*(each for role, each in given if entry.has_bias or role not in _KEYWORDS), **keywords)
