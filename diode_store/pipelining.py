"""Which of Triton's kernels are the same whatever their number of stages: those whose loop over K is not pipelined.

Inductor lists each block size with up to five numbers of stages, and compiles and times all of them. Where the loop is
not pipelined they are one kernel under several names: their PTX is the same, and 16,817 bundled times of such kernels
lie 0.3% about their means (1,048 problems on an H200, standard deviation), which is noise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, overload

from diode_store.devices import NVIDIA
from diode_store.inductor_default import TEMPLATES, GemmConfig
from diode_store.operands import dtype_bytes, row_lengths

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from diode_store.kernels import KernelConfig
    from diode_store.operands import Operands

NARROWEST_ASYNC_BYTES = 4
"""Bytes of the narrowest cp.async (PTX ISA); Triton does not pipeline loads that are narrower."""
_UNKNOWN_STRIDE = "s"


@overload
def is_pipelined(shape: Operands, block_k: int, vendor: str) -> bool: ...
@overload
def is_pipelined(shape: Operands, block_k: NDArray[np.integer], vendor: str) -> NDArray[np.bool_]: ...
def is_pipelined(shape: Operands, block_k: int | NDArray[np.integer], vendor: str) -> bool | NDArray[np.bool_]:
    """Whether Triton pipelines the loop over K, such that its number of stages makes a kernel another one.

    It does not where there is but one iteration, nor, on NVIDIA's devices, where the rows of both operands are too
    narrow for cp.async, as those of an odd number of half-precision elements are.

    Args:
        shape: what is computed.
        block_k: BLOCK_K of a kernel of ``TEMPLATES``, or of many.
        vendor: of the device.
    """
    item_bytes = dtype_bytes(shape.dtype)
    are_known = vendor == NVIDIA and _UNKNOWN_STRIDE not in shape.layout
    narrow = are_known and all(length * item_bytes % NARROWEST_ASYNC_BYTES for length in row_lengths(shape))
    return (block_k < shape.k) & (not narrow)


def gemm_kernel(config: GemmConfig, shape: Operands, vendor: str) -> GemmConfig:
    """Return a config of a plain template, of one stage where every number of stages compiles to the same kernel."""
    return config if is_pipelined(shape, config.block_k, vendor) else config._replace(num_stages=1)


def kernel_of(config: KernelConfig, shape: Operands, vendor: str) -> KernelConfig:
    """Return ``config``, of one stage where every number of stages compiles to the same kernel."""
    if config.template not in TEMPLATES or config.block_k is None or is_pipelined(shape, config.block_k, vendor):
        return config
    return replace(config, num_stages=1)
