"""Inductor's DEFAULT search space for a plain matrix product, as data.

From ``torch/_inductor/template_heuristics/triton.py`` of PyTorch 2.13.0, ``BaseConfigHeuristic.mm_configs`` and
``_scale_mm_configs`` (BSD-3-Clause); 2.10 to 2.12 lack the last config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from diode_store.records import ProblemShape

TEMPLATES = frozenset({"triton::mm", "triton::bmm"})
"""Templates that the list is of."""
_SMALLEST_BLOCK = 16
_ELEMENTS_A_WARP = 256


class DefaultConfig(NamedTuple):
    """One config; GROUP_M is 8 for all."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    num_warps: int


DEFAULT_CONFIGS = (
    DefaultConfig(32, 32, 16, 1, 2),
    DefaultConfig(32, 32, 128, 2, 4),
    DefaultConfig(32, 64, 32, 5, 8),
    DefaultConfig(64, 32, 32, 5, 8),
    DefaultConfig(64, 32, 128, 5, 4),
    DefaultConfig(64, 64, 16, 2, 4),
    DefaultConfig(64, 64, 32, 2, 4),
    DefaultConfig(64, 64, 64, 3, 8),
    DefaultConfig(64, 64, 128, 5, 4),
    DefaultConfig(64, 128, 32, 3, 4),
    DefaultConfig(64, 128, 32, 4, 8),
    DefaultConfig(64, 128, 64, 3, 4),
    DefaultConfig(64, 128, 128, 4, 4),
    DefaultConfig(128, 64, 32, 3, 4),
    DefaultConfig(128, 64, 32, 4, 8),
    DefaultConfig(128, 128, 32, 2, 8),
    DefaultConfig(128, 128, 32, 3, 4),
    DefaultConfig(128, 128, 64, 3, 4),
    DefaultConfig(128, 128, 64, 5, 8),
    DefaultConfig(128, 128, 128, 4, 8),
    DefaultConfig(128, 256, 64, 4, 8),
)


def default_configs(shape: ProblemShape) -> frozenset[DefaultConfig]:
    """Return the list as Inductor scales it to one problem: no block larger than the problem, no idle warps."""
    return frozenset(_scaled(config, shape) for config in DEFAULT_CONFIGS)


def _scaled(config: DefaultConfig, shape: ProblemShape) -> DefaultConfig:
    block_m, block_n, block_k = (
        max(min(block, _next_power_of_2(size)), _SMALLEST_BLOCK)
        for block, size in zip(config[:3], (shape.m, shape.n, shape.k), strict=True)
    )
    warps = min(config.num_warps, block_m * block_n // _ELEMENTS_A_WARP)
    return DefaultConfig(block_m, block_n, block_k, config.num_stages, warps)


def _next_power_of_2(size: int) -> int:
    return 1 << (size - 1).bit_length()
