"""Inductor's list of Triton kernels for a CUDA device, on a machine without one.

On a CPU Inductor lists the vendor kernel alone. The heuristics of its CUDA templates need no device, so this module
asks them directly. Templates with TMA are left out, as Inductor itself leaves them out by default.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from diode_store.devices.capability import why_no_kernels
from diode_store.ops import OPS
from diode_store.ops.scaling import ROW, TENSOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch._inductor.kernel_inputs import KernelInputs
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_store.records import Hardware, Problem

_SCALED_LATE = (TENSOR, ROW)
"""Recipes for which Inductor lists the plain template: its epilogue applies the scales."""


def template_of(problem: Problem, device: Hardware | None) -> str | None:
    """Return the uid of the template that Inductor lists for a problem on a CUDA device; None if there is none."""
    entry = OPS.get(problem.op)
    if entry is None or (device is not None and why_no_kernels(problem.op, device)):
        return None
    return entry.template if problem.shape.dimension("scaling", TENSOR) in _SCALED_LATE else None


def listed(
    uid: str, op_name: str, inputs: KernelInputs, overrides: Mapping[str, Any]
) -> Iterator[KernelTemplateChoice]:
    """Yield the choices of a template.

    Args:
        uid: uid of the template.
        op_name: Inductor's name of the op.
        inputs: the op's inputs.
        overrides: arguments that the op sets for the template.
    """
    from torch._inductor.kernel_template_choice import make_ktc_generator  # needs the lowerings to be loaded first

    heuristic = heuristic_registry().get_template_heuristic(uid, "cuda", op_name)
    if find_spec("triton") is None:
        heuristic = copy.copy(heuristic)  # Inductor shares one object among all ops
        heuristic.triton_config = ListedConfig.made
    generator: Iterator[KernelTemplateChoice] = make_ktc_generator(
        template=_template(uid),
        cs=heuristic.get_template_configs(inputs, op_name),
        extra_kwargs=heuristic.get_extra_kwargs(inputs, op_name),
        overrides=dict(overrides),
        layout=inputs.output_layout(),
        inputs=inputs,
    )
    return generator


def heuristic_registry() -> Any:
    """Return Inductor's module with the heuristics of its templates."""
    try:
        from torch._inductor.heuristics.template import registry  # torch 2.14 and later
    except ImportError:
        from torch._inductor.template_heuristics import registry  # torch 2.13 and before
    return registry


@dataclass(frozen=True)
class ListedConfig:
    """Stand-in for ``triton.Config`` on a machine without Triton: the fields that Inductor reads to list configs."""

    kwargs: dict[str, Any]
    num_stages: int
    num_warps: int

    @classmethod
    def made(cls, num_stages: int, num_warps: int, **kwargs: Any) -> Self:
        """Return a config, from the arguments of a heuristic's ``triton_config``."""
        return cls(kwargs, num_stages, num_warps)


def _template(uid: str) -> Any:
    from torch._inductor.kernel import bmm, mm, mm_plus_mm  # registers lowerings, as every compile has done already

    known = (mm.mm_template, bmm.bmm_template, mm_plus_mm.mm_plus_mm_template)
    return next(template for template in known if template.uid == uid)
