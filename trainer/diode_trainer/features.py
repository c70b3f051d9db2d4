"""What a model sees of a matrix product, a device and the kernels that could run it.

Vectorised over one problem and many configs, in NumPy alone, and used by the trainer and by the hook alike. Every
size, ratio and time is a base-2 logarithm, so that ratios become differences. Raise ``FEATURE_VERSION`` with any
change to a formula, here, in ``launch`` or in ``descriptor``: a model only ever sees what it was trained on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diode_trainer.descriptor import describe
from diode_trainer.launch import MOST_REGISTERS, Launch, Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape

FEATURE_VERSION = 3

# Output tiles of about these sizes are what cuBLAS chooses among, so the vendor's time depends on them.
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
)
"""Names of the problem's features, in order."""

VENDOR_FLAGS = ("is_vendor", "is_vendor_bias")
"""The first config features, and all that a vendor kernel has."""
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
CONFIG_FEATURES = (*_FLAGS, *_NUMBERS, *_LOGS)
"""Names of a config's features, in order."""
GENERATED = CONFIG_FEATURES.index("is_generated")
"""Which feature says that a config is not a vendor's."""
_FIRST_LOG = len(_FLAGS) + len(_NUMBERS)


class ModelInputs(NamedTuple):
    """What a model is told of one problem and n configs, and what is certain without it."""

    problem: NDArray[np.float32]
    """Shape (P,), in the order of ``PROBLEM_FEATURES``."""
    config: NDArray[np.float32]
    """Shape (C, n), in the order of ``CONFIG_FEATURES``: a row for each feature, which is how they are computed."""
    vendor: NDArray[np.bool_]
    """Which configs are a vendor's kernels, shape (n,)."""
    possible: NDArray[np.bool_]
    """Which configs' operand tiles fit into the shared memory of one block, shape (n,).

    It is True where that is unsure: it refuses none of the configs that ran in the bundled H200 measurements."""
    roofline_us: float


def model_inputs(shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> ModelInputs:
    """Return everything that a model needs for the configs of one problem on one device."""
    work = Work(shape, describe(hardware))
    launch = Launch(work, columns)
    return ModelInputs(_of_problem(work), _of_configs(launch, columns), launch.vendor, _fits(launch), work.roofline_us)


def roofline_us(shape: ProblemShape, hardware: Hardware) -> float:
    """Return the least time the device could need, in microseconds.

    The longer of arithmetic at peak and memory at full bandwidth (Williams et al., "Roofline", 2009), plus the
    floor of a launch. The peak is TF32's where that is allowed.
    """
    return Work(shape, describe(hardware)).roofline_us


def problem_features(shape: ProblemShape, hardware: Hardware) -> NDArray[np.float32]:
    """Return what is known of the problem alone, shape (P,), in the order of ``PROBLEM_FEATURES``."""
    return _of_problem(Work(shape, describe(hardware)))


def _of_problem(work: Work) -> NDArray[np.float32]:
    shape = work.shape
    sizes = [
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
    ]
    flags = [
        shape.dtype == "float16",
        shape.dtype == "bfloat16",
        shape.dtype == "float32",
        shape.tf32,
        shape.op in ("bmm", "baddbmm"),
        shape.op in ("addmm", "baddbmm"),
        shape.layout[0] == "t",
        shape.layout[1] == "t",
    ]
    access = [work.access_a, work.access_b, work.access_c]
    tiles = np.array([shape.b * -(-shape.m // m) * -(-shape.n // n) for m, n in _VENDOR_TILES], dtype=np.float64)
    waves = tiles / work.device.multiprocessors
    logs = np.log2([*access, *waves, *(np.ceil(waves) / waves)])
    return np.concatenate([np.log2(sizes), flags, logs]).astype(np.float32)


def config_features(shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> NDArray[np.float32]:
    """Return what is known of each config on this problem and device, shape (n, C), as in ``CONFIG_FEATURES``.

    A vendor kernel hides its parameters: all but its ``VENDOR_FLAGS`` are 0.
    """
    return _of_configs(Launch(Work(shape, describe(hardware)), columns), columns).T


def _of_configs(launch: Launch, columns: ConfigColumns) -> NDArray[np.float32]:
    bias = columns.template_mask(lambda template: template == "aten::bias_addmm")
    rows = (launch.vendor, bias, *_flags(launch), *_geometry(launch), *_costs(launch))
    features = np.array(rows, dtype=np.float32)  # (C, n)
    np.log2(features[_FIRST_LOG:], out=features[_FIRST_LOG:])
    features[len(VENDOR_FLAGS) :, launch.vendor] = 0
    return features


def _fits(launch: Launch) -> NDArray[np.bool_]:
    # A loop of one iteration needs no buffers at all: Triton may hand its tiles over in registers.
    in_registers = ~launch.tma & (launch.k_iterations <= 1)
    fits = launch.shared_memory <= launch.work.device.shared_memory_per_block_bytes
    result: NDArray[np.bool_] = launch.vendor | in_registers | fits
    return result


def _flags(launch: Launch) -> tuple[NDArray[Any], ...]:
    return (
        ~launch.vendor,
        launch.tma,
        launch.wgmma,
        launch.turns_over,
        launch.allow_tf32,
        launch.k_iterations * launch.block_k == launch.work.shape.k,
        launch.k_iterations == 1,
        launch.stages,
        launch.stages == 1,
        launch.busy,
    )


def _geometry(launch: Launch) -> tuple[NDArray[Any], ...]:
    shape = launch.work.shape
    return (
        launch.block_m,
        launch.block_n,
        launch.block_k,
        launch.warps,
        launch.group_m,
        launch.buffers_a,
        launch.buffers_b,
        launch.tiles_m,
        launch.tiles_n,
        launch.k_iterations,
        launch.waves,
        launch.block_waves,
        launch.tiles_m * launch.block_m / shape.m,
        launch.tiles_n * launch.block_n / shape.n,
        launch.k_iterations * launch.block_k / shape.k,
        np.ceil(launch.waves) / launch.waves,
        launch.busiest / launch.block_waves,
    )


def _costs(launch: Launch) -> tuple[NDArray[Any], ...]:
    work, shape = launch.work, launch.work.shape
    roofline = np.float32(work.roofline_us)
    return (
        launch.accumulators,
        launch.demand,
        np.maximum(launch.demand / MOST_REGISTERS, 1),
        launch.loads,
        launch.stores,
        launch.shared_memory,
        launch.occupancy,
        launch.resident * launch.warps,
        launch.block_m * launch.block_n / (launch.block_m + launch.block_n),
        launch.traffic / np.float32(work.bytes_moved),
        launch.in_flight,
        # Bytes that are contiguous in memory in one row of an operand's tile.
        (launch.block_m if shape.layout[0] == "t" else launch.block_k) * work.itemsize,
        (launch.block_k if shape.layout[1] == "t" else launch.block_n) * work.itemsize,
        launch.compute_us / roofline,
        launch.l2_us / roofline,
        launch.memory_us / roofline,
        launch.latency_us / roofline,
        launch.issue_us / roofline,
        launch.estimate_us / roofline,
    )
