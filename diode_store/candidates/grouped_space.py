"""Inductor's list of configs for grouped products, as data.

From ``torch/_inductor/kernel/mm_grouped.py`` of PyTorch 2.13.0 (BSD-3-Clause). A grouped product has one list, whatever
the search space; ``early_config_prune`` shortens it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from diode_store.candidates.default_space import GemmConfig
from diode_store.ops.grouping import ROWS
from diode_store.ops.work import itemsize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.ops import ProblemShape

_CONFIGS = tuple(
    GemmConfig(*numbers)
    for numbers in itertools.product((16, 32, 64, 128), (64, 128, 256), (64, 128, 256), (3, 4), (4, 8))
)
_ROWS_OF_SHORT_GROUPS = ((16, 16, 32), (32, 16, 64), (64, 32, 128))
"""Mean rows of a group up to which a limit holds, with the smallest and the largest BLOCK_M listed there."""
_ROWS_OF_LONG_GROUPS = (64, 128)


def grouped_configs(shape: ProblemShape, shared_memory_bytes: float) -> Iterator[GemmConfig]:
    """Yield what Inductor leaves of the list for a number of rows, and for the device's shared memory.

    Args:
        shape: problem.
        shared_memory_bytes: shared memory of a block on the device; infinite if it is unknown.
    """
    rows, _, _ = shape.whole
    if shape.dimension("form") == ROWS:
        rows //= shape.b
    low, high = next(((low, high) for most, low, high in _ROWS_OF_SHORT_GROUPS if rows <= most), _ROWS_OF_LONG_GROUPS)
    for config in _CONFIGS:
        tiles = (config.block_m + config.block_n) * config.block_k * config.num_stages * itemsize(shape.dtype)
        if low <= config.block_m <= high and tiles <= shared_memory_bytes:
            yield config
