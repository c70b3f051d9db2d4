"""Features of a matrix product, a device and candidate kernels, as a model sees them.

The code is vectorized over one problem and many configs, uses NumPy alone, and serves the trainer and the hook. Sizes,
ratios and times are base-2 logarithms, so that ratios become differences. Raise ``FEATURE_VERSION`` with any change to
a formula here, in ``launch`` or in ``descriptor``: a model only ever sees what it was trained on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.devices.descriptor import describe
from diode_store.ops import OPS
from diode_store.ops.grouping import COLUMNS, DEPTH, ROWS
from diode_store.ops.scaling import RECIPES
from diode_store.ops.work import is_int8
from diode_trainer.launch import BYTES_IN_FLIGHT, MOST_REGISTERS, TERMS, ListTerms, launch_terms
from diode_trainer.work import FLOAT8, Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.work import Kind

FEATURE_VERSION = 4
WIDENED_VERSION = 3
"""Version whose features are the first ones of each kind today, with equal values for the ops that it knew."""

# cuBLAS chooses among output tiles of about these sizes, so the vendor kernel's time depends on them.
_VENDOR_TILES = ((64, 64), (64, 256), (128, 128), (128, 256))

PROBLEM_FEATURES = (
    "log_b",
    "log_m",
    "log_n",
    "log_k",
    "log_flops",
    "log_bytes",
    "log_intensity",
    "log_roofline",
    "log_memory_over_compute",
    "log_bytes_over_l2",
    "log_m_over_n",
    "log_k_over_mn",
    "is_fp16",
    "is_bf16",
    "is_fp32",
    "is_tf32",
    "is_bmm",
    "is_addmm",
    "a_transposed",
    "b_transposed",
    "log_access_a",
    "log_access_b",
    "log_access_c",
    *(f"log_waves_{m}x{n}" for m, n in _VENDOR_TILES),
    *(f"log_quantisation_{m}x{n}" for m, n in _VENDOR_TILES),
    "is_fp8",
    "is_int8",
    "has_fast_accum",
    *(f"scaled_by_{recipe}" for recipe in RECIPES),
    "is_grouped",
    "groups_rows",
    "groups_columns",
    "groups_depth",
    "is_mm_plus_mm",
    "skew",
    "log_groups",
    "log_used_groups",
    "log_longest_group",
    "log_output_ratio",
)
"""Names of the problem features, in order."""
_FIRST_OF_NEW_OPS = PROBLEM_FEATURES.index("is_fp8")
"""First of the features that are 0 for the ops of version 3."""
_NOTHING_NEW = (0.0,) * (len(PROBLEM_FEATURES) - _FIRST_OF_NEW_OPS)
_FIRST_FLAG = PROBLEM_FEATURES.index("is_fp16")

VENDOR_FLAGS = ("is_vendor", "is_vendor_bias")
"""The first config features, and the only ones of a vendor kernel."""
_FLAGS = (
    *VENDOR_FLAGS,
    "is_generated",
    "is_tma",
    "uses_wgmma",
    "turns_over",
    "allow_tf32",
    "even_k",
    "one_k_iteration",
)
_NUMBERS = ("num_stages", "one_stage", "busy_multiprocessors")
_LOGS = (
    "log_block_m",
    "log_block_n",
    "log_block_k",
    "log_warps",
    "log_group_m",
    "log_buffers_a",
    "log_buffers_b",
    "log_tiles_m",
    "log_tiles_n",
    "log_k_iterations",
    "log_waves",
    "log_block_waves",
    "log_padding_m",
    "log_padding_n",
    "log_padding_k",
    "log_quantisation",
    "log_block_quantisation",
    "log_accumulators",
    "log_registers",
    "log_spill",
    "log_loads",
    "log_stores",
    "log_shared_memory",
    "log_occupancy",
    "log_resident_warps",
    "log_tile_intensity",
    "log_traffic",
    "log_in_flight",
    "log_run_a",
    "log_run_b",
    "log_compute_time",
    "log_l2_time",
    "log_memory_time",
    "log_latency_time",
    "log_issue_time",
    "log_estimate",
)
_NEW_FLAGS = ("scales_in_loop", "sums_apart")
"""Flags that are 0 for the ops of version 3."""
CONFIG_FEATURES = (*_FLAGS, *_NUMBERS, *_LOGS, *_NEW_FLAGS)
"""Names of the config features, in order."""
GENERATED = CONFIG_FEATURES.index("is_generated")
"""Index of the feature that marks configs other than vendor kernels."""
_OF_LOGS = slice(len(_FLAGS) + len(_NUMBERS), -len(_NEW_FLAGS))
WIDENED_DIMENSIONS = (_FIRST_OF_NEW_OPS, len(CONFIG_FEATURES) - len(_NEW_FLAGS))
"""Number of problem and of config features in ``WIDENED_VERSION``."""


class ListFeatures:
    """Features of the n configs of a list that all problems of a kind share, in part or in full."""

    def __init__(self, columns: ConfigColumns, kind: Kind) -> None:
        self.terms = terms = ListTerms(columns, kind)
        self.possible = terms.possible
        """Mask of the configs that can run and compute the product, shape (n,).

        The mask is True if it is uncertain whether the tiles fit.
        """
        self.known = np.empty((len(CONFIG_FEATURES), len(columns)), dtype=np.float32)
        """Shape (C, n): shared summands of the features; the terms of a problem are added."""
        rows = (terms.vendor, terms.bias, *_flags(terms), *_logs(terms), terms.scales_in_loop, terms.sums_apart)
        for row, values in zip(self.known, rows, strict=True):
            row[:] = values
        np.log2(self.known[_OF_LOGS], out=self.known[_OF_LOGS])
        self.known[len(VENDOR_FLAGS) :, terms.vendors] = 0


class ModelInputs:
    """Features of one problem and n configs, and the configs that are certain to fail.

    The config features are ``listed.known + mix @ terms``, so a model's first layer can use this sum directly.
    """

    def __init__(self, work: Work, listed: ListFeatures) -> None:
        self.listed = listed
        self.roofline_us = work.roofline_us
        self.problem = _of_problem(work)
        """Shape (P,), in the order of ``PROBLEM_FEATURES``."""
        self.mix = _MIX.copy()
        """Shape (C + P + 1, T): weight of each of ``terms`` in each config feature, problem feature and in a 1."""
        self.mix[_SHIFTED, TERMS.index("generated")] = _shifts(work)
        self.mix[len(CONFIG_FEATURES) : -1, TERMS.index("one")] = self.problem
        self.terms = launch_terms(work, listed.terms)
        """Shape (T, n), in the order of ``TERMS``."""

    def config(self) -> NDArray[np.float32]:
        """Return the features of the configs, shape (C, n): a row for each, as in ``CONFIG_FEATURES``."""
        return self.listed.known + self.mix[: len(CONFIG_FEATURES)] @ self.terms

    def rows(self, some: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the features of some configs, followed by those of the problem and ones, shape (C + P + 1, s)."""
        rows: NDArray[np.float32] = self.mix @ self.terms.take(some, 1)
        rows[: len(CONFIG_FEATURES)] += self.listed.known.take(some, 1)
        return rows

    @property
    def vendor(self) -> NDArray[np.bool_]:
        """Mask of the vendor kernels, shape (n,)."""
        return self.listed.terms.vendor


def model_inputs(shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> ModelInputs:
    """Return a model's inputs for the configs of one problem on one device."""
    work = Work(shape, describe(hardware))
    return ModelInputs(work, ListFeatures(columns, work.kind(columns)))


def roofline_us(shape: ProblemShape, hardware: Hardware) -> float:
    """Return a lower bound of the time on the device, in microseconds.

    The bound is the longer of arithmetic at peak and memory at full bandwidth (Williams et al., "Roofline", 2009), plus
    the floor of a launch. The peak is TF32's if TF32 is allowed.
    """
    return Work(shape, describe(hardware)).roofline_us


def problem_features(shape: ProblemShape, hardware: Hardware) -> NDArray[np.float32]:
    """Return the features of the problem alone, shape (P,), in the order of ``PROBLEM_FEATURES``."""
    return _of_problem(Work(shape, describe(hardware)))


def _of_problem(work: Work) -> NDArray[np.float32]:
    shape = work.shape
    waves = [work.tiles(m, n) / work.device.multiprocessors for m, n in _VENDOR_TILES]
    logs = [
        shape.b,
        shape.m,
        shape.n,
        shape.k,
        work.flops,
        work.bytes_moved,
        work.flops / work.bytes_moved,
        work.roofline_us,
        work.memory_s / work.compute_s,
        work.bytes_moved / work.device.l2_bytes,
        shape.m / shape.n,
        shape.k / (shape.m * shape.n) ** 0.5,
        work.access_a,
        work.access_b,
        work.access_c,
        *waves,
        *(math.ceil(each) / each for each in waves),
    ]
    flags = [
        shape.dtype == "float16",
        shape.dtype == "bfloat16",
        shape.dtype == "float32",
        shape.tf32,
        OPS[shape.op].is_batched,
        OPS[shape.op].has_bias or shape.dimension("bias", default=False),
        shape.layout[0] == "t",
        shape.layout[1] == "t",
    ]
    features = [math.log2(each) for each in logs]
    features[_FIRST_FLAG:_FIRST_FLAG] = flags
    is_new = shape.dimensions or work.itemsize == 1 or work.products > 1
    return np.array([*features, *(_of_new_ops(work) if is_new else _NOTHING_NEW)], dtype=np.float32)


def _of_new_ops(work: Work) -> list[float]:
    """Return the features from ``is_fp8`` on, in the order of ``PROBLEM_FEATURES``."""
    shape, groups, recipes = work.shape, work.groups, work.recipes
    form = shape.dimension("form")
    used, longest = (groups.used, groups.longest / groups.mean) if groups else (1, 1)
    return [
        shape.dtype.startswith(FLOAT8),
        is_int8(shape.dtype),
        shape.dimension("fast_accum", default=False),
        *(recipe in recipes for recipe in RECIPES),
        OPS[shape.op].is_grouped,
        *(form == each for each in (ROWS, COLUMNS, DEPTH)),
        work.products > 1,
        groups.skew if groups else 0,
        math.log2(groups.count if groups else 1),
        math.log2(used),
        math.log2(longest),
        math.log2(work.out_itemsize / work.itemsize),
    ]


def config_features(shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> NDArray[np.float32]:
    """Return the features of each config on this problem and device, shape (n, C), as in ``CONFIG_FEATURES``.

    A vendor kernel hides its parameters, so its features other than ``VENDOR_FLAGS`` are 0.
    """
    return model_inputs(shape, hardware, columns).config().T


def _flags(terms: ListTerms) -> tuple[Any, ...]:
    of_problem = 0
    return (
        ~terms.vendor,
        terms.tma,
        terms.wgmma,
        terms.turns_over,
        terms.allow_tf32,
        of_problem,
        terms.one_iteration,
        terms.stages,
        terms.stages == 1,
        of_problem,
    )


def _logs(terms: ListTerms) -> tuple[Any, ...]:
    """Return the arguments of the logarithms, without the factors that depend on the problem."""
    of_problem, layout, operand_bytes = 1, terms.kind.layout, terms.bytes_a + terms.bytes_b
    return (
        terms.block_m,
        terms.block_n,
        terms.block_k,
        terms.warps,
        terms.group_m,
        terms.buffers_a,
        terms.buffers_b,
        of_problem,
        of_problem,
        of_problem,
        1 / terms.occupancy,
        of_problem,
        terms.block_m,
        terms.block_n,
        terms.block_k,
        terms.occupancy,
        of_problem,
        terms.accumulators,
        terms.demand,
        np.maximum(terms.demand / MOST_REGISTERS, 1),
        terms.loads,
        terms.stores,
        terms.shared_memory,
        terms.occupancy,
        terms.warps,
        terms.block_m * terms.block_n / (terms.block_m + terms.block_n),
        operand_bytes,
        terms.outstanding,
        # Contiguous bytes in one row of an operand's tile.
        (terms.block_m if layout[0] == "t" else terms.block_k) * terms.itemsize,
        (terms.block_k if layout[1] == "t" else terms.block_n) * terms.itemsize,
        terms.compute_us,
        operand_bytes * np.float32(1e6 / terms.kind.device.architecture.l2_bandwidth),
        BYTES_IN_FLIGHT / terms.outstanding,
        of_problem,
        terms.issue_us,
        of_problem,
    )


_MIXED: dict[str, tuple[str, ...]] = {
    "even_k": ("even_k",),
    "busy_multiprocessors": ("busy",),
    "log_tiles_m": ("log_tiles_m",),
    "log_tiles_n": ("log_tiles_n",),
    "log_k_iterations": ("log_k_iterations",),
    "log_waves": ("log_block_waves",),
    "log_block_waves": ("log_block_waves",),
    "log_padding_m": ("log_tiles_m",),
    "log_padding_n": ("log_tiles_n",),
    "log_padding_k": ("log_k_iterations",),
    "log_quantisation": ("log_full_waves", "-log_block_waves"),
    "log_block_quantisation": ("log_busiest", "-log_block_waves"),
    "log_resident_warps": ("log_resident",),
    "log_traffic": ("log_block_waves", "log_k_iterations"),
    "log_in_flight": ("log_held",),
    "log_compute_time": ("log_busiest", "log_k_iterations"),
    "log_l2_time": ("log_block_waves", "log_k_iterations", "-log_busy"),
    "log_memory_time": ("-log_fed",),
    "log_latency_time": ("log_full_waves", "log_per_tile"),
    "log_issue_time": ("log_busiest", "log_k_iterations"),
    "log_estimate": ("log_estimate_us",),
}
"""Terms of the problem that each feature is a sum of, beside the shared part of the list."""
_MIX = np.zeros((len(CONFIG_FEATURES) + len(PROBLEM_FEATURES) + 1, len(TERMS)), dtype=np.float32)
_MIX[-1, TERMS.index("one")] = 1
for _feature, _names in _MIXED.items():
    for _name in _names:
        _MIX[CONFIG_FEATURES.index(_feature), TERMS.index(_name.removeprefix("-"))] = -1 if _name[0] == "-" else 1
_TIMES = tuple(name for name in CONFIG_FEATURES if name.endswith("_time"))
_SHIFTED = [
    CONFIG_FEATURES.index(name)
    for name in ("log_padding_m", "log_padding_n", "log_padding_k", "log_traffic", *_TIMES, "log_estimate")
]
"""Features with the same addition from a problem for all configs other than vendor kernels."""


def _shifts(work: Work) -> list[float]:
    roofline = work.roofline_us
    waves = work.device.multiprocessors / work.bytes_moved
    times = (1, 1, 1e6 * work.memory_s, 1, 1, 1)
    factors = (1 / work.m, 1 / work.n, 1 / work.k, waves, *(time / roofline for time in times))
    return [math.log2(factor) for factor in factors]
