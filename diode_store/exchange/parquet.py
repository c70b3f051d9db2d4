"""Parquet: one row per timing, with the columns of the view ``observations``, for other programs.

Further columns (``extra`` fields and the like) serve only ``diode_store.exchange.parquet_reading``, which turns a file
back into its measurements. The writer takes record batches, so an export need not fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from diode_store.errors import ExportError, first_line
from diode_store.values.batching import ROWS_PER_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


@dataclass(frozen=True)
class Kind:
    """Type of a column."""

    told: str
    checks: tuple[Callable[[pa.DataType], bool], ...]

    def holds(self, found: pa.DataType) -> bool:
        """Return whether a column of type ``found`` can be read as this kind; a column without values always can."""
        if pa.types.is_dictionary(found):
            found = found.value_type
        return pa.types.is_null(found) or any(check(found) for check in self.checks)


_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
TEXT = Kind("text", _TEXT_TYPES)
JSON = Kind("JSON as text", _TEXT_TYPES)
INT = Kind("whole numbers", (pa.types.is_integer,))
REAL = Kind("numbers", (pa.types.is_floating, pa.types.is_integer))
FLAG = Kind("true or false", (pa.types.is_boolean,))
TIME = Kind("times", (pa.types.is_timestamp,))

REQUIRED = (
    "measurement_uid",
    "hardware",
    "vendor",
    "arch",
    "multiprocessors",
    "op",
    "inputs",
    "template",
    "runtime_us",
    "outcome",
    "source",
)
"""Columns without which rows are no measurements; a missing other column makes a value unknown."""

EXTRAS = (
    "measurement_extra",
    "hardware_extra",
    "environment_extra",
    "template_hashes",
    "problem_extra",
    "config_extra",
)
"""Columns missing in the view."""

COLUMNS: dict[str, Kind] = {
    **dict.fromkeys(("measurement_uid", "hardware", "vendor", "arch", "torch", "triton", "compute", "driver"), TEXT),
    **dict.fromkeys(("python", "os", "op", "dtype", "layout", "template", "acc_type", "outcome", "source"), TEXT),
    **dict.fromkeys(("search_space", "choice_policy", "statistic", "throttle_reasons", "flags", "dataset"), TEXT),
    **dict.fromkeys(("licence", "regime", "family", "sweep_id", "host", "device_uuid", "collector_version"), TEXT),
    **dict.fromkeys(("multiprocessors", "l2_bytes", "shared_memory_per_block_bytes", "memory_bytes"), INT),
    **dict.fromkeys(("memory_bandwidth_bytes_per_s", "max_clock_mhz", "b", "m", "n", "k"), INT),
    **dict.fromkeys(("block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps", "repeats"), INT),
    **dict.fromkeys(("sample_seed", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "foreign_processes"), INT),
    **dict.fromkeys(("tf32", "allow_tf32", "use_fast_accum", "is_estimate", "is_replay", "flush_l2"), FLAG),
    "launch_hidden": FLAG,
    **dict.fromkeys(("runtime_us", "p10_us", "p90_us"), REAL),
    "measured_at": TIME,
    **dict.fromkeys(("inputs", "scalars", "dimensions", "kwargs", "metrics", *EXTRAS), JSON),
}
"""Columns that are read; the others follow from these or belong to one warehouse."""


def write(
    path: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    on_progress: Callable[[float], None] = lambda _timings: None,
) -> int:
    """Write ``batches`` to the file ``path`` and return the number of rows.

    Args:
        path: the file to make.
        schema: schema of the batches.
        batches: rows of ``observations``, with ``metrics``, ``template_hashes`` and the ``extra`` of each table.
        on_progress: called with the number of newly written rows.

    Raises:
        ExportError: the file cannot be written.
    """
    rows = 0
    try:
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_table(pa.Table.from_batches([batch]), row_group_size=ROWS_PER_GROUP)
                rows += batch.num_rows
                on_progress(batch.num_rows)
    except (OSError, pa.ArrowException) as error:
        raise ExportError(f"{path} cannot be written: {first_line(error)}; check its folder") from error
    return rows
