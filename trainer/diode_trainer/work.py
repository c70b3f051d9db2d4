"""Demands of one problem on one device, and the properties of a problem that a list's terms depend on."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from diode_store.candidates.operands import row_lengths
from diode_store.ops import OPS
from diode_store.ops.scaling import recipes_of, scale_size
from diode_store.ops.work import itemsize
from diode_store.timing.roofline import roofline
from diode_trainer.groups import groups_of

if TYPE_CHECKING:
    from diode_store.candidates.columns import ConfigColumns
    from diode_store.devices.descriptor import Descriptor
    from diode_store.records import ProblemShape

NEUTRAL_BLOCK_K = 64
"""BLOCK_K of a config without one."""
_WIDEST_ACCESS = 16
"""Bytes of the widest global load (PTX ld.global.v4.b32)."""
_SCALE_BYTES = 4
"""Bytes of one scale, which is a float32."""
FLOAT8 = "float8"
"""Beginning of the names of 8-bit floating-point dtypes."""


class Work:
    """Demands of one problem on one device."""

    def __init__(self, shape: ProblemShape, device: Descriptor) -> None:
        self.shape = shape
        self.device = device
        bound = roofline(shape, device)
        self.itemsize, self.flops, self.bytes_moved = bound.itemsize, bound.flops, bound.bytes_moved
        self.compute_s, self.memory_s, self.roofline_us = bound.compute_s, bound.memory_s, bound.us
        entry = OPS[shape.op]
        self.products = entry.products
        differs = shape.dimensions or entry.out_dtype
        self.out_itemsize = itemsize(shape.out_dtype) if differs else self.itemsize
        self.m: float = shape.m
        self.n: float = shape.n
        self.k: float = shape.k * self.products
        """Sizes that the tiles of one product cover; the exact mean of groups, and the K of all products."""
        self.groups = groups_of(shape) if shape.dimensions else None
        if shape.dimensions:
            self._count_traffic()
        a, b = row_lengths(shape)
        c = shape.n if self.groups is None or self.groups.dimension != _N else self.groups.total
        self.access_a, self.access_b = widest_access(a, self.itemsize), widest_access(b, self.itemsize)
        self.access_c = widest_access(c, self.out_itemsize)

    def kind(self, columns: ConfigColumns) -> Kind:
        """Return the properties that the terms of a list depend on."""
        shape = self.shape
        short_k = min(shape.k, max(columns.largest_block_k, NEUTRAL_BLOCK_K) + 1)
        access = (self.access_a, self.access_b, self.access_c)
        is_row = shape.m == 1 and self.groups is None
        return Kind(shape.dtype, shape.layout, access, short_k, is_row, self.device, self.out_itemsize, self.sums_apart)

    @property
    def recipes(self) -> tuple[str, ...]:
        """Scaling recipes of A and B; empty for products without scales."""
        scaling = self.shape.dimension("scaling")
        return recipes_of(scaling) if scaling else ()

    @cached_property
    def sums_apart(self) -> bool:
        """True if a kernel adds each iteration's float8 products to float32 accumulators of their own."""
        return self.shape.dtype.startswith(FLOAT8) and not self.shape.dimension("fast_accum", default=False)

    def tiles(self, block_m: int, block_n: int) -> int:
        """Return the number of output tiles of one size."""
        blocks = [-(-self.shape.m // block_m), -(-self.shape.n // block_n), 1]
        groups = self.groups
        if groups is None or groups.dimension == _K:
            return self.shape.b * blocks[0] * blocks[1]
        blocks[groups.dimension] = groups.blocks((block_m, block_n)[groups.dimension])
        return blocks[0] * blocks[1]

    def _count_traffic(self) -> None:
        """Count the operands of used groups alone, and the scales; the roofline stays what it is."""
        more, shape = 0.0, self.shape
        if self.groups is not None:
            groups = self.groups
            sizes = [self.m, self.n, self.k]
            sizes[groups.dimension] = groups.mean
            self.m, self.n, self.k = sizes
            assumed = min(groups.count, groups.total)
            idle = {0: self.n * self.k, 1: self.m * self.k, 2: 0}[groups.dimension]
            more -= idle * (assumed - groups.used) * self.itemsize
        for recipe, rows, is_b in zip(self.recipes, (shape.m, shape.n), (False, True), strict=False):
            rows_of_scale, columns = scale_size(recipe, rows, shape.k, is_b=is_b)
            more += _SCALE_BYTES * shape.b * rows_of_scale * columns
        self.bytes_moved += more
        self.memory_s += more / self.device.memory_bandwidth


_N, _K = 1, 2
"""Positions of N and K among M, N and K."""


def widest_access(extent: int, itemsize: int) -> int:
    """Return the bytes, at most 16, of the widest load that stays aligned in rows of ``extent`` elements."""
    return min((extent & -extent) * itemsize, _WIDEST_ACCESS)


class Kind(NamedTuple):
    """Properties of a problem and a device that the terms of a list depend on."""

    dtype: str
    layout: str
    access: tuple[int, int, int]
    """Bytes of the widest loads of A and B, and of the widest stores."""
    short_k: int
    """K if a config of the list may cover it in one iteration; else a number that none covers."""
    is_row: bool
    """True if A has one row."""
    device: Descriptor
    out_itemsize: int
    """Bytes of an element of the output."""
    sums_apart: bool
    """True as in ``Work.sums_apart``."""
