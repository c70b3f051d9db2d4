"""Inductor's DEFAULT search space for a plain matrix product, as data, and how Inductor fits a config to a problem.

From ``torch/_inductor/template_heuristics/triton.py`` of PyTorch 2.13.0, ``BaseConfigHeuristic.mm_configs`` and
``_scale_mm_configs`` (BSD-3-Clause); 2.10 to 2.12 do not have the last config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from diode_store.kernels import KernelConfig
    from diode_store.records import ProblemShape

TEMPLATES = frozenset({"triton::mm", "triton::bmm"})
"""Templates whose configs the list holds."""
SMALLEST_BLOCK, LARGEST_BLOCK = 16, 256
"""Smallest and largest block of all lists."""
_ELEMENTS_PER_WARP = 256


class GemmConfig(NamedTuple):
    """The parameters of a template in Inductor's lists; GROUP_M is 8 for all."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    num_warps: int

    @classmethod
    def of(cls, config: KernelConfig) -> GemmConfig:
        """Return the parameters of a Triton kernel that the lists hold."""
        return cls(*(getattr(config, name) for name in cls._fields))


DEFAULT_CONFIGS = (
    GemmConfig(32, 32, 16, 1, 2),
    GemmConfig(32, 32, 128, 2, 4),
    GemmConfig(32, 64, 32, 5, 8),
    GemmConfig(64, 32, 32, 5, 8),
    GemmConfig(64, 32, 128, 5, 4),
    GemmConfig(64, 64, 16, 2, 4),
    GemmConfig(64, 64, 32, 2, 4),
    GemmConfig(64, 64, 64, 3, 8),
    GemmConfig(64, 64, 128, 5, 4),
    GemmConfig(64, 128, 32, 3, 4),
    GemmConfig(64, 128, 32, 4, 8),
    GemmConfig(64, 128, 64, 3, 4),
    GemmConfig(64, 128, 128, 4, 4),
    GemmConfig(128, 64, 32, 3, 4),
    GemmConfig(128, 64, 32, 4, 8),
    GemmConfig(128, 128, 32, 2, 8),
    GemmConfig(128, 128, 32, 3, 4),
    GemmConfig(128, 128, 64, 3, 4),
    GemmConfig(128, 128, 64, 5, 8),
    GemmConfig(128, 128, 128, 4, 8),
    GemmConfig(128, 256, 64, 4, 8),
)


def default_configs(shape: ProblemShape) -> frozenset[GemmConfig]:
    """Return the list as Inductor scales it to one problem."""
    most = largest_blocks(shape.m, shape.n, shape.k)
    return frozenset(scaled(config, most) for config in DEFAULT_CONFIGS)


def largest_blocks(m: int, n: int, k: int) -> tuple[int, int, int]:
    """Return the largest sensible block along each dimension: the dimension's size as a power of two, at least 16."""
    return largest_block(m), largest_block(n), largest_block(k)


def largest_block(size: int) -> int:
    """Return the largest block that makes sense along one dimension."""
    return max(1 << (size - 1).bit_length(), SMALLEST_BLOCK)


def scaled(config: GemmConfig, most: tuple[int, int, int]) -> GemmConfig:
    """Return ``config`` with its blocks limited to ``most``, and without idle warps."""
    m, n, k = (min(block, limit) for block, limit in zip(config[:3], most, strict=True))
    return GemmConfig(m, n, k, config.num_stages, min(config.num_warps, m * n // _ELEMENTS_PER_WARP))
