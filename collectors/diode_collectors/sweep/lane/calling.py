"""The call that a sweep compiles: a module that computes one product of real tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_store.ops import OPS, Role
from diode_store.ops.inputs import ends_of_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

    compute, roles = caller(problem), problem.roles()
    # The module gets each A first, then the others.
    order = sorted(range(len(roles)), key=lambda place: roles[place] != Role.A)
    places = [order.index(place) for place in range(len(roles))]

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.others = torch.nn.ParameterList(
                torch.nn.Parameter(tensor, requires_grad=False)
                for role, tensor in zip(problem.roles(), inputs, strict=True)
                if role != Role.A
            )

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            all_inputs = (*given, *self.others)
            found: torch.Tensor = compute(*[all_inputs[place] for place in places])
            return found

    return Product()


def caller(problem: Problem) -> Callable[..., Any]:
    """Return a function from a problem's inputs in order to torch's result; Dynamo traces only the call."""
    import torch

    entry, scalars, roles = OPS[problem.op], dict(problem.scalars), problem.roles()
    function = getattr(torch, entry.function or entry.name)
    if entry.products > 1:
        return lambda a, b, c, d: torch.add(function(a, b), function(c, d))
    fixed: dict[str, Any] = {}
    if entry.is_scaled:
        fixed["use_fast_accum"] = bool(scalars.get("use_fast_accum"))
        fixed["out_dtype"] = getattr(torch, str(scalars["out_dtype"]))
    named = next((place for place, role in enumerate(roles) if role in _KEYWORDS), None)
    if entry.has_bias or named is None:
        return lambda *tensors: function(*tensors, **fixed)
    name = _KEYWORDS[Role(roles[named])]
    return lambda *tensors: function(*tensors[:named], *tensors[named + 1 :], **{name: tensors[named]}, **fixed)
