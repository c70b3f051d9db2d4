"""Analytical sketch of how a GEMM kernel occupies a device: tiles, waves, shared memory, registers and rough times.

The figures are not a simulation. They are features of a learned model, which corrects them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from diode_store.candidates.pipelining import NARROWEST_ASYNC_BYTES
from diode_store.ops import OPS
from diode_store.ops.grouping import DEPTH
from diode_store.ops.work import is_int8, itemsize
from diode_store.records import is_vendor_template
from diode_store.timing.roofline import LAUNCH_US
from diode_trainer.work import FLOAT8, NEUTRAL_BLOCK_K

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import ProblemShape
    from diode_trainer.groups import Groups
    from diode_trainer.work import Kind, Work

    Floats = NDArray[np.float32]

_ITERATION_LATENCY = 0.7
"""Latency of an exposed K iteration (a round trip to memory), as a share of an output tile's prologue and epilogue."""
_ISSUE_US = 2e-3
"""Order of magnitude of the time in which a multiprocessor issues a warp's load."""
BYTES_IN_FLIGHT = 32_768.0
"""Outstanding loads of a multiprocessor at full bandwidth (Little's law: 36 GB/s x 0.9 us)."""
_WARP = 32
_OTHER_REGISTERS = 30.0
"""Registers of a thread beside those below. These coefficients are rough fits to kernels that Triton and ptxas compiled
for sm_90.
"""
_PER_ACCUMULATOR = 1.1
_PER_OPERAND = 0.4
"""Per register of an operand tile that mma reads from registers; wgmma reads shared memory."""
_PER_NARROW_LOAD = 1.0
"""Per load through registers (its value and address), for loads too narrow for cp.async."""
_PER_UNROLLED = 0.6
"""Per step of the unrolled loop over a tile's K without tensor cores, times the root of the accumulators."""
_PER_UNROLLED_ALONE = 1.0
"""The same if K is one tile, which unrolls its loads as well."""
_PER_SCALED = 0.85
"""Per element of the operand tiles that a kernel multiplies by their scales in registers, in each iteration."""
MOST_SECONDS = 3.0
"""Longest acceptable compile time; slower kernels have so many products per thread that they run out of registers."""
_BASE_S = 0.3
_S_PER_PRODUCT = 1.33e-3
MOST_REGISTERS = 255
"""Registers a thread can address (CUDA C programming guide)."""
_RESERVED_SHARED_MEMORY = 1024
"""Bytes of shared memory that CUDA reserves per block (CUDA C programming guide, compute capability 8.0 on)."""
_MOST_BLOCKS = 32
"""Resident blocks of one multiprocessor (CUDA C programming guide)."""
_WGMMA_ROWS = 64
"""Rows of a warp group's tensor-core instruction (PTX wgmma.mma_async m64nNk16)."""
_WGMMA_BYTES = 32
"""Bytes along K of each row of that instruction (m64nNk32 for 8-bit operands)."""
_WGMMA_WARPS = 4
_FLOAT32 = "float32"
_K_CONTIGUOUS = "nt"
"""Layout in which both operands have K contiguous."""
_ADDS_BIAS = "aten::bias_addmm"
_HALF = 2
"""Bytes of a half-precision element."""
_SINGLE = 4
"""Bytes of a float32."""
_GROUPED = frozenset(op.template for op in OPS.values() if op.is_grouped)
"""Templates of grouped products. They are persistent and load tiles by TMA, as those with TMA in their names."""
_SCALES_IN_LOOP = "main_loop_scaling"
"""Part of the name of the template that multiplies operand tiles by their scales before each tensor-core product."""

_EFFICIENCY = np.array([0.7, 0.5, 0.8, 0.2], dtype=np.float32)
"""Share of the peak that a tile reaches without tensor cores, with mma, with wgmma, and with transposing wgmma."""

# Neutral values of absent parameters, so that no formula divides by zero.
_NEUTRAL = {"block_m": 128, "block_n": 128, "block_k": NEUTRAL_BLOCK_K, "group_m": 8, "num_stages": 4, "num_warps": 8}


class ListTerms:
    """Terms of each config of a list for all problems of a kind; arrays have shape (n,) unless stated otherwise.

    Terms that depend on the sizes of a problem are in ``Launch``.
    """

    def __init__(self, columns: ConfigColumns, kind: Kind) -> None:
        self.kind = kind
        self.itemsize = itemsize(kind.dtype)
        self.vendor = columns.template_mask(is_vendor_template)
        self.vendors = np.flatnonzero(self.vendor)
        self.bias = columns.template_mask(_ADDS_BIAS.__eq__)
        self.tma = columns.template_mask(_is_persistent)
        self.scales_in_loop = columns.template_mask(_scales_in_loop)
        self.allow_tf32 = columns.allow_tf32
        numbers = _numbers(columns)
        self.block_m, self.block_n, self.block_k, self.group_m, self.stages, self.warps = numbers
        self.blocks = numbers[:3]
        is_half = np.bool_(self.itemsize <= _HALF)
        # For float32 the tensor cores support TF32 only.
        self.tensor_cores = is_half | (self.allow_tf32 & np.bool_(kind.dtype == "float32"))
        large = (self.block_m >= _WGMMA_ROWS) & (self.warps >= _WGMMA_WARPS)
        if self.itemsize < _HALF:
            large &= self.block_k * self.itemsize >= _WGMMA_BYTES
        self.wgmma = self.tensor_cores & large & kind.device.architecture.has_wgmma
        # wgmma reads all but 16-bit operands only with K contiguous (PTX wgmma.mma_async); Triton transposes the other
        # layouts first. Scaled tiles pass through registers as well.
        is_turned = np.bool_(self.itemsize != _HALF and kind.layout != _K_CONTIGUOUS)
        self.turns_over = self.wgmma & (is_turned | self.scales_in_loop)
        self.sums_apart = np.bool_(kind.sums_apart) & ~(self.vendor | self.scales_in_loop)
        self.one_iteration = self.block_k >= kind.short_k
        self._buffer()
        self._occupy()
        self._time()

    @property
    def possible(self) -> NDArray[np.bool_]:
        """Mask of the configs that compute correctly and whose operand tiles fit into the shared memory of a block.

        With one row of A, persistent-TMA kernels give wrong results.
        """
        # A loop of one iteration needs no buffers: Triton may pass its tiles in registers.
        in_registers = ~self.tma & self.one_iteration
        fits = self.shared_memory <= self.kind.device.shared_memory_per_block_bytes
        result: NDArray[np.bool_] = self.vendor | in_registers | fits
        return result & ~self.tma if self.kind.is_row else result

    def _buffer(self) -> None:
        self.bytes_a = self.itemsize * self.block_m * self.block_k
        self.bytes_b = self.itemsize * self.block_n * self.block_k
        self.buffers_a, self.buffers_b = self._pipeline_buffers()
        self.shared_memory = self.bytes_a * self.buffers_a + self.bytes_b * self.buffers_b
        single_a, single_b = self.bytes_a * (self.buffers_a > 1), self.bytes_b * (self.buffers_b > 1)
        self.outstanding = self.shared_memory - single_a - single_b
        """Bytes of outstanding loads of a block."""
        if self.scales_in_loop.any():  # the tensor cores read the scaled tile of B from shared memory
            self.shared_memory += _SINGLE * self.block_n * self.block_k * self.scales_in_loop

    def _occupy(self) -> None:
        (access_a, access_b, access_c), architecture = self.kind.access, self.kind.device.architecture
        threads = _WARP * self.warps
        self.accumulators = self.block_m * self.block_n / threads
        loads_a = np.maximum(self.bytes_a / (access_a * threads), 1)
        loads_b = np.maximum(self.bytes_b / (access_b * threads), 1)
        self.loads = loads_a + loads_b
        """Load instructions of a thread in an iteration."""
        self.loads[self.tma] = 1
        self.stores = np.maximum(self.accumulators * (self.kind.out_itemsize / access_c), 1)
        """Store instructions of a thread at the end of a tile; an addition needs as many loads."""
        self.demand = self._register_demand(threads, loads_a, loads_b)
        """Registers that a thread needs, possibly more than it can have."""
        registers = np.minimum(self.demand, MOST_REGISTERS)
        blocks = np.minimum(
            architecture.shared_memory_bytes / (self.shared_memory + _RESERVED_SHARED_MEMORY),
            np.minimum(architecture.registers / (registers * threads), architecture.threads / threads),
        )
        # A persistent kernel starts one block on every multiprocessor.
        self.occupancy = np.maximum(np.minimum(np.floor(blocks), _MOST_BLOCKS), 1)
        self.occupancy[self.tma] = 1

    def _pipeline_buffers(self) -> tuple[Floats, Floats]:
        """Return how many copies of the tiles of A and B Triton's software pipeline keeps in shared memory.

        With wgmma the tensor cores read a stage while the next is loaded, which needs all stages; otherwise one less is
        enough, as for 8-bit tiles that pass through registers. Loops of one iteration are not pipelined. Loads of an
        operand too narrow for cp.async are not pipelined either. This matches which bundled configs compiled, and which
        ran out of shared memory.
        """
        is_read_in_place = self.wgmma & ~self.turns_over if self.itemsize < _HALF else self.wgmma
        pipelined: Floats = np.maximum(self.stages - ~is_read_in_place, 1)
        pipelined[~self.tma & self.one_iteration] = 1
        narrow = np.where(self.tma, pipelined, 1)
        wide_a, wide_b = (access >= NARROWEST_ASYNC_BYTES for access in self.kind.access[:2])
        return pipelined if wide_a else narrow, pipelined if wide_b else narrow

    def _register_demand(self, threads: Floats, loads_a: Floats, loads_b: Floats) -> Floats:
        operands = (self.bytes_a + self.bytes_b) * (_PER_OPERAND / 4) / threads
        operands[self.wgmma] = 0
        if self.itemsize > _HALF:
            per_step = np.where(self.one_iteration, _PER_UNROLLED_ALONE, _PER_UNROLLED)
            unrolled = per_step * self.block_k * np.sqrt(self.accumulators)
            operands = np.where(self.tensor_cores, operands, unrolled)
        demand: Floats = self.accumulators * _PER_ACCUMULATOR + operands + _OTHER_REGISTERS
        for access, loads in zip(self.kind.access, (loads_a, loads_b), strict=False):
            if access < NARROWEST_ASYNC_BYTES:
                demand += _PER_NARROW_LOAD * loads * ~self.tma
        if self.kind.sums_apart:
            demand += self.accumulators * (self.wgmma & self.sums_apart)
        scaled = self.scales_in_loop
        if scaled.any():
            demand[scaled] += (_PER_SCALED * (self.block_m + self.block_n) * self.block_k / threads)[scaled]
        return demand

    def _time(self) -> None:
        device, is_integer = self.kind.device, is_int8(self.kind.dtype)
        flops = np.where(
            self.allow_tf32,
            np.float32(device.peak_flops(self.itemsize, tf32=True, is_integer=is_integer)),
            np.float32(device.peak_flops(self.itemsize, is_integer=is_integer)),
        )
        if self.kind.dtype.startswith(FLOAT8) and device.architecture.has_wgmma:  # mma has no float8 on Hopper
            flops = np.where(self.wgmma, flops, np.float32(device.peak_flops(_HALF)))
        if self.scales_in_loop.any():  # scaled tiles are float32, which Triton multiplies as TF32
            flops[self.scales_in_loop] = device.peak_flops(_SINGLE, tf32=True)
        # Each kind is a part of the one before, so the sum of the masks is an index.
        efficiency = _EFFICIENCY[self.tensor_cores.astype(np.intp) + self.wgmma + self.turns_over]
        work = 2e6 * self.block_m * self.block_n * self.block_k
        self.compute_us = work / (flops / device.multiprocessors * efficiency)
        """Arithmetic time of an iteration; the next terms are per iteration too."""
        self.issue_us = self.loads * (self.warps * _ISSUE_US)
        self.latency = _ITERATION_LATENCY / np.minimum(self.buffers_a, self.buffers_b)
        """Latency that an iteration adds, as a share of the tile latency; it waits for the last operand."""
        us_of_a_byte = 1e6 / device.architecture.l2_bandwidth
        self.log_l2_us = np.log2((self.bytes_a + self.bytes_b) * np.float32(us_of_a_byte))
        """Time to read an iteration's tiles through L2."""
        self.log_compute_us, self.log_occupancy = np.log2(self.compute_us), np.log2(self.occupancy)
        self.log_missing = np.log2(BYTES_IN_FLIGHT / self.outstanding)
        """Number of blocks that use the full bandwidth."""


TERMS = (
    "log_tiles_m",
    "log_tiles_n",
    "log_k_iterations",
    "log_block_waves",
    "log_busiest",
    "log_busy",
    "log_full_waves",
    "log_per_tile",
    "log_resident",
    "log_held",
    "log_fed",
    "log_estimate_us",
    "busy",
    "even_k",
    "generated",
    "one",
)
"""Names of the terms of a config on a problem, in order; for a vendor kernel all but ``one`` are 0.

``busiest``: tiles of the busiest multiprocessor. ``busy``: share of the multiprocessors that have a tile.
``full_waves``: waves of blocks, with the last one counted as full. ``per_tile``: latency of a tile. ``resident``:
blocks that run on a multiprocessor at once, and ``held``: their mean. ``fed``: the resident blocks, limited to those
that use the full bandwidth.
"""
_LOGS_AT_ONCE = TERMS.index("log_resident")


def launch_terms(work: Work, terms: ListTerms) -> Floats:
    """Return the terms of each config of a list on a problem, shape (len(TERMS), n)."""
    shape = work.shape
    rows = np.empty((len(TERMS), len(terms.vendor)), dtype=np.float32)
    tiles_m, tiles_n, k_iterations, waves, busiest, log_busy, full_waves, per_tile = logs = rows[:_LOGS_AT_ONCE]
    resident, held, fed, estimate, busy, even_k, generated, one = rows[_LOGS_AT_ONCE:]
    generated[:] = one[:] = 1
    sizes = np.array(((shape.m,), (shape.n,), (shape.k,)), dtype=np.float32)
    np.ceil(sizes / terms.blocks, out=rows[:3])
    np.equal(k_iterations * terms.block_k, np.float32(shape.k), out=even_k, casting="unsafe")
    if work.products > 1:
        k_iterations *= work.products
    if work.groups is not None:
        _cover_groups(work.groups, terms, rows[:3], even_k)
    np.multiply(tiles_m, np.float32(shape.b), out=waves)
    np.multiply(waves, tiles_n, out=waves)
    np.divide(waves, np.float32(work.device.multiprocessors), out=waves)
    np.ceil(waves, out=busiest)
    if work.groups is not None and work.groups.form == DEPTH:
        np.maximum(busiest, np.float32(work.groups.longest / work.groups.mean), out=busiest)
    np.minimum(waves, one, out=busy)
    log_busy[:] = busy
    np.ceil(waves / terms.occupancy, out=full_waves)
    # In a loop shorter than its pipeline each iteration waits for the one before it.
    np.add(np.maximum(k_iterations * terms.latency, np.float32(_ITERATION_LATENCY)), one, out=per_tile)
    np.log2(logs, out=logs)
    np.minimum(terms.log_occupancy, busiest, out=resident)
    np.minimum(waves, resident, out=held)
    np.minimum(terms.log_missing, held, out=fed)
    np.subtract(terms.log_missing, fed, out=estimate)
    estimate += np.float32(math.log2(1e6 * work.memory_s))
    np.maximum(estimate, busiest + k_iterations + terms.log_compute_us, out=estimate)
    np.maximum(estimate, waves - log_busy + k_iterations + terms.log_l2_us, out=estimate)
    np.maximum(estimate, full_waves + per_tile, out=estimate)
    np.exp2(estimate, out=estimate)
    estimate += np.float32(LAUNCH_US)
    np.log2(estimate, out=estimate)
    rows[:-1, terms.vendors] = 0
    return rows


def _cover_groups(groups: Groups, terms: ListTerms, tiles: Floats, even_k: Floats) -> None:
    """Set the blocks along the divided dimension, shape (3, n), to their mean over groups."""
    blocks = terms.blocks[groups.dimension]
    tiles[groups.dimension] = groups.tiles(blocks)
    if groups.form == DEPTH:
        even_k[:] = groups.is_even(blocks)


def _is_persistent(template: str) -> bool:
    return "tma" in template or template in _GROUPED


def _scales_in_loop(template: str) -> bool:
    return _SCALES_IN_LOOP in template


def _numbers(columns: ConfigColumns) -> Floats:
    """Return a row for each parameter of ``_NEUTRAL``, shape (6, n)."""
    numbers = np.empty((len(_NEUTRAL), len(columns)), dtype=np.float32)
    for row, name in zip(numbers, _NEUTRAL, strict=True):
        row[:] = getattr(columns, name)
    np.copyto(numbers, np.array([[neutral] for neutral in _NEUTRAL.values()], dtype=np.float32), where=numbers <= 0)
    return numbers


def compile_seconds(shape: ProblemShape, columns: ConfigColumns) -> Floats | None:
    """Return the CPU seconds to compile each of n configs, shape (n,); None if all are quick.

    Without tensor cores Triton unrolls the loop over a tile's K into one instruction per product of a thread. So the
    time grows with the products. Vendor kernels and kernels with tensor cores, which compile within about a second, get
    0.

    Args:
        shape: problem.
        columns: configs.
    """
    if shape.dtype != _FLOAT32 or columns.allow_tf32.all():
        return None
    unrolled = ~columns.allow_tf32 & ~columns.template_mask(is_vendor_template)
    threads = np.maximum(columns.num_warps, 1) * _WARP
    products = columns.block_m * columns.block_n * (columns.block_k / threads)
    seconds: Floats = np.where(unrolled, _BASE_S + _S_PER_PRODUCT * products, 0).astype(np.float32)
    return seconds


def takes_too_long(seconds: Floats, runtime_us: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the configs that compile too slowly, shape (n,); empty if no other config can run.

    Args:
        seconds: compile time of each config, shape (n,).
        runtime_us: runtime of each config, shape (n,); inf if it cannot run.
    """
    too_long: NDArray[np.bool_] = seconds > MOST_SECONDS
    return too_long if np.isfinite(runtime_us[~too_long]).any() else np.zeros_like(too_long)
