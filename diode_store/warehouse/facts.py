"""Insert measurements and their timings, by the fastest method of each database.

Both functions work in the caller's transaction, and the two databases keep the same values.
"""

from __future__ import annotations

import sqlite3
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from diode_store.warehouse import schema
from diode_store.warehouse.bulk import insert_tuples, unnest
from diode_store.warehouse.database import driver_connection
from diode_store.warehouse.dimensions import select_by_key
from diode_store.warehouse.drivers.copy_format import COLUMNS, HEADER, TRAILER, packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import sqlalchemy as sa

    from diode_store.warehouse.drivers.copy_format import TimingRow

_ROW = f"({', '.join('?' * len(COLUMNS))})"
_INSERT = f"INSERT INTO timings ({', '.join(COLUMNS)}) VALUES "  # noqa: S608 - names from our own schema
# A statement of many rows is cheaper than one statement per row, and other threads can run meanwhile.
_MOST_ROWS_AT_ONCE = 4_000
_COPY = f"COPY timings ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"
# The server works on one part while the next one is packed.
_COPY_AT_ONCE = 2_000
_NUMBERED = """
    INSERT INTO measurements (id, {names})
    SELECT new.id, {selected} FROM (
        SELECT nextval((SELECT pg_get_serial_sequence('measurements', 'id')::regclass)) AS id, given.*
        FROM {source} AS given OFFSET 0
    ) AS new ORDER BY new.uid
    ON CONFLICT (uid) DO NOTHING RETURNING uid, id
"""
_MEASUREMENT_COLUMNS = tuple(column for column in schema.measurements.columns if column.name != "id")


def insert_timings(connection: sa.Connection, rows: Iterable[TimingRow]) -> None:
    """Insert ``rows``, which may come as they are asked for, in the connection's transaction.

    Raises:
        DatabaseError: the database failed.
        RecordError: a value does not fit its column.
    """
    (_insert_timings_sqlite if connection.dialect.name == "sqlite" else _copy_timings)(connection, iter(rows))


def insert_measurements(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> dict[bytes, int]:
    """Insert the rows whose uid is new, in their order; return their ids by uid.

    Writers of the same uids at the same time wait for each other and cannot deadlock.

    Args:
        connection: a connection in a transaction that writes (``database.write_transaction``).
        rows: every column of ``measurements`` but ``id``; uids differ, and times are in UTC.

    Raises:
        DatabaseError: the database failed.
        RecordError: a value does not fit its column.
    """
    if not rows:
        return {}
    return (_insert_sqlite if connection.dialect.name == "sqlite" else _insert_postgres)(connection, rows)


def _insert_timings_sqlite(connection: sa.Connection, rows: Iterator[TimingRow]) -> None:
    width = len(COLUMNS)
    with driver_connection(connection) as driver:
        most = driver.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
    at_once = min(_MOST_ROWS_AT_ONCE, most // width) * width
    insert = _insert_of(at_once // width)
    # Value after value, so that no row need exist as a tuple of its own.
    values = chain.from_iterable(rows)
    while len(some := tuple(islice(values, at_once))) == at_once:
        connection.exec_driver_sql(insert, some)
    if some:
        connection.exec_driver_sql(_INSERT + _ROW, [some[i : i + width] for i in range(0, len(some), width)])


@lru_cache(maxsize=1)
def _insert_of(rows: int) -> str:
    return _INSERT + ", ".join([_ROW] * rows)


def _copy_timings(connection: sa.Connection, rows: Iterator[TimingRow]) -> None:
    with driver_connection(connection) as driver, driver.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.write(HEADER)
        while some := list(islice(rows, _COPY_AT_ONCE)):
            copy.write(packed(some))
        copy.write(TRAILER)


def _insert_sqlite(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> dict[bytes, int]:
    """Number the rows here: the transaction holds the write lock, so no other writer takes the same numbers.

    ``executemany`` cannot return inserted rows, and one statement a row takes twice as long.
    """
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'measurements'"
    first = 1 + (connection.exec_driver_sql(query).scalar() or 0)
    numbered = [{**row, "id": number} for number, row in enumerate(rows, first)]
    ids = {row["uid"]: row["id"] for row in numbered}
    table = schema.measurements
    if insert_tuples(connection, table, list(table.columns), numbered, "uid") == len(rows):
        return ids
    stored = select_by_key(connection, table.c.uid, list(ids), table.c.id)
    return {row.uid: row.id for row in stored if ids[row.uid] == row.id}


def _insert_postgres(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> dict[bytes, int]:
    """Number the rows in the order they came in, and insert them in the order of their uids.

    Two writers with the same uids then wait for each other in one order.
    """
    unnested = unnest(connection, _MEASUREMENT_COLUMNS, rows, "uid")
    insert = _NUMBERED.format(**unnested._asdict())
    return {bytes(uid): number for uid, number in connection.exec_driver_sql(insert, unnested.parameters)}
