"""Estimates, before anything is compiled, of the kernels that Inductor lists for a problem and of a sweep's duration.

The lists and filters follow ``template_heuristics/triton.py`` of torch 2.13. In other versions DEFAULT differs by a
config or two, and EXHAUSTIVE by up to a tenth.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TYPE_CHECKING

from diode_collectors.problems.other_lists import count_other
from diode_collectors.problems.problem import FLOAT32, SweepProblem
from diode_collectors.problems.search_space import GUIDED
from diode_store.candidates.default_space import DEFAULT_CONFIGS, LARGEST_BLOCK, GemmConfig, largest_blocks, scaled
from diode_store.candidates.operands import has_whole_rows
from diode_store.candidates.pipelining import gemm_kernel
from diode_store.devices.known import NVIDIA
from diode_store.ops import OPS
from diode_store.ops.work import itemsize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_collectors.problems.search_space import SearchSpace
    from diode_store.records import ProblemShape

CPU_SECONDS_PER_CHOICE = 0.22
"""Seconds of one core to compile and time one kernel.

This and the next constants are fitted to logs of the bundled sweeps (``benchmarks/bench_sweep_costs.py``). They can be
several times larger if two virtual cores share a physical one.
"""
CPU_SECONDS_PER_PROBLEM = 1.8
"""Seconds of one core for a problem besides its choices: lowering, and timing the finalists."""
CPU_SECONDS_PER_VENDOR_PROBLEM = 0.7
"""Seconds of one core for a problem with only vendor kernels. One problem at a time has the device."""
CPU_SECONDS_PER_SHARED_CHOICE = 0.04
"""Seconds of one core to time a kernel that another problem has compiled."""
NEW_SHARE = 0.8
"""Share of kernels to compile if problems share kernels, for the very different problems of `diode tune`'s standard
set.
"""
SLOW_FLOAT32_FACTOR = 15
"""Ratio of compile times: fp32 without TF32 to other dtypes. It varies by a factor of three."""
SLOW_ATTENTION_FACTOR, SLOW_CONVOLUTION_FACTOR = 10, 3
"""Ratios of the seconds for a kernel of flex attention, and of a convolution, to those for one of a product."""
GPU_SECONDS_PER_CHOICE = 0.005
"""Seconds of the device to time one kernel. This and the next constant come from sweeps on an NVIDIA H200."""
GPU_SECONDS_PER_PROBLEM = 0.1
"""Seconds of the device for a problem besides its kernels, unless it has only vendor kernels: timing the finalists in
turn.
"""
CPU_SECONDS_PER_CPP_PROBLEM = 8.0
"""Seconds of one core to compile and time the ATen and C++ kernels of one problem on a machine without a GPU."""
CPP_CHOICES = 2

_REGISTERS_PER_THREAD = 255
_THREADS_PER_WARP = 32
_BARRIER_BYTES = 128
_EPILOGUE_PADDING_BITS = 128
_WARPS_WITHOUT_TMA = 2
_ACCUMULATOR_BYTES = 4


_DEFAULT_TMA = tuple(
    itertools.starmap(
        GemmConfig,
        [
            (128, 256, 64, 3, 8),
            (128, 128, 64, 3, 8),
            (128, 128, 128, 3, 8),
            (128, 128, 128, 3, 4),
            (128, 128, 64, 4, 8),
            (128, 128, 64, 5, 8),
            (256, 128, 64, 4, 8),
            (128, 128, 64, 5, 4),
        ],
    )
)
_BLOCKS = (16, 32, 64, 128, LARGEST_BLOCK)
_MOST_STAGES = 5
_EXHAUSTIVE = tuple(
    GemmConfig(m, n, k, num_stages, num_warps)
    for m, n, k in itertools.product(_BLOCKS, repeat=3)
    for num_stages in range(1, _MOST_STAGES + 1)
    for num_warps in (2, 4, 8)
)


def count_choices(
    problem: SweepProblem, space: SearchSpace, *, shared_memory_bytes: int | None, include_tma: bool
) -> int:
    """Return the number of choices of ``problem`` that a sweep times on a GPU, vendor kernels included.

    Args:
        problem: Problem to time.
        space: Search space.
        shared_memory_bytes: Shared memory of a block on the device. Configs that need more are not counted; None counts
            all configs.
        include_tma: Whether the device supports, and the sweep times, persistent TMA kernels.
    """
    if space.is_vendor:
        return len(problem.entry.vendors)
    if not problem.entry.is_standard:
        return count_other(problem, space, shared_memory_bytes=shared_memory_bytes, include_tma=include_tma)
    blocks = _blocks(problem)
    item_bytes = itemsize(problem.dtype)

    def count(output_bytes: int, sample: int, *, tma: bool) -> int:
        """Return the number of configs of a template to time."""

        def listed(*, exhaustive: bool) -> tuple[GemmConfig, ...]:
            return _configs(blocks, item_bytes, shared_memory_bytes, output_bytes, exhaustive=exhaustive, tma=tma)

        if space.sample is None:
            return len(listed(exhaustive=space.kind == "EXHAUSTIVE"))
        default = () if space.kind == GUIDED else listed(exhaustive=False)
        wanted, everything = max(sample, len(default)), listed(exhaustive=True)
        if tma or wanted * _MOST_STAGES <= len(everything):
            return min(wanted, len(everything))
        # The number for an NVIDIA GPU; other GPUs may have a few more.
        kernels, of_default = (
            {gemm_kernel(config, problem, NVIDIA) for config in configs} for configs in (everything, default)
        )
        return min(wanted, len(default) + len(kernels - of_default))

    found = 1 + count(0, space.sample or 0, tma=False)
    if include_tma and can_use_tma(problem):
        found += count(_output_bytes(problem), space.tma_sample, tma=True)
    return found


def exhaustive_configs(problem: SweepProblem, *, shared_memory_bytes: int | None, tma: bool) -> tuple[GemmConfig, ...]:
    """Return the configs of Inductor's EXHAUSTIVE list that fit a problem and a device, of the plain or TMA template.

    Args:
        problem: Problem to time.
        shared_memory_bytes: Limit as in ``count_choices``.
        tma: Use the persistent-TMA template. The device and the problem must support it.
    """
    output_bytes = _output_bytes(problem) if tma else 0
    blocks, item_bytes = _blocks(problem), itemsize(problem.dtype)
    return _configs(blocks, item_bytes, shared_memory_bytes, output_bytes, exhaustive=True, tma=tma)


def _blocks(problem: SweepProblem) -> tuple[int, int, int]:
    """Return the largest useful blocks, at most as large as in any list.

    This gives few different blocks, and a list is made once for each.
    """
    m, n, k = (min(block, LARGEST_BLOCK) for block in largest_blocks(problem.m, problem.n, problem.k))
    return m, n, k


def can_use_tma(problem: SweepProblem) -> bool:
    """Return whether the tensor memory accelerator can load both operands: rows of multiples of 16 bytes, no batch."""
    return problem.entry.has_tma and has_whole_rows(problem)


def seconds_estimate(
    problems: Iterable[SweepProblem],
    space: SearchSpace,
    *,
    shared_memory_bytes: int | None,
    include_tma: bool,
    cores: int,
    devices: int,
    shares_kernels: bool = False,
) -> float:
    """Return the estimated seconds of a sweep on GPUs: compiling and timing overlap, and the slower one counts.

    Args:
        problems: Problems to time.
        space: Search space.
        shared_memory_bytes: Limit as in ``count_choices``.
        include_tma: Flag as in ``count_choices``.
        cores: Number of processor cores that compile.
        devices: Number of GPUs that time.
        shares_kernels: Whether problems share kernels.
    """
    compiling = timing = 0.0
    for problem in problems:
        choices = new = count_choices(problem, space, shared_memory_bytes=shared_memory_bytes, include_tma=include_tma)
        timing += choices * GPU_SECONDS_PER_CHOICE
        if space.is_vendor:
            compiling += CPU_SECONDS_PER_VENDOR_PROBLEM
            continue
        timing += GPU_SECONDS_PER_PROBLEM
        if shares_kernels and problem.entry.is_standard and has_whole_rows(problem):
            new = round(NEW_SHARE * choices)
        compiling += cpu_seconds(new, slowness=slowness_of(problem.shape))
        compiling += (choices - new) * CPU_SECONDS_PER_SHARED_CHOICE
    return max(compiling / max(cores, 1), timing / max(devices, 1))


def slowness_of(shape: ProblemShape) -> float:
    """Return the ratio of the seconds for one of a problem's kernels to those for one of a usual product."""
    if not OPS[shape.op].has_matrices:
        return SLOW_ATTENTION_FACTOR if OPS[shape.op].is_attention else SLOW_CONVOLUTION_FACTOR
    return SLOW_FLOAT32_FACTOR if shape.arithmetic == FLOAT32 else 1


def cpu_seconds(choices: int, *, slowness: float = 1) -> float:
    """Return the seconds of one core for a problem with ``choices``; ``slowness_of`` explains ``slowness``."""
    return CPU_SECONDS_PER_PROBLEM + choices * CPU_SECONDS_PER_CHOICE * slowness


def _output_bytes(problem: SweepProblem) -> int:
    """Return the bytes of an element that a persistent-TMA kernel stores."""
    return _ACCUMULATOR_BYTES if problem.entry.has_bias else itemsize(problem.dtype)


@lru_cache(maxsize=4096)
def _configs(
    most: tuple[int, int, int],
    item_bytes: int,
    shared_memory_bytes: int | None,
    output_bytes: int,
    *,
    exhaustive: bool,
    tma: bool,
) -> tuple[GemmConfig, ...]:
    """Return the configs of a template that fit. ``output_bytes`` is 0 if the kernel stores without a conversion."""
    configs = _EXHAUSTIVE if exhaustive else _DEFAULT_TMA if tma else DEFAULT_CONFIGS
    kept: dict[GemmConfig, None] = {}
    for config in configs:
        if tma and config.num_warps == _WARPS_WITHOUT_TMA:
            continue
        fitted = scaled(config, most)
        needed = _shared_memory_bytes(fitted, item_bytes, output_bytes)
        if shared_memory_bytes is not None and needed > shared_memory_bytes:
            continue
        accumulators = fitted.block_m * fitted.block_n
        if exhaustive and math.ceil(accumulators / (config.num_warps * _THREADS_PER_WARP)) > _REGISTERS_PER_THREAD:
            continue
        kept[fitted] = None
    return tuple(kept)


def _shared_memory_bytes(config: GemmConfig, item_bytes: int, output_bytes: int) -> int:
    loads = item_bytes * (config.block_m + config.block_n) * config.block_k * config.num_stages
    if not output_bytes:
        return loads + _BARRIER_BYTES
    padding = _EPILOGUE_PADDING_BITS // (8 * output_bytes)
    return loads + output_bytes * config.block_m * (config.block_n + padding) + _BARRIER_BYTES
