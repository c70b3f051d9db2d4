"""Estimates, before anything is compiled, how many kernels Inductor lists for a problem, and how long a sweep takes.

Inductor's lists and filters are those of torch 2.13's ``template_heuristics/triton.py``; other versions differ by a
config or two of DEFAULT, and by up to a tenth of EXHAUSTIVE.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TYPE_CHECKING

from diode_collectors.problems.kinds import has_whole_rows
from diode_collectors.problems.problem import FLOAT32, SweepProblem
from diode_collectors.problems.search_space import GUIDED
from diode_store.devices import NVIDIA
from diode_store.inductor_default import DEFAULT_CONFIGS, LARGEST_BLOCK, GemmConfig, largest_blocks, scaled
from diode_store.operands import dtype_bytes
from diode_store.pipelining import gemm_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_collectors.problems.search_space import SearchSpace

CPU_SECONDS_PER_CHOICE = 0.22
"""What compiling and timing one kernel costs. This and the next are fitted to the logs of bundled sweeps as deployed:
2,721 problems on an NVIDIA H200 with 16 cores, torch 2.11 (``benchmarks/bench_sweep_costs.py``). Where two virtual
cores share a physical one it was up to 0.8."""
CPU_SECONDS_PER_PROBLEM = 1.8
"""What a problem costs beside its choices: lowering it, and timing the finalists."""
CPU_SECONDS_PER_VENDOR_PROBLEM = 0.7
"""What a problem costs of which nothing but the vendor's kernels is timed: 1,391 took 64 s on one H200 with 16 virtual
cores, where one at a time has the device."""
CPU_SECONDS_PER_SHARED_CHOICE = 0.04
"""What timing a kernel costs that another problem had compiled."""
NEW_SHARE = 0.8
"""Which share of their kernels problems that share some have compiled: of the first 580 of `diode tune`'s standard set
that two H100s timed, which are as different as can be, some 7,100 of 8,700."""
SLOW_FLOAT32_FACTOR = 15
"""How much longer fp32 without TF32 compiles; 10 to 30 times was seen on the same machine."""
GPU_SECONDS_PER_CHOICE = 0.005
"""What timing one kernel costs. This and the next come from 251 kernels of one problem in 1.4 s, and from 15 of each of
620 in a mean of 0.18 s (an NVIDIA H200)."""
GPU_SECONDS_PER_PROBLEM = 0.1
"""What a problem costs beside its kernels, unless it has the vendor's alone: timing the finalists in turn."""
CPU_SECONDS_PER_CPP_PROBLEM = 8.0
"""What compiling and timing ATen and C++ kernels of one problem costs where there is no GPU."""
CPP_CHOICES = 2

_REGISTERS_PER_THREAD = 255
_THREADS_PER_WARP = 32
_BARRIER_BYTES = 128
_EPILOGUE_PADDING_BITS = 128
_TMA_OPS = frozenset({"mm", "addmm"})
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
    """Return how many choices of ``problem`` are timed on a GPU, the vendor's among them.

    Args:
        problem: what is timed.
        space: which configs.
        shared_memory_bytes: what a block may use on the device; configs that need more are left out. None counts
            them too.
        include_tma: whether the device can, and the sweep does, time persistent TMA kernels.
    """
    if space.is_vendor:
        return 2 if problem.op == "addmm" else 1
    blocks = _blocks(problem)
    item_bytes = dtype_bytes(problem.dtype)

    def count(output_bytes: int, sample: int, *, tma: bool) -> int:
        """Return how many of a template are timed."""

        def listed(*, exhaustive: bool) -> tuple[GemmConfig, ...]:
            return _configs(blocks, item_bytes, shared_memory_bytes, output_bytes, exhaustive=exhaustive, tma=tma)

        if space.sample is None:
            return len(listed(exhaustive=space.kind == "EXHAUSTIVE"))
        default = () if space.kind == GUIDED else listed(exhaustive=False)
        wanted, everything = max(sample, len(default)), listed(exhaustive=True)
        if tma or wanted * _MOST_STAGES <= len(everything):
            return min(wanted, len(everything))
        # Of an NVIDIA GPU; elsewhere there may be a few more.
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
        problem: what is timed.
        shared_memory_bytes: as for ``count_choices``.
        tma: whether of the persistent-TMA template, which the device and the problem must be able to use.
    """
    output_bytes = _output_bytes(problem) if tma else 0
    blocks, item_bytes = _blocks(problem), dtype_bytes(problem.dtype)
    return _configs(blocks, item_bytes, shared_memory_bytes, output_bytes, exhaustive=True, tma=tma)


def _blocks(problem: SweepProblem) -> tuple[int, int, int]:
    """Return the largest blocks that make sense, but no larger than any list has.

    So there are few different ones, and a list is made once for each.
    """
    m, n, k = (min(block, LARGEST_BLOCK) for block in largest_blocks(problem.m, problem.n, problem.k))
    return m, n, k


def can_use_tma(problem: SweepProblem) -> bool:
    """Whether the tensor memory accelerator can load both operands: rows of multiples of 16 bytes, no batch."""
    return problem.op in _TMA_OPS and has_whole_rows(problem)


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
    """Estimate how long a sweep takes on GPUs: compiling and timing overlap, the slower one counts.

    Args:
        problems: what is timed.
        space: which configs.
        shared_memory_bytes: as in ``count_choices``.
        include_tma: likewise.
        cores: how many processor cores compile.
        devices: how many GPUs time.
        shares_kernels: whether problems share kernels.
    """
    compiling = timing = 0.0
    for problem in problems:
        choices = new = count_choices(problem, space, shared_memory_bytes=shared_memory_bytes, include_tma=include_tma)
        timing += choices * GPU_SECONDS_PER_CHOICE
        if space.is_vendor:
            compiling += CPU_SECONDS_PER_VENDOR_PROBLEM
            continue
        timing += GPU_SECONDS_PER_PROBLEM
        if shares_kernels and has_whole_rows(problem):
            new = round(NEW_SHARE * choices)
        compiling += cpu_seconds(new, is_slow=problem.dtype == FLOAT32 and not problem.allow_tf32)
        compiling += (choices - new) * CPU_SECONDS_PER_SHARED_CHOICE
    return max(compiling / max(cores, 1), timing / max(devices, 1))


def cpu_seconds(choices: int, *, is_slow: bool = False) -> float:
    """Return what a problem with so many choices costs, in seconds of one core; fp32 without TF32 is slow."""
    return CPU_SECONDS_PER_PROBLEM + choices * CPU_SECONDS_PER_CHOICE * (SLOW_FLOAT32_FACTOR if is_slow else 1)


def _output_bytes(problem: SweepProblem) -> int:
    """Return the bytes of an element that a persistent-TMA kernel stores."""
    return _ACCUMULATOR_BYTES if problem.op == "addmm" else dtype_bytes(problem.dtype)


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
    """Return the configs of a template that are left; ``output_bytes`` is 0 if it stores without a conversion."""
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
