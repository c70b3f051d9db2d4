"""Kernels that are the same for any number of stages, because Triton does not pipeline their loop over K.

Inductor lists each block size with up to five numbers of stages, and compiles and times all of them. Without pipelining
these are one kernel under several names: their PTX is the same, and bundled times differ by noise only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, overload

import numpy as np

from diode_store.candidates.default_space import TEMPLATES, GemmConfig
from diode_store.candidates.operands import row_lengths
from diode_store.devices.known import NVIDIA
from diode_store.ops.work import itemsize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.candidates.operands import Operands
    from diode_store.kernels import KernelConfig

NARROWEST_ASYNC_BYTES = 4
"""Bytes of the narrowest cp.async (PTX ISA); Triton does not pipeline loads that are narrower."""
_UNKNOWN_STRIDE = "s"
_OF_A_KERNEL = ("template_index", "block_m", "block_n", "block_k", "group_m", "num_warps", "allow_tf32")
"""Columns that tell kernels without a pipelined loop apart."""


@overload
def is_pipelined(shape: Operands, block_k: int, vendor: str) -> bool: ...
@overload
def is_pipelined(shape: Operands, block_k: NDArray[np.integer], vendor: str) -> NDArray[np.bool_]: ...
def is_pipelined(shape: Operands, block_k: int | NDArray[np.integer], vendor: str) -> bool | NDArray[np.bool_]:
    """Return whether Triton pipelines the loop over K, so that the number of stages makes a difference.

    On NVIDIA devices Triton does not pipeline a loop of one iteration. Nor does it pipeline if the rows of both
    operands are too narrow for cp.async, such as an odd number of half-precision elements. Other vendors' compilers
    were not examined.

    Args:
        shape: problem whose sizes are constants in the kernel.
        block_k: BLOCK_K of one kernel of ``TEMPLATES``, or of many.
        vendor: vendor of the device.
    """
    is_nvidia = vendor == NVIDIA
    return (block_k < (shape.k if is_nvidia else np.inf)) & (not (is_nvidia and _has_narrow_rows(shape)))


def _has_narrow_rows(shape: Operands) -> bool:
    """Return whether both operands have narrow rows; a vector has one row, along K."""
    if _UNKNOWN_STRIDE in shape.layout:
        return False
    lengths = (
        shape.k if is_vector else length
        for is_vector, length in zip((shape.m == 1, shape.n == 1), row_lengths(shape), strict=True)
    )
    item_bytes = itemsize(shape.dtype)
    return all(length * item_bytes % NARROWEST_ASYNC_BYTES for length in lengths)


def gemm_kernel(config: GemmConfig, shape: Operands, vendor: str) -> GemmConfig:
    """Return a config of a plain template, with one stage if every number of stages compiles to the same kernel."""
    return config if is_pipelined(shape, config.block_k, vendor) else config._replace(num_stages=1)


def kernel_of(config: KernelConfig, shape: Operands, vendor: str) -> KernelConfig:
    """Return ``config``, with one stage if every number of stages compiles to the same kernel."""
    if config.template not in TEMPLATES or config.block_k is None or is_pipelined(shape, config.block_k, vendor):
        return config
    return replace(config, num_stages=1)


def kernels_of(columns: ConfigColumns, shape: Operands, vendor: str) -> NDArray[np.intp] | None:
    """Return a number for each of n configs, equal for configs that are one kernel, shape (n,); None if all differ.

    Two configs with equal columns differ in something without a column, such as the type of the accumulators. Such
    configs are never merged.
    """
    if is_pipelined(shape, columns.largest_block_k, vendor):  # true for most products
        return None
    is_named_often = ~is_pipelined(shape, columns.block_k, vendor) & columns.template_mask(TEMPLATES.__contains__)
    unpipelined = np.flatnonzero(is_named_often)
    if len(unpipelined) < 2:  # noqa: PLR2004 - one is its own
        return None
    kernel = np.zeros(len(unpipelined), dtype=np.int64)
    for name in _OF_A_KERNEL:
        numbers = getattr(columns, name)[unpipelined].astype(np.int64)
        kernel = kernel * (numbers.max() + 1) + numbers
    _, first, group = np.unique(kernel, return_index=True, return_inverse=True)
    stages = columns.num_stages[unpipelined].astype(np.int64)
    _, named, times = np.unique(group * (stages.max() + 1) + stages, return_inverse=True, return_counts=True)
    is_mixed = np.zeros(len(first), dtype=np.bool_)
    is_mixed[group[times[named] > 1]] = True
    kernels = np.arange(len(columns))
    is_one = ~is_mixed[group]
    kernels[unpipelined[is_one]] = unpipelined[first[group[is_one]]]
    return kernels
