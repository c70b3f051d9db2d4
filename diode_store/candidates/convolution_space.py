"""Templates of convolutions whose results cannot be trusted."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from diode_store.kernels import is_vendor_template
from diode_store.ops import OPS
from diode_store.ops.convolving import numbers_of

if TYPE_CHECKING:
    from diode_store.kernels import KernelConfig
    from diode_store.records import ProblemShape

_MOST_WARPS = 4
"""Warps of a template with a loop over the kernel. With 8 Triton computes wrong results (triton-lang/triton#1254), and
torch 2.13 lists none; torch 2.11 still does.
"""


def why_not_trusted(shape: ProblemShape, config: KernelConfig) -> str | None:
    """Return why a kernel's results for a problem cannot be trusted; None if they can."""
    if not OPS[shape.op].is_convolution or is_vendor_template(config.template):
        return None
    if prod(numbers_of(shape.dimension("kernel", "1"))) == 1 or (config.num_warps or 0) <= _MOST_WARPS:
        return None
    return f"Triton computes wrong results with {config.num_warps} warps for a kernel larger than 1 x 1"
