"""Values of the inputs that Inductor benchmarks with.

Inductor makes random floats, which suit most operands: float8 is cast from a normal distribution. It makes scales of
either sign, integers that are all zero, and groups of equal length. The sweep writes its own values over these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from diode_collectors.sweep.lane.attention import AttentionReference, give_mask
from diode_collectors.sweep.lane.benchmark import Reference
from diode_store.ops import OPS, Role
from diode_store.ops.inputs import ends_of_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.records import Problem

_LEAST_SCALE = 0.5
_INT8_END = 128


def give_values(problem: Problem, inputs: Sequence[Any]) -> None:
    """Write offsets, positive scales, integers and masks over the inputs of a problem.

    The same call gives the same values, because Inductor prepares tensors for vendor kernels and for templates apart.
    """
    if OPS[problem.op].is_attention:
        give_mask(problem, inputs)
        return
    for number, (role, tensor) in enumerate(zip(problem.roles(), inputs, strict=False)):
        values = _values(problem, role, tensor, number)
        if values is not None:
            tensor.copy_(values)


def _values(problem: Problem, role: str, tensor: Any, seed: int) -> Any:
    import torch

    generator = torch.Generator(tensor.device).manual_seed(seed)
    if role == Role.OFFSETS:
        return torch.tensor(ends_of_groups(problem.shape), dtype=tensor.dtype, device=tensor.device)
    if role in {Role.SCALE_A, Role.SCALE_B}:
        return torch.rand(tensor.shape, generator=generator, device=tensor.device) + _LEAST_SCALE
    if tensor.dtype is torch.int8:
        bounds = -_INT8_END, _INT8_END
        return torch.randint(*bounds, tensor.shape, generator=generator, dtype=torch.int8, device=tensor.device)
    return None


class Expected(Protocol):
    """Knows what the kernels of a problem should compute."""

    def error_of(self, output: Any, *, is_vendor: bool) -> float | None:
        """Return the relative error of an output; None if it is not compared."""


def reference_for(problem: Problem, inputs: Sequence[Any]) -> Expected:
    """Return what the kernels of a problem should compute from the inputs that they are timed with."""
    return AttentionReference(problem, inputs) if OPS[problem.op].is_attention else Reference()


def clear(output: Any, *, is_vendor: bool) -> None:
    """Write over an output what no kernel computes; zeros for a vendor kernel, which may leave the output alone."""
    if is_vendor:
        output.zero_()
    elif output.is_floating_point():
        output.fill_(float("nan"))
    else:
        import torch

        output.fill_(torch.iinfo(output.dtype).min)
