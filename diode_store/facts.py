"""How measurements and their timings get into each database: the one place for its fastest way.

Both functions work in the caller's transaction, and the two databases keep the same values.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from sqlalchemy import LargeBinary

from diode_store import schema
from diode_store.database import driver_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import sqlalchemy as sa

_COLUMNS = tuple(column.name for column in schema.timings.columns if column.name != "extra")
_ROW = f"({', '.join('?' * len(_COLUMNS))})"
_INSERT = f"INSERT INTO timings ({', '.join(_COLUMNS)}) VALUES "  # noqa: S608 - names from our own schema
# A statement of many rows costs two thirds of as many of one, and lets other threads run all the while.
_ROWS_AT_ONCE = 1_000
_INSERT_MANY = _INSERT + ", ".join([_ROW] * _ROWS_AT_ONCE)
_COPY = f"COPY timings ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)"
# The server works on one part while the next one is packed.
_COPY_AT_ONCE = 2_000
_LOOK_UP_AT_ONCE = 500
_UNNEST = """
    INSERT INTO measurements (id, {names})
    SELECT new.id, {selected} FROM (
        SELECT nextval((SELECT pg_get_serial_sequence('measurements', 'id')::regclass)) AS id, t.*
        FROM unnest({arrays}) AS t ({array_names}) OFFSET 0
    ) AS new ORDER BY new.uid
    ON CONFLICT (uid) DO NOTHING RETURNING uid, id
"""
_MEASUREMENT_COLUMNS = tuple(column for column in schema.measurements.columns if column.name != "id")

TimingRow = tuple[int, int, float | None, str, int, int | None, float | None, float | None]
"""One row of ``timings``, in the order of its columns, without ``extra``."""


def insert_timings(connection: sa.Connection, rows: Sequence[TimingRow]) -> None:
    """Insert ``rows`` in the connection's transaction.

    Raises:
        DatabaseError: the database failed.
        RecordError: a value does not fit its column.
    """
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        whole = len(rows) - len(rows) % _ROWS_AT_ONCE
        for start in range(0, whole, _ROWS_AT_ONCE):
            some = rows[start : start + _ROWS_AT_ONCE]
            connection.exec_driver_sql(_INSERT_MANY, tuple(chain.from_iterable(some)))
        if whole < len(rows):
            connection.exec_driver_sql(_INSERT + _ROW, list(rows[whole:]))
    else:
        _copy_timings(connection, rows)


def insert_measurements(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> dict[bytes, int]:
    """Insert those of ``rows`` whose uid is not there yet, in their order; return their ids by uid.

    Writers that bring the same uids at the same time wait for each other and cannot deadlock.

    Args:
        connection: in a transaction that writes (``database.write_transaction``).
        rows: by column, every column of ``measurements`` but ``id``; their uids differ, and times are in UTC.

    Raises:
        DatabaseError: the database failed.
        RecordError: a value does not fit its column.
    """
    if not rows:
        return {}
    return (_insert_sqlite if connection.dialect.name == "sqlite" else _insert_postgres)(connection, rows)


def _copy_timings(connection: sa.Connection, rows: Sequence[TimingRow]) -> None:
    from diode_store.copy_format import HEADER, TRAILER, packed

    with driver_connection(connection) as driver, driver.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.write(HEADER)
        for start in range(0, len(rows), _COPY_AT_ONCE):
            copy.write(packed(rows[start : start + _COPY_AT_ONCE]))
        copy.write(TRAILER)


def _insert_sqlite(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> dict[bytes, int]:
    """Number the rows here: the transaction holds the write lock, so nobody else takes the same numbers.

    ``executemany`` cannot return what it inserted, and one statement a row that returns it takes twice as long.
    """
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'measurements'"
    first = 1 + (connection.exec_driver_sql(query).scalar() or 0)
    ids = {row["uid"]: number for number, row in enumerate(rows, first)}
    columns = [list(ids.values()), *(_bound(connection, column, rows) for column in _MEASUREMENT_COLUMNS)]
    names = ", ".join(["id", *(column.name for column in _MEASUREMENT_COLUMNS)])
    insert = (
        f"INSERT INTO measurements ({names}) VALUES ({', '.join('?' * len(columns))}) "  # noqa: S608 - our own names
        "ON CONFLICT (uid) DO NOTHING"
    )
    if connection.exec_driver_sql(insert, list(zip(*columns, strict=True))).rowcount == len(rows):
        return ids
    return {uid: number for uid, number in _ids(connection, list(ids)).items() if ids[uid] == number}


def _ids(connection: sa.Connection, uids: Sequence[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for start in range(0, len(uids), _LOOK_UP_AT_ONCE):
        some = uids[start : start + _LOOK_UP_AT_ONCE]
        marks = ", ".join("?" * len(some))
        query = f"SELECT uid, id FROM measurements WHERE uid IN ({marks})"  # noqa: S608 - only question marks
        found.update((bytes(uid), number) for uid, number in connection.exec_driver_sql(query, tuple(some)))
    return found


def _insert_postgres(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> dict[bytes, int]:
    """Insert all in one statement, an array a column; what is the same in every row is sent once.

    Rows are numbered in the order they came in and inserted in the order of their uids, so that two writers with
    the same uids wait for each other in one order.
    """
    selected, arrays, parameters = [], [], {}
    for column in _MEASUREMENT_COLUMNS:
        values = _bound(connection, column, rows)
        kind = column.type.compile(connection.dialect)
        if column.name != "uid" and values.count(values[0]) == len(values):
            selected.append(f"%({column.name})s::{kind}")
            parameters[column.name] = values[0]
        else:
            selected.append(f"new.{column.name}")
            arrays.append((column.name, f"%({column.name})s::{kind}[]"))
            parameters[column.name] = values
    insert = _UNNEST.format(
        names=", ".join(column.name for column in _MEASUREMENT_COLUMNS),
        selected=", ".join(selected),
        arrays=", ".join(value for _, value in arrays),
        array_names=", ".join(name for name, _ in arrays),
    )
    return {bytes(uid): number for uid, number in connection.exec_driver_sql(insert, parameters)}


def _bound(connection: sa.Connection, column: sa.Column[Any], rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return a column's values as the driver takes them: JSON as text, on SQLite times as text too."""
    name = column.name
    values = [row[name] for row in rows]
    process = _processor(connection, column)
    if process is None:
        return values
    if values.count(values[0]) == len(values):
        return [process(values[0])] * len(values)
    return [process(value) for value in values]


def _processor(connection: sa.Connection, column: sa.Column[Any]) -> Callable[[Any], Any] | None:
    if isinstance(column.type, LargeBinary):
        return None  # both drivers take bytes as they are; an object made of each would cost more than the rest
    return column.type.dialect_impl(connection.dialect).bind_processor(connection.dialect)
