"""Turn rows of a database into Arrow columns of the cache's types."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from diode_store.cache.layout import BYTES, FACTS, FLAG, INT, JSON, REAL, SNAPSHOTS, TEXT, TIME
from diode_store.errors import CacheValueError, first_line
from diode_store.values.checks import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from diode_store.cache.layout import Columns

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


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of one of ``diode_store.cache.layout``' types."""
    return _ARROW[kind]


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return the Arrow schema of a table's columns."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in columns.items()])


def batch_of(columns: Columns, values: Iterable[Sequence[Any]]) -> pa.RecordBatch:
    """Return some rows of SQLite as Arrow columns.

    Raises:
        CacheValueError: a value does not have its column's type, which SQLite allows.
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
        CacheValueError: there is such a value.
    """
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise CacheValueError(
            f"the warehouse holds a value of the wrong type: {first_line(error)}; correct that row"
        ) from error


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
