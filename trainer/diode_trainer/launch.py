"""How a GEMM kernel occupies a device: tiles, waves, shared memory, registers and rough times.

An analytical sketch, not a simulator: its figures are inputs of a learned model, which corrects them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diode_store.operands import row_lengths
from diode_store.pipelining import NARROWEST_ASYNC_BYTES
from diode_store.records import is_vendor_template

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.columns import ConfigColumns
    from diode_store.records import ProblemShape
    from diode_trainer.descriptor import Descriptor

    Floats = NDArray[np.float32]

ITEMSIZES = {
    **dict.fromkeys(("float64", "int64"), 8),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16"), 2),
    **dict.fromkeys(("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}
"""Bytes of one element."""

LAUNCH_US = 2.0
"""Floor of the roofline: no GEMM was seen to take much less, however small (H200)."""
_TILE_LATENCY_US = 1.0
"""Prologue and epilogue of one output tile, order of magnitude (H200)."""
_ITERATION_LATENCY = 0.7
"""What a K iteration adds to that when nothing hides it, as a share: one round trip to memory."""
_ISSUE_US = 2e-3
"""A multiprocessor issues a warp's load every few cycles, order of magnitude."""
_BYTES_IN_FLIGHT = 32_768.0
"""Loads a multiprocessor keeps outstanding at full bandwidth (Little's law: 36 GB/s x 0.9 us)."""
_WIDEST_ACCESS = 16
"""Bytes of the widest global load (PTX ld.global.v4.b32)."""
_WARP = 32
_OTHER_REGISTERS = 30.0
"""Registers a thread needs beside those below, which are rough: they fit 3,845 kernels of the bundled measurements, as
Triton 3.6 and ptxas compile them for sm_90, to a quarter where rows are aligned and to a half where they are not
(standard deviation), and tell 74 of 113 that spill 256 bytes or more, at 58 false alarms."""
_PER_ACCUMULATOR = 1.1
_PER_OPERAND = 0.4
"""For each register of an operand tile, where mma takes it from registers; wgmma reads shared memory."""
_PER_NARROW_LOAD = 1.0
"""For each load that goes through registers, being too narrow for cp.async: its value and its address."""
_PER_UNROLLED = 0.6
"""Without tensor cores the loop over a tile's K is unrolled: for each of its steps and the root of the accumulators."""
_PER_UNROLLED_ALONE = 1.0
"""Likewise, where K is one tile, so that its loads are unrolled with it."""
MOST_REGISTERS = 255
"""Registers a thread can address (CUDA C programming guide)."""
_RESERVED_SHARED_MEMORY = 1024
"""Bytes CUDA keeps of every block's shared memory (CUDA C programming guide, compute capability 8.0 on)."""
_MOST_BLOCKS = 32
"""Resident blocks of one multiprocessor (CUDA C programming guide)."""
_WGMMA_ROWS = 64
"""Rows of a warp group's tensor-core instruction (PTX wgmma.mma_async m64nNk16)."""
_WGMMA_WARPS = 4
_K_CONTIGUOUS = "nt"
"""The layout of which both operands have K contiguous."""
_HALF = 2
"""Bytes of a half-precision element."""

_EFFICIENCY = np.array([0.7, 0.5, 0.8, 0.2], dtype=np.float32)
"""Share of the peak that a tile reaches, by what computes it: no tensor cores, mma, wgmma, wgmma that turns over."""

# What an absent parameter is taken for, so that no formula divides by zero.
_NEUTRAL = {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_stages": 4, "num_warps": 8}


class Work:
    """What one problem requires of one device."""

    def __init__(self, shape: ProblemShape, device: Descriptor) -> None:
        self.shape = shape
        self.device = device
        self.itemsize = ITEMSIZES.get(shape.dtype, 4)
        self.flops = 2.0 * shape.b * shape.m * shape.n * shape.k
        elements = shape.m * shape.k + shape.k * shape.n + shape.m * shape.n
        self.bytes_moved = float(self.itemsize * shape.b * elements)
        self.compute_s = self.flops / device.peak_flops(self.itemsize, tf32=shape.tf32)
        self.memory_s = self.bytes_moved / device.memory_bandwidth
        self.roofline_us = 1e6 * max(self.compute_s, self.memory_s) + LAUNCH_US
        self.access_a, self.access_b, self.access_c = (
            widest_access(extent, self.itemsize) for extent in (*row_lengths(shape), shape.n)
        )


def widest_access(extent: int, itemsize: int) -> int:
    """Return the bytes of the widest load that rows of ``extent`` elements keep aligned, at most 16."""
    return min((extent & -extent) * itemsize, _WIDEST_ACCESS)


class Launch:
    """How each of n configs would run one problem; every array has shape (n,)."""

    def __init__(self, work: Work, columns: ConfigColumns) -> None:
        self.work = work
        self.vendor = columns.template_mask(is_vendor_template)
        self.tma = columns.template_mask(_is_tma)
        self.allow_tf32 = columns.allow_tf32
        self.block_m, self.block_n, self.block_k, self.group_m, self.stages, self.warps = _numbers(columns)
        is_half = np.bool_(work.itemsize <= _HALF)
        # Of float32 the tensor cores take TF32 alone.
        self.tensor_cores = is_half | (self.allow_tf32 & np.bool_(work.shape.dtype == "float32"))
        large = (self.block_m >= _WGMMA_ROWS) & (self.warps >= _WGMMA_WARPS)
        self.wgmma = self.tensor_cores & large & work.device.architecture.has_wgmma
        # wgmma reads TF32 with K contiguous only (PTX wgmma.mma_async); Triton turns the other layouts over first.
        self.turns_over = self.wgmma & ~is_half & np.bool_(work.shape.layout != _K_CONTIGUOUS)
        self._tile()
        self._occupy()
        self._time()

    def _tile(self) -> None:
        shape = self.work.shape
        self.tiles_m = np.ceil(shape.m / self.block_m)
        self.tiles_n = np.ceil(shape.n / self.block_n)
        self.k_iterations = np.ceil(shape.k / self.block_k)
        self.tiles = shape.b * self.tiles_m * self.tiles_n
        self.block_waves = self.tiles / np.float32(self.work.device.multiprocessors)
        self.busiest = np.ceil(self.block_waves)
        """Tiles of the busiest multiprocessor."""

    def _occupy(self) -> None:
        work, architecture = self.work, self.work.device.architecture
        bytes_a = work.itemsize * self.block_m * self.block_k
        bytes_b = work.itemsize * self.block_n * self.block_k
        self.operand_bytes = bytes_a + bytes_b
        """Bytes of one A tile and one B tile."""
        self.buffers_a, self.buffers_b = self._pipeline_buffers()
        self.shared_memory = bytes_a * self.buffers_a + bytes_b * self.buffers_b
        self.outstanding = self.shared_memory - bytes_a * (self.buffers_a > 1) - bytes_b * (self.buffers_b > 1)
        """Bytes of loads that a block keeps under way."""
        threads = _WARP * self.warps
        self.accumulators = self.block_m * self.block_n / threads
        loads_a = np.maximum(bytes_a / (work.access_a * threads), 1)
        loads_b = np.maximum(bytes_b / (work.access_b * threads), 1)
        self.loads = loads_a + loads_b
        """Load instructions of a thread in an iteration."""
        self.loads[self.tma] = 1
        self.demand = self._register_demand(threads, loads_a, loads_b)
        """Registers a thread would like to have, which may be more than there are."""
        registers = np.minimum(self.demand, MOST_REGISTERS)
        blocks = np.minimum(
            architecture.shared_memory_bytes / (self.shared_memory + _RESERVED_SHARED_MEMORY),
            np.minimum(architecture.registers / (registers * threads), architecture.threads / threads),
        )
        # A persistent kernel starts one block on every multiprocessor.
        self.occupancy = np.maximum(np.minimum(np.floor(blocks), _MOST_BLOCKS), 1)
        self.occupancy[self.tma] = 1
        self.waves = self.block_waves / self.occupancy
        self.resident = np.minimum(self.occupancy, self.busiest)

    def _pipeline_buffers(self) -> tuple[Floats, Floats]:
        """Return how many copies of a tile of A and of B Triton's software pipeline keeps in shared memory.

        With wgmma the tensor cores still read a stage while the next is loaded, so it needs all of them, else one
        less; loops of one iteration are not pipelined. Nor are the loads of an operand that are too narrow for
        cp.async, whatever those of the other. Fits what compiled and what ran out of shared memory in the bundled
        H200 measurements.
        """
        pipelined: Floats = np.maximum(self.stages - ~self.wgmma, 1)
        pipelined[~self.tma & (self.k_iterations <= 1)] = 1
        narrow = np.where(self.tma, pipelined, 1)
        wide_a, wide_b = (access >= NARROWEST_ASYNC_BYTES for access in (self.work.access_a, self.work.access_b))
        return pipelined if wide_a else narrow, pipelined if wide_b else narrow

    def _register_demand(self, threads: Floats, loads_a: Floats, loads_b: Floats) -> Floats:
        work = self.work
        operands = self.operand_bytes * (_PER_OPERAND / 4) / threads
        operands[self.wgmma] = 0
        if work.itemsize > _HALF:
            per_step = np.where(self.k_iterations <= 1, _PER_UNROLLED_ALONE, _PER_UNROLLED)
            unrolled = per_step * self.block_k * np.sqrt(self.accumulators)
            operands = np.where(self.tensor_cores, operands, unrolled)
        demand: Floats = self.accumulators * _PER_ACCUMULATOR + operands + _OTHER_REGISTERS
        for access, loads in ((work.access_a, loads_a), (work.access_b, loads_b)):
            if access < NARROWEST_ASYNC_BYTES:
                demand += _PER_NARROW_LOAD * loads * ~self.tma
        return demand

    def _time(self) -> None:
        work, device = self.work, self.work.device
        flops = (
            np.where(
                self.allow_tf32,
                np.float32(device.peak_flops(work.itemsize, tf32=True)),
                np.float32(device.peak_flops(work.itemsize)),
            )
            / device.multiprocessors
        )
        # Each kind is one of those before it.
        efficiency = _EFFICIENCY[self.tensor_cores.astype(np.intp) + self.wgmma + self.turns_over]
        tile_flops = 2e6 * self.block_m * self.block_n * self.block_k
        self.compute_us = self.busiest * self.k_iterations * tile_flops / (flops * efficiency)
        self.traffic = self.tiles * self.k_iterations * self.operand_bytes
        """Bytes read through L2."""
        self.busy = np.minimum(self.block_waves, 1)
        """Share of the multiprocessors that have a tile at all."""
        self.l2_us = self.traffic * (1e6 / (device.architecture.l2_bandwidth * device.multiprocessors)) / self.busy
        resident = np.minimum(self.block_waves, self.resident)
        self.in_flight = resident * self.outstanding
        """Bytes of loads outstanding on a multiprocessor."""
        self.memory_us = 1e6 * work.memory_s * np.maximum(1, _BYTES_IN_FLIGHT / self.in_flight)
        # An iteration waits for the operand that is loaded last.
        hidden = np.minimum(np.minimum(self.buffers_a, self.buffers_b), self.k_iterations)
        per_tile = 1 + self.k_iterations * _ITERATION_LATENCY / hidden
        self.latency_us = np.ceil(self.waves) * _TILE_LATENCY_US * per_tile
        self.issue_us = self.busiest * self.k_iterations * self.loads * (self.warps * _ISSUE_US)
        slowest = np.maximum(
            np.maximum(self.compute_us, self.l2_us),
            np.maximum(self.memory_us, self.latency_us),
        )
        self.estimate_us = slowest + LAUNCH_US
        self.stores = np.maximum(self.accumulators * (self.work.itemsize / self.work.access_c), 1)
        """Store instructions of a thread at the end of a tile; as many loads where something is added."""


def _is_tma(template: str) -> bool:
    return "tma" in template


def _numbers(columns: ConfigColumns) -> Floats:
    """Return a row for each of ``_NEUTRAL``, shape (6, n)."""
    numbers = np.empty((len(_NEUTRAL), len(columns)), dtype=np.float32)
    for row, name in zip(numbers, _NEUTRAL, strict=True):
        row[:] = getattr(columns, name)
    np.copyto(numbers, np.array([[neutral] for neutral in _NEUTRAL.values()], dtype=np.float32), where=numbers <= 0)
    return numbers
