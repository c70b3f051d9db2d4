"""Insert measurements with their timings and metrics, by the fastest method of each database.

All functions work in the caller's transaction, and the two databases keep the same values.
"""

from __future__ import annotations

import sqlite3
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from diode_store.warehouse import schema
from diode_store.warehouse.bulk import insert_tuples, unnest
from diode_store.warehouse.database import driver_connection
from diode_store.warehouse.dimensions import insert_for, select_by_key
from diode_store.warehouse.drivers.copy_format import COLUMNS, HEADER, METRIC_COLUMNS, TRAILER, packed, packed_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from diode_store.records import Metric
    from diode_store.warehouse.drivers.copy_format import MetricRow, TimingRow

# A statement of many rows is cheaper than one statement per row, and other threads can run meanwhile.
_MOST_ROWS_AT_ONCE = 4_000
_COPY = "COPY {} ({}) FROM STDIN (FORMAT BINARY)"
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
    if connection.dialect.name == "sqlite":
        _insert_rows_sqlite(connection, "timings", COLUMNS, iter(rows))
    else:
        _copy_rows(connection, "timings", COLUMNS, iter(rows), packed)


def insert_metric_values(connection: sa.Connection, rows: Iterable[MetricRow]) -> None:
    """Insert ``rows`` like timings.

    Raises:
        DatabaseError: the database failed.
    """
    if connection.dialect.name == "sqlite":
        _insert_rows_sqlite(connection, "metric_values", METRIC_COLUMNS, iter(rows))
    else:
        _copy_rows(connection, "metric_values", METRIC_COLUMNS, iter(rows), packed_metrics)


def metric_ids(connection: sa.Connection, metrics: Iterable[Metric]) -> dict[tuple[str, str], int]:
    """Return the ids of metrics by name and unit; insert the new ones, in one order, so that writers cannot deadlock.

    Raises:
        DatabaseError: the database failed.
    """
    table = schema.metrics
    wanted = sorted({(metric.name, metric.unit) for metric in metrics})
    query = sa.select(table.c.name, table.c.unit, table.c.id).where(table.c.name.in_({name for name, _ in wanted}))

    def found() -> dict[tuple[str, str], int]:
        return {(row.name, row.unit): int(row.id) for row in connection.execute(query)}

    ids = found()
    if new := [{"name": name, "unit": unit} for name, unit in wanted if (name, unit) not in ids]:
        connection.execute(insert_for(connection, table).on_conflict_do_nothing(), new)
        ids = found()
    return ids


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


def _insert_rows_sqlite(
    connection: sa.Connection, table: str, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]
) -> None:
    width = len(columns)
    with driver_connection(connection) as driver:
        most = driver.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
    at_once = min(_MOST_ROWS_AT_ONCE, most // width) * width
    # Value after value, so that no row need exist as a tuple of its own.
    values = chain.from_iterable(rows)
    while len(some := tuple(islice(values, at_once))) == at_once:
        connection.exec_driver_sql(_insert_of(table, tuple(columns), at_once // width), some)
    if some:
        insert = _insert_of(table, tuple(columns), 1)
        connection.exec_driver_sql(insert, [some[i : i + width] for i in range(0, len(some), width)])


@lru_cache(maxsize=8)
def _insert_of(table: str, columns: tuple[str, ...], rows: int) -> str:
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * rows)}"  # noqa: S608 - our own names


def _copy_rows(
    connection: sa.Connection,
    table: str,
    columns: Sequence[str],
    rows: Iterator[Any],
    pack: Callable[[Sequence[Any]], bytes],
) -> None:
    statement = _COPY.format(table, ", ".join(columns))
    with driver_connection(connection) as driver, driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(HEADER)
        while some := list(islice(rows, _COPY_AT_ONCE)):
            copy.write(pack(some))
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
