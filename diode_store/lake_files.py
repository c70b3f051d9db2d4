"""The lake's Parquet files: rows of a database into columns, columns into files, and small files into large ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diode_store.batching import in_batches
from diode_store.errors import LakeError, first_line
from diode_store.files import whole_file
from diode_store.lake_tables import BYTES, FACTS, FLAG, INT, JSON, REAL, TEXT, TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

Columns = dict[str, str]
"""Column → type, as in ``diode_store.lake_tables``."""

_ARROW = {
    INT: pa.int64(),
    REAL: pa.float64(),
    TEXT: pa.string(),
    FLAG: pa.bool_(),
    TIME: pa.timestamp("us"),
    JSON: pa.string(),
    BYTES: pa.binary(),
}
_ROWS_AT_ONCE = 20_000
# Several groups a file, so that DuckDB reads one file with several threads.
_ROWS_PER_GROUP = 122_880


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return the Arrow schema of a table's columns."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in columns.items()])


def write_rows(path: Path, columns: Columns, rows: Iterable[tuple[Any, ...]]) -> int:
    """Write ``rows`` to the Parquet file ``path`` and return how many they were; memory stays flat.

    Raises:
        LakeError: the file cannot be written, or a value does not fit its column.
    """
    schema = arrow_schema(columns)
    return _write(path, schema, _batches(schema, list(columns.values()), rows))


def read(path: Path, names: Sequence[str] | None = None) -> pa.Table:
    """Return a file's columns.

    Raises:
        LakeError: it cannot be read.
    """
    try:
        return pq.read_table(path, columns=None if names is None else list(names), partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{path} cannot be read: {first_line(error)}; run `diode sync --rebuild`") from error


def merge(path: Path, table: str, parts: Iterable[tuple[Path, Sequence[int]]]) -> int:
    """Write what ``parts`` hold of ``table`` to one file and return its rows.

    Args:
        path: the file to write.
        table: ``measurements`` or ``timings``.
        parts: files, each with the ids of the measurements to leave out.
    """
    key = "id" if table == "measurements" else "measurement_id"
    kept = (_without(read(part), key, dropped) for part, dropped in parts)
    return _write(path, arrow_schema(FACTS[table]), (batch for part in kept for batch in part.to_batches()))


def count_timings(path: Path, measurements: Iterable[int]) -> int:
    """Return how many timings of ``measurements`` a file holds."""
    wanted = pa.array(sorted(measurements), pa.int64())
    found = pc.sum(pc.is_in(read(path, ("measurement_id",))["measurement_id"], value_set=wanted)).as_py()
    return int(found or 0)


def _without(table: pa.Table, key: str, dropped: Sequence[int]) -> pa.Table:
    if not dropped:
        return table
    return table.filter(pc.invert(pc.is_in(table[key], value_set=pa.array(dropped, pa.int64()))))


def _write(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write ``path`` and return its rows; a file with a good name is whole."""
    written = 0
    try:
        with whole_file(path) as beside, pq.ParquetWriter(beside, schema, compression="zstd") as writer:
            for group in in_batches(batches, lambda batch: int(batch.num_rows), _ROWS_PER_GROUP):
                table = pa.Table.from_batches(group, schema)
                writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
                written += table.num_rows
    except (OSError, pa.ArrowException) as error:
        raise LakeError(
            f"{path} cannot be written: {first_line(error)}; free some space or check its folder"
        ) from error
    return written


def _batches(schema: pa.Schema, kinds: list[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    remaining = iter(rows)
    while some := list(islice(remaining, _ROWS_AT_ONCE)):
        columns = zip(*some, strict=True)
        arrays = [_array(kind, column) for kind, column in zip(kinds, columns, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: str, values: tuple[Any, ...]) -> pa.Array:
    """Return a column; databases differ in how they hand over flags, times, JSON and bytes."""
    if kind == FLAG:
        return pa.array(values).cast(pa.bool_())
    if kind == TIME:
        return pa.array([_utc(value) for value in values], _ARROW[TIME])
    if kind == JSON:
        return pa.array([_json_text(value) for value in values], pa.string())
    if kind == BYTES:
        return pa.array([None if value is None else bytes(value) for value in values], pa.binary())
    return pa.array(values, _ARROW[kind])


def _utc(value: str | datetime | None) -> datetime | None:
    """Return a time without its zone, in UTC; SQLite keeps times as UTC text."""
    if value is None:
        return None
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _json_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
