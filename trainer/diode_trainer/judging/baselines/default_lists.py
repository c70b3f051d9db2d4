"""Inductor's DEFAULT search spaces of all ops, as data.

From ``torch/_inductor/template_heuristics/triton.py`` of PyTorch 2.13.0 (BSD-3-Clause).
``diode_store.candidates.grouped_space`` has the list of grouped products.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from diode_store.candidates.default_space import TEMPLATES, GemmConfig, default_configs, largest_block, scaled
from diode_store.candidates.grouped_space import grouped_configs
from diode_store.ops import OPS
from diode_store.ops.scaling import ROW, TENSOR, recipes_of
from diode_store.ops.work import itemsize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diode_store.records import ProblemShape

_SMALLEST_BLOCK_K = 32
"""Smallest BLOCK_K of 8-bit operands."""

_INT8 = tuple(
    GemmConfig(*numbers)
    for numbers in (
        (64, 64, 32, 2, 4),
        (64, 128, 32, 3, 4),
        (128, 64, 32, 3, 4),
        (64, 128, 32, 4, 8),
        (128, 64, 32, 4, 8),
        (64, 32, 32, 5, 8),
        (32, 64, 32, 5, 8),
        (128, 128, 32, 2, 8),
        (64, 64, 64, 3, 8),
        (128, 256, 128, 3, 8),
        (256, 128, 128, 3, 8),
    )
)
_TWO_PRODUCTS = tuple(
    GemmConfig(*numbers)
    for numbers in (
        (64, 64, 32, 2, 4),
        (64, 64, 32, 3, 8),
        (64, 64, 32, 4, 16),
        (64, 32, 32, 4, 8),
        (32, 64, 32, 4, 8),
        (128, 128, 32, 1, 8),
        (64, 64, 64, 1, 8),
        (32, 32, 128, 1, 8),
        (64, 64, 16, 2, 4),
        (32, 32, 16, 1, 2),
    )
)
_WARPS_OF_NARROW = {32: 2, 64: 2, 128: 4, 256: 4}
_SCALED = (
    *(
        GemmConfig(m, n, 32, stages, warps)
        for m, n, stages, warps in (
            (128, 256, 3, 8),
            (256, 128, 3, 8),
            (256, 64, 4, 4),
            (64, 256, 4, 4),
            (128, 128, 4, 4),
            (128, 64, 4, 4),
            (64, 128, 4, 4),
            (128, 32, 4, 4),
            (64, 32, 5, 2),
        )
    ),
    *(
        GemmConfig(m, n, 128, stages, warps)
        for m, n, stages, warps in (
            (256, 128, 3, 8),
            (256, 64, 4, 4),
            (64, 256, 4, 4),
            (128, 128, 4, 4),
            (64, 128, 2, 4),
            (64, 128, 3, 4),
            (128, 128, 2, 4),
            (128, 256, 4, 8),
            (256, 128, 2, 4),
            (256, 128, 2, 8),
        )
    ),
    *(
        GemmConfig(m, n, 64, stages, warps)
        for m, n, stages, warps in (
            (128, 64, 4, 4),
            (64, 128, 4, 4),
            (128, 32, 4, 4),
            (64, 32, 5, 2),
        )
    ),
    GemmConfig(64, 16, 256, 5, 4),
    GemmConfig(64, 32, 256, 5, 4),
    *(
        GemmConfig(m, n, k, stages, warps)
        for stages, m, k in product(range(2, 7), (16, 32), (32, 64))
        for n, warps in _WARPS_OF_NARROW.items()
    ),
)
_SCALED_TMA = tuple(
    GemmConfig(*numbers)
    for numbers in (
        (128, 128, 64, 3, 8),
        (128, 128, 128, 3, 8),
        (128, 128, 128, 4, 8),
        (128, 128, 128, 4, 4),
        (128, 128, 128, 3, 4),
        (128, 128, 128, 5, 4),
        (128, 128, 128, 5, 8),
        (128, 128, 128, 6, 8),
        (128, 128, 64, 4, 8),
        (64, 32, 256, 5, 4),
        (128, 256, 128, 3, 8),
        (64, 128, 256, 4, 4),
        (64, 256, 128, 4, 4),
    )
)
_SCALES_IN_LOOP = "triton::scaled_mm_device_tma_main_loop_scaling"


def default_lists(shape: ProblemShape, shared_memory_bytes: int) -> Mapping[str, frozenset[GemmConfig]]:
    """Return the list of each template for a problem.

    Args:
        shape: problem.
        shared_memory_bytes: shared memory of a block on the device.
    """
    entry = OPS[shape.op]
    if entry.is_grouped:
        return {entry.template: frozenset(grouped_configs(shape, shared_memory_bytes))}
    if entry.is_scaled:
        is_epilogue = set(recipes_of(shape.dimension("scaling", TENSOR))) <= {TENSOR, ROW}
        listed, template = (_SCALED, entry.template) if is_epilogue else (_SCALED_TMA, _SCALES_IN_LOOP)
        return {template: _scaled_to(shape, listed)}
    if entry.products > 1:
        return {entry.template: frozenset(config for config in _TWO_PRODUCTS if config.block_k < shape.k)}
    if itemsize(shape.dtype) == 1:
        return {entry.template: _scaled_to(shape, _INT8)}
    return dict.fromkeys(TEMPLATES, default_configs(shape))


def _scaled_to(shape: ProblemShape, configs: Iterable[GemmConfig]) -> frozenset[GemmConfig]:
    """Return configs with their blocks limited to an 8-bit problem's sizes."""
    most = largest_block(shape.m), largest_block(shape.n), max(largest_block(shape.k), _SMALLEST_BLOCK_K)
    return frozenset(scaled(config, most) for config in configs)
