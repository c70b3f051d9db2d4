"""The lake's Parquet files: turns database rows into columns, columns into files, and small files into large ones."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diode_store.errors import LakeError, LakeValueError, first_line
from diode_store.lake.layout import BYTES, FACTS, FLAG, INT, JSON, REAL, SNAPSHOTS, TEXT, TIME
from diode_store.values.batching import ROWS_PER_GROUP
from diode_store.values.checks import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from diode_store.lake.folder import Folder

Columns = dict[str, str]
"""Type of each column, as in ``diode_store.lake.layout``."""

_ARROW = {
    INT: pa.int64(),
    REAL: pa.float64(),
    TEXT: pa.string(),
    FLAG: pa.bool_(),
    TIME: pa.timestamp("us"),
    JSON: pa.string(),
    BYTES: pa.binary(),
}
_IN_WORDS = {
    INT: "a whole number",
    REAL: "a number",
    TEXT: "text",
    FLAG: "0 or 1",
    TIME: "a time",
    JSON: "text",
    BYTES: "bytes",
}
_WHOLE = frozenset({int, type(None)})
# Measured times rarely repeat, so a dictionary of them would double time and size.
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
    """Return some rows of SQLite as Arrow columns.

    Raises:
        LakeValueError: a value does not have its column's type, which SQLite allows.
    """
    with checked_values():
        arrays = [_array(kind, column) for kind, column in zip(columns.values(), values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def fitting(columns: Columns, rows: Iterable[Sequence[Any]], left_out: list[str]) -> Iterator[Sequence[Any]]:
    """Yield the rows whose values all fit their columns; add a line to ``left_out`` for every other row."""
    names, kinds = list(columns), list(columns.values())
    for row in rows:
        wrong = next((place for place, kind in enumerate(kinds) if not _fits(kind, row[place])), None)
        if wrong is None:
            yield row
        else:
            left_out.append(
                f"{_table_of(columns)} row with {_key(names, row)}: {names[wrong]} is {shown(row[wrong])}, "
                f"not {_IN_WORDS[kinds[wrong]]}"
            )


def _fits(kind: str, value: object) -> bool:
    try:
        _array(kind, [value])
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _table_of(columns: Columns) -> str:
    """Return the name of the table with exactly these columns."""
    return next((name for name, found in (FACTS | SNAPSHOTS).items() if found is columns), "a")


def _key(names: Sequence[str], row: Sequence[Any]) -> str:
    """Return what identifies a row: its id, or the first two columns of a table without ids."""
    of_key = names[:1] if names[0] == "id" else names[:2]
    return " and ".join(f"{name} {shown(value)}" for name, value in zip(of_key, row, strict=False))


@contextlib.contextmanager
def checked_values() -> Iterator[None]:
    """Name a value that does not fit its column, which SQLite allows.

    Raises:
        LakeValueError: there is such a value.
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
        LakeError: the file cannot be read.
    """
    try:
        return pq.read_table(folder.open(name), columns=None if columns is None else list(columns), partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{folder}/{name} cannot be read: {first_line(error)}; run `diode sync --rebuild`") from error


def merge(folder: Folder, name: str, table: str, parts: Iterable[tuple[str, Sequence[int]]]) -> int:
    """Merge the rows of ``parts`` into one file and return their number.

    Args:
        folder: folder of the files.
        name: the file to write.
        table: ``measurements`` or ``timings``.
        parts: files, each with the ids of the measurements to leave out.
    """
    key = next(iter(FACTS[table]))
    merged = pa.concat_tables([without(read(folder, part), key, dropped) for part, dropped in parts])
    write(folder, name, FACTS[table], merged)
    return int(merged.num_rows)


def count_timings(folder: Folder, name: str, measurements: Iterable[int]) -> int:
    """Return the number of timings of ``measurements`` in a file."""
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
    """Return times in UTC without their zone; SQLite keeps times as text, in UTC unless the text names a zone."""
    try:
        return texts.cast(_ARROW[TIME])
    except pa.ArrowInvalid:
        return pa.array([text and _utc(text) for text in texts.to_pylist()], _ARROW[TIME])


def _utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
