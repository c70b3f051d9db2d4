"""The roofline: the least time a device needs for a matrix product, by its published peaks.

The longer of arithmetic at peak and memory at full bandwidth (Williams et al., "Roofline", 2009), plus the floor of a
launch. ``views/roofline_sql.py`` makes the same figures in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_store.ops.work import bytes_read, bytes_written, flops, is_int8, itemsize
from diode_store.values.units import US_PER_S

if TYPE_CHECKING:
    from diode_store.devices.descriptor import Descriptor
    from diode_store.records import ProblemShape

LAUNCH_US = 2.0
"""Floor of the roofline: no GEMM was seen to take much less, however small (H200)."""


@dataclass(frozen=True)
class Roofline:
    """Work of one problem on one device, and its times at the peaks."""

    itemsize: int
    flops: float
    bytes_moved: float
    compute_s: float
    memory_s: float

    @property
    def us(self) -> float:
        """The bound in microseconds."""
        return US_PER_S * max(self.compute_s, self.memory_s) + LAUNCH_US


def roofline(shape: ProblemShape, device: Descriptor, *, only_output: bool = False) -> Roofline:
    """Return the roofline of ``shape`` on ``device``; the peak is TF32's if TF32 is allowed.

    Args:
        shape: the problem.
        device: its peaks.
        only_output: count only writes as memory traffic, not reads.
    """
    size = itemsize(shape.dtype)
    work = float(flops(shape))
    bytes_moved = float(bytes_written(shape) + (0 if only_output else bytes_read(shape)))
    return Roofline(
        itemsize=size,
        flops=work,
        bytes_moved=bytes_moved,
        compute_s=work / device.peak_flops(size, tf32=shape.tf32, is_integer=is_int8(shape.dtype)),
        memory_s=bytes_moved / device.memory_bandwidth,
    )
