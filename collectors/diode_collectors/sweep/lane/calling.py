"""The call that a sweep compiles: a module that computes one product of real tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.calls import add_call
from diode_collectors.sweep.lane.attention import attention_call
from diode_store.ops import OPS, Role
from diode_store.ops.attending import BACKWARD
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


def compile_and_call(problem: Problem, inputs: Sequence[Any], options: dict[str, Any]) -> None:
    """Compile the call of a problem and run it; with gradients for the kernel that computes them.

    On a GPU autograd would compile the gradients in a thread of its own, where Inductor has its stock choices.

    Raises:
        Exception: torch raised it.
    """
    import torch

    has_gradients = problem.op == BACKWARD
    given = activations(problem, inputs)
    with torch.set_grad_enabled(has_gradients):
        compiled: Any = torch.compile(product(problem, inputs), options=options)
        if not has_gradients:
            compiled(*given)
            return
        output = compiled(*(tensor.requires_grad_() for tensor in given))
        with torch.autograd.set_multithreading_enabled(False):
            torch.autograd.grad(output, given, torch.ones_like(output))


def activations(problem: Problem, inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs that the call of ``product`` takes: each A, or all of attention."""
    if OPS[problem.op].is_attention:
        return list(inputs)
    return [tensor for role, tensor in zip(problem.roles(), inputs, strict=True) if role == Role.A]


def product(problem: Problem, inputs: Sequence[Any]) -> Any:
    """Return a module that multiplies by all inputs but each A: Inductor's C++ templates need a weight beforehand.

    The module is a graph, because Dynamo does not follow every way to pass arguments on. Attention is a function.
    """
    import torch

    if OPS[problem.op].is_attention:
        return attention_call(problem, str(inputs[0].device))
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
