"""Features of flex attention and of candidate kernels, as a model sees them.

A kernel keeps a block of rows in registers and walks over blocks of columns. Forward and in decoding the rows are
queries. Backward there are two kernels: one walks over keys for each block of queries, the other over queries for each
block of keys. Sizes and ratios are base-2 logarithms. Raise ``ATTENTION_VERSION`` with any change to a formula here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diode_store.candidates.attention_space import REGISTERS_PER_THREAD, decoded_rows
from diode_store.devices.descriptor import describe
from diode_store.ops.attending import BACKWARD, DECODING, MASK
from diode_store.ops.work import itemsize
from diode_store.timing.roofline import roofline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.devices.descriptor import Descriptor
    from diode_store.records import Hardware, ProblemShape

    Floats = NDArray[np.float32]

ATTENTION_VERSION = 1
PROBLEM_FEATURES = (
    "log_b",
    "log_batch",
    "log_m",
    "log_n",
    "log_k",
    "log_value_size",
    "log_padding_k",
    "log_queries_of_key",
    "log_seen_keys",
    "partial_share",
    "has_mask",
    "log_memory_over_compute",
)
"""Names of the problem features, in order."""
_OF_KERNEL = (
    "log_rows",
    "log_columns",
    "log_accumulators",
    "log_spill",
    "log_shared_memory",
    "log_occupancy",
    "log_blocks",
    "log_waves",
    "log_quantisation",
    "log_iterations",
    "log_rows_of_warp",
    "log_resident_warps",
    "log_tile_intensity",
)
CONFIG_FEATURES = (
    "is_vendor",
    "is_vendor_bias",
    "is_generated",
    "one_stage",
    "is_warp_group",
    "num_stages",
    "log_warps",
    "log_splits",
    "log_split_keys",
    *(f"{name}_of_queries" for name in _OF_KERNEL),
    *(f"{name}_of_keys" for name in _OF_KERNEL),
)
"""Names of the config features, in order. Those of keys are 0 for all but gradients."""

_WARP = 32
_OTHER_REGISTERS = 64
"""Registers of a thread beside its accumulators; a rough figure."""
_MOST_BLOCKS = 32
"""Resident blocks of one multiprocessor (CUDA C programming guide)."""
_WARP_GROUP = 4
_MOST_QUANTISED = 8
"""Waves from which the last one hardly counts."""
_SPLITS_OF_MULTIPROCESSOR = 2
"""Blocks of decoding for each multiprocessor (``get_split_k`` of torch 2.9 to 2.15)."""


class _Sizes(NamedTuple):
    """Sizes of a problem."""

    b: int
    batch: int
    m: int
    n: int
    k: int
    value_size: int
    kv_heads: int
    heads: int
    seen_keys: float
    """Keys of the blocks that a kernel computes for a query, in the mean."""
    partial: float
    """Share of partial blocks among these."""
    element_bytes: int

    @classmethod
    def of(cls, shape: ProblemShape) -> _Sizes:
        heads = int(shape.dimension("heads", shape.b))
        full, partial = (shape.dimension(name) for name in ("full", "partial"))
        is_described = full is not None or partial is not None
        share = (full or 0.0) + (partial or 0.0) if is_described else 1.0
        return cls(
            b=shape.b,
            batch=int(shape.dimension("batch", 1)),
            m=shape.m,
            n=shape.n,
            k=shape.k,
            value_size=int(shape.dimension("value_size", shape.k)),
            kv_heads=int(shape.dimension("kv_heads", heads)),
            heads=heads,
            seen_keys=max(share * shape.n, 1.0),
            partial=(partial or 0.0) / (share or 1.0),
            element_bytes=itemsize(shape.dtype),
        )

    @property
    def padded(self) -> tuple[int, int]:
        """Head sizes of queries and of values, as powers of 2."""
        return _power_of_2(self.k), _power_of_2(self.value_size)


class AttentionInputs:
    """Features of one problem and n configs, and the configs that are certain to fail."""

    def __init__(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> None:
        self.roofline_us = roofline(shape, describe(hardware)).us
        self.problem = attention_problem_features(shape, hardware)
        """Shape (P,), in the order of ``PROBLEM_FEATURES``."""
        self.configs, self.possible = _of_configs(shape, describe(hardware), columns)
        """Shapes (C, n), in the order of ``CONFIG_FEATURES``, and (n,)."""


def attention_problem_features(shape: ProblemShape, hardware: Hardware) -> Floats:
    """Return the features of a problem alone, shape (P,), in the order of ``PROBLEM_FEATURES``."""
    sizes, bound = _Sizes.of(shape), roofline(shape, describe(hardware))
    logs = np.log2(
        [
            sizes.b,
            sizes.batch,
            sizes.m,
            sizes.n,
            sizes.k,
            sizes.value_size,
            sizes.padded[0] / sizes.k,
            sizes.heads / sizes.kv_heads,
            sizes.seen_keys,
        ]
    )
    flags = [sizes.partial, shape.dimension(MASK) is not None, np.log2(bound.memory_s / bound.compute_s)]
    return np.array([*logs, *flags], dtype=np.float32)


def _of_configs(shape: ProblemShape, device: Descriptor, columns: ConfigColumns) -> tuple[Floats, NDArray[np.bool_]]:
    sizes = _Sizes.of(shape)
    warps, stages = np.maximum(columns.num_warps, 1).astype(np.float64), columns.num_stages.astype(np.float64)
    splits = 1
    if shape.op == DECODING:
        splits = max(device.multiprocessors // max(sizes.batch * sizes.kv_heads, 1) * _SPLITS_OF_MULTIPROCESSOR, 1)
    threads = _Threads(device, sizes, warps, stages)
    query, value = sizes.padded
    if shape.op == BACKWARD:
        m1, n1, m2, n2 = _gradient_blocks(columns)
        queries = threads.kernel(m2, n2, sizes.b, sizes.m, sizes.seen_keys, query, query + value)
        seen_queries = sizes.seen_keys * sizes.m / sizes.n * (sizes.heads // sizes.kv_heads)
        keys = threads.kernel(n1, m1, sizes.batch * sizes.kv_heads, sizes.n, seen_queries, query + value, query + value)
    else:
        rows, grid, of_rows = np.maximum(columns.block_m, 1), sizes.b, sizes.m
        if shape.op == DECODING:
            rows, grid, of_rows = np.full(len(warps), decoded_rows(shape)), sizes.batch * sizes.kv_heads * splits, 1
        block_n = np.maximum(columns.block_n, 1)
        queries = threads.kernel(rows, block_n, grid, of_rows, sizes.seen_keys / splits, value, query + value)
        keys = _Kernel(np.zeros((len(_OF_KERNEL), len(warps))), np.ones(len(warps), dtype=np.bool_))
    nothing, one = np.zeros(len(warps)), np.ones(len(warps))
    common = [nothing, nothing, one, stages == 1, warps >= _WARP_GROUP, stages, np.log2(warps)]
    common += [one * np.log2(splits), one * np.log2(sizes.seen_keys / splits)]
    features = np.concatenate((common, queries.features, keys.features)).astype(np.float32)
    return features, queries.fits & keys.fits


class _Kernel(NamedTuple):
    """Features of one of the kernels of each config."""

    features: NDArray[np.float64]
    """Shape (F, n), in the order of ``_OF_KERNEL``."""
    fits: NDArray[np.bool_]
    """Shape (n,): the blocks fit into the shared memory of a block."""


class _Threads(NamedTuple):
    """Properties that the kernels of n configs share."""

    device: Descriptor
    sizes: _Sizes
    warps: NDArray[np.float64]
    stages: NDArray[np.float64]

    def kernel(
        self,
        rows: NDArray[np.int32],
        columns: NDArray[np.int32],
        grid: int,
        all_rows: int,
        all_columns: float,
        accumulated: int,
        loaded: int,
    ) -> _Kernel:
        """Return the features of a kernel.

        Args:
            rows: rows of a block, shape (n,).
            columns: columns of a block, shape (n,).
            grid: matrices with rows of their own.
            all_rows: rows of each matrix.
            all_columns: columns that a row sees, in the mean.
            accumulated: numbers that a row accumulates.
            loaded: numbers that are loaded for a column.
        """
        accumulators = rows * (accumulated + columns) / (_WARP * self.warps)
        held = rows * self.sizes.padded[0]
        shared_memory = (held + np.maximum(self.stages, 1) * columns * loaded) * self.sizes.element_bytes
        occupancy = self._occupancy(accumulators, shared_memory)
        blocks = grid * np.ceil(all_rows / rows)
        waves = blocks / (self.device.multiprocessors * occupancy)
        quantisation = np.where(waves < _MOST_QUANTISED, np.ceil(waves) / waves, 1)
        features = np.log2(
            [
                rows,
                columns,
                accumulators,
                np.maximum(accumulators / (REGISTERS_PER_THREAD - _OTHER_REGISTERS), 1),
                shared_memory,
                occupancy,
                blocks / self.device.multiprocessors,
                waves,
                quantisation,
                all_columns / columns + 1,
                rows / self.warps,
                occupancy * self.warps,
                rows * columns / (rows + columns),
            ]
        )
        # The first stage may stay in registers, so that a little more than this formula fits.
        fits = shared_memory - columns * loaded * self.sizes.element_bytes <= self.device.shared_memory_per_block_bytes
        return _Kernel(features, fits)

    def _occupancy(self, accumulators: NDArray[Any], shared_memory: NDArray[Any]) -> NDArray[Any]:
        """Return the blocks that a multiprocessor runs at once, by the numbers of a thread and the bytes of a block."""
        architecture, threads = self.device.architecture, _WARP * self.warps
        registers = np.minimum(accumulators + _OTHER_REGISTERS, REGISTERS_PER_THREAD)
        resident = np.minimum(
            architecture.shared_memory_bytes / shared_memory,
            np.minimum(architecture.registers / (registers * threads), architecture.threads / threads),
        )
        found: NDArray[Any] = np.maximum(np.minimum(np.floor(resident), _MOST_BLOCKS), 1)
        return found


def _gradient_blocks(columns: ConfigColumns) -> NDArray[np.int32]:
    """Return a row for each of ``GRADIENT_BLOCKS``, shape (4, n); 1 where a config has none."""
    if columns.gradient_blocks is None:
        return np.ones((4, len(columns)), dtype=np.int32)
    return np.maximum(columns.gradient_blocks.T, 1)


def _power_of_2(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
