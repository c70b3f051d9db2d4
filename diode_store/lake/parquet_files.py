"""The lake's Parquet files: rows of a database into columns, columns into files, and small files into large ones."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diode_store.batching import ROWS_PER_GROUP
from diode_store.errors import LakeError, LakeValueError, first_line
from diode_store.lake.layout import BYTES, FACTS, FLAG, INT, JSON, REAL, TEXT, TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from diode_store.lake.folder import Folder

Columns = dict[str, str]
"""Column → type, as in ``diode_store.lake.layout``."""

_ARROW = {
    INT: pa.int64(),
    REAL: pa.float64(),
    TEXT: pa.string(),
    FLAG: pa.bool_(),
    TIME: pa.timestamp("us"),
    JSON: pa.string(),
    BYTES: pa.binary(),
}
_WHOLE = frozenset({int, type(None)})
# Measured times are all different, so that a dictionary of them costs twice the time and size.
_WITHOUT_DICTIONARY = (REAL, BYTES, TIME)


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of one of ``diode_store.lake.layout``' types."""
    return _ARROW[kind]


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return the Arrow schema of a table's columns."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in columns.items()])


def table_of(columns: Columns, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return batches as one table."""
    return pa.Table.from_batches(list(batches), arrow_schema(columns))


def batch_of(columns: Columns, values: Iterable[Sequence[Any]]) -> pa.RecordBatch:
    """Return the columns of some rows of SQLite's as Arrow.

    Raises:
        LakeValueError: a value is not of its column's type, which SQLite does not prevent.
    """
    with checked_values():
        arrays = [_array(kind, column) for kind, column in zip(columns.values(), values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


@contextlib.contextmanager
def checked_values() -> Iterator[None]:
    """Name a value that does not fit its column, which SQLite does not prevent.

    Raises:
        LakeValueError: there is one.
    """
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise LakeValueError(
            f"the warehouse holds a value of the wrong type: {first_line(error)}; correct that row"
        ) from error


def write(folder: Folder, name: str, columns: Columns, table: pa.Table) -> None:
    """Write ``table`` to the Parquet file ``name``, whole or not at all.

    Raises:
        LakeError: the file cannot be written.
    """
    repeated = [column for column, kind in columns.items() if kind not in _WITHOUT_DICTIONARY]
    try:
        with folder.writing(name) as path:
            pq.write_table(
                table.combine_chunks(),
                path,
                row_group_size=ROWS_PER_GROUP,
                compression="lz4",  # a quarter larger than zstd, and scanned in two thirds of the time
                use_dictionary=repeated,
            )
    except (OSError, pa.ArrowException) as error:
        raise LakeError(
            f"{folder}/{name} cannot be written: {first_line(error)}; free some space or check its folder"
        ) from error


def read(folder: Folder, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a file's columns.

    Raises:
        LakeError: it cannot be read.
    """
    try:
        return pq.read_table(folder.open(name), columns=None if columns is None else list(columns), partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{folder}/{name} cannot be read: {first_line(error)}; run `diode sync --rebuild`") from error


def merge(folder: Folder, name: str, table: str, parts: Iterable[tuple[str, Sequence[int]]]) -> int:
    """Write what ``parts`` hold of ``table`` to one file and return its rows.

    Args:
        folder: where the files are.
        name: the file to write.
        table: ``measurements`` or ``timings``.
        parts: files, each with the ids of the measurements to leave out.
    """
    key = next(iter(FACTS[table]))
    merged = pa.concat_tables([without(read(folder, part), key, dropped) for part, dropped in parts])
    write(folder, name, FACTS[table], merged)
    return int(merged.num_rows)


def count_timings(folder: Folder, name: str, measurements: Iterable[int]) -> int:
    """Return how many timings of ``measurements`` a file holds."""
    wanted = pa.array(sorted(measurements), pa.int64())
    found = pc.sum(pc.is_in(read(folder, name, ("measurement_id",))["measurement_id"], value_set=wanted)).as_py()
    return int(found or 0)


def without(table: pa.Table, key: str, dropped: Sequence[int]) -> pa.Table:
    """Return the rows of a fact table whose measurement is not among ``dropped``."""
    if not dropped:
        return table
    return table.filter(pc.invert(pc.is_in(table[key], value_set=pa.array(dropped, pa.int64()))))


def _array(kind: str, values: Sequence[Any]) -> pa.Array:
    if kind == TIME:
        return times_of(pa.array(values, pa.string()))
    if kind in (INT, FLAG) and not _WHOLE.issuperset(map(type, values)):
        # Arrow would drop the fraction.
        raise TypeError(f"{next(value for value in values if type(value) not in _WHOLE)!r} is not a whole number")
    return pa.array(values, pa.int8()).cast(pa.bool_()) if kind == FLAG else pa.array(values, _ARROW[kind])


def times_of(texts: pa.Array) -> pa.Array:
    """Return times without their zone, in UTC; SQLite keeps them as text, in UTC where it names no zone."""
    try:
        return texts.cast(_ARROW[TIME])
    except pa.ArrowInvalid:
        return pa.array([text and _utc(text) for text in texts.to_pylist()], _ARROW[TIME])


def _utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
