"""Parquet: one row a timing, with the columns of the view ``observations``; for other programs to read.

It is written from record batches, so that an export need not fit into memory. JSON Lines is the format to move
measurements between warehouses; this one has no ``extra`` fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from diode_store.errors import ExportError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ROWS_PER_GROUP = 122_880


def write(
    path: Path, batches: pa.RecordBatchReader, on_progress: Callable[[float], None] = lambda _timings: None
) -> int:
    """Write ``batches`` to the file ``path`` and return the number of rows.

    Args:
        path: the file to make.
        batches: rows of ``observations``.
        on_progress: called with the number of rows just written.

    Raises:
        ExportError: it cannot be written.
    """
    rows = 0
    try:
        with pq.ParquetWriter(path, batches.schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_table(pa.Table.from_batches([batch]), row_group_size=_ROWS_PER_GROUP)
                rows += batch.num_rows
                on_progress(batch.num_rows)
    except (OSError, pa.ArrowException) as error:
        raise ExportError(f"{path} cannot be written: {first_line(error)}; check its folder") from error
    return rows
