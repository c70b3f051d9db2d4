"""The call that a sweep compiles: a module that computes one product of real tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.calls import add_call
from diode_store.ops import Role
from diode_store.ops.inputs import ends_of_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_collectors.problems.problem import SweepProblem
    from diode_store.records import Problem


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
    """Return a module that multiplies by all inputs but each A: Inductor's C++ templates need a weight beforehand.

    The module is a graph, because Dynamo does not follow every way to pass arguments on.
    """
    import torch

    root, graph = torch.nn.Module(), torch.fx.Graph()
    roles, nodes = problem.roles(), []
    for place, (role, tensor) in enumerate(zip(roles, inputs, strict=True)):
        name = f"input_{place}"
        if role == Role.A:
            nodes.append(graph.placeholder(name))
        else:
            root.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
            nodes.append(graph.get_attr(name))
    graph.output(add_call(graph, problem, nodes))
    return torch.fx.GraphModule(root, graph)
