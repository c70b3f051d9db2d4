"""Running one statement that only reads, and its rows: as Python values or as Arrow batches.

Rows are fetched on demand, so a result need not fit into memory, and Ctrl-C stops DuckDB at once.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import duckdb

from diode_store.errors import QueryError
from diode_store.query.guard import NO_ZONES, check_reads_only, one_line, without_semicolon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

_ROWS_AT_ONCE = 10_000
_INTERRUPTS, _INTERRUPT_EVERY_S = 100, 0.05
_ROWS_A_BATCH = 100_000
_WITH_ZONE = "timestamp with time zone"
INTEGERS = ("tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint", "uinteger", "ubigint")
_TIMES = ("date", "time", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns")
_NESTED = ("list", "array", "struct", "map")
_OTHERS = ("boolean", "float", "double", "decimal", "varchar", "enum", "uuid", "blob")
_PLAIN = frozenset((*INTEGERS, *_TIMES, *_NESTED, *_OTHERS))
"""Types, by DuckDB's names, that Parquet can hold."""


class QueryResult:
    """The rows of a query as tuples of Python values; iterate once."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> None:
        """Run ``sql`` and fetch its first rows, so that early errors come before any output."""
        self._connection = connection
        with _errors_of_duckdb():
            self._first = _interruptible(
                connection, lambda: connection.execute(sql, parameters).fetchmany(_ROWS_AT_ONCE)
            )
            self.columns = tuple(str(column[0]) for column in connection.description or ())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows.

        Raises:
            QueryError: the query failed after its first rows.
        """
        rows = self._first
        while rows:
            yield from rows
            with _errors_of_duckdb():
                rows = _interruptible(self._connection, lambda: self._connection.fetchmany(_ROWS_AT_ONCE))


def run_query(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> QueryResult:
    """Run one statement that only reads.

    Args:
        connection: from ``analytics.connect``.
        sql: one SELECT or EXPLAIN.
        parameters: values for its ``?`` as a list, or for its ``$name`` as a dictionary.

    Raises:
        QueryError: it is not one SELECT or EXPLAIN, it would write or read elsewhere, or it fails; one line.
    """
    check_reads_only(connection, sql)
    return QueryResult(connection, sql, parameters)


def stream(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Sequence[Any] | dict[str, Any] = (),
    *,
    rows_a_batch: int = _ROWS_A_BATCH,
) -> pa.RecordBatchReader:
    """Return the rows of one statement that only reads, as Arrow batches, produced on demand.

    The whole result is never in memory. Only one stream of a connection can be read at a time.

    Args:
        connection: from ``analytics.connect``.
        sql: one SELECT, with a ``?`` or ``$name`` for each parameter.
        parameters: the values.
        rows_a_batch: at most how many rows a batch has.

    Raises:
        QueryError: it is not one SELECT, it would write or read elsewhere, or it fails; one line.
    """
    with _errors_of_duckdb():
        return bound(connection, sql, parameters).to_arrow_reader(rows_a_batch)


def arrow_table(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()
) -> pa.Table:
    """Return all rows of one statement that only reads; 128-bit sums that fit into 64 bits become integers.

    Raises:
        QueryError: as for ``run_query``.
    """
    import pyarrow as pa

    with _errors_of_duckdb():
        relation = bound(connection, sql, parameters)
        table = _interruptible(connection, lambda: relation.to_arrow_reader(_ROWS_A_BATCH).read_all())
    for place, kind in enumerate(relation.types):
        if kind.id == "hugeint":
            with contextlib.suppress(pa.ArrowInvalid):  # too large for 64 bits
                table = table.set_column(place, table.field(place).name, table.column(place).cast(pa.int64()))
    return table


class PlainBatches:
    """The rows of a query as Arrow batches that Parquet can hold; iterate once.

    Types that Parquet does not have, such as intervals, become text.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str, *, rows_a_batch: int = _ROWS_AT_ONCE) -> None:
        """Run ``sql`` and fetch its first batch.

        Raises:
            QueryError: as for ``run_query``; or it has times with a zone.
        """
        self._connection = connection
        with _errors_of_duckdb():
            relation = _plain(bound(connection, sql))
            self._reader = _interruptible(connection, lambda: relation.to_arrow_reader(rows_a_batch))
        self.schema: pa.Schema = self._reader.schema
        self._first = self._next()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches.

        Raises:
            QueryError: the query failed after its first rows.
        """
        batch = self._first
        while batch is not None:
            yield batch
            batch = self._next()

    def _next(self) -> pa.RecordBatch | None:
        with _errors_of_duckdb():
            return _interruptible(self._connection, lambda: next(self._reader, None))


@contextlib.contextmanager
def _errors_of_duckdb() -> Iterator[None]:
    """Turn DuckDB's errors into a ``QueryError`` of one line; Arrow raises OSError for what its source reports."""
    try:
        yield
    except (duckdb.Error, OSError) as error:
        raise QueryError(one_line(error)) from error


def bound(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()
) -> duckdb.DuckDBPyRelation:
    """Return the relation of one statement that only reads; nothing but EXPLAIN has been run.

    Raises:
        QueryError: it is not one SELECT or EXPLAIN, it would write or read elsewhere, or has a mistake; one line.
    """
    check_reads_only(connection, sql)
    with _errors_of_duckdb():
        # A result of `execute` would be made a second time as Arrow.
        relation = connection.sql(
            without_semicolon(sql), params=parameters if isinstance(parameters, dict) else list(parameters)
        )
    if relation is None:
        raise QueryError("this statement has no rows to stream; use SELECT")
    return relation


def _plain(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Cast columns of other types than ``_PLAIN`` to text."""
    kinds = kinds_of(relation)
    if _PLAIN.issuperset(kinds):
        return relation
    columns = (
        f"#{place}" if kind in _PLAIN else f'#{place}::VARCHAR AS "{name.replace(chr(34), chr(34) * 2)}"'
        for place, (kind, name) in enumerate(zip(kinds, relation.columns, strict=True), 1)
    )
    return relation.project(", ".join(columns))


def kinds_of(relation: duckdb.DuckDBPyRelation) -> list[str]:
    """Return the type of each column by DuckDB's name, in small letters and without parameters.

    Raises:
        QueryError: there are times with a zone.
    """
    kinds = [str(kind.id) for kind in relation.types]
    if _WITH_ZONE in kinds:
        raise QueryError(NO_ZONES)
    return kinds


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns; a Ctrl-C stops it at once.

    Python handles signals in its main thread, and only once DuckDB returns, which may take hours for a large join.
    So DuckDB works in another thread while the main thread waits.
    """
    ended = threading.Event()

    def watched() -> Any:
        try:
            return work()
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as executor:
        try:
            return executor.submit(watched).result()
        except KeyboardInterrupt:
            executor.shutdown(wait=False, cancel_futures=True)
            # A query that DuckDB has not begun yet would not notice the first one.
            for _ in range(_INTERRUPTS):
                connection.interrupt()
                if ended.wait(_INTERRUPT_EVERY_S):
                    break
            raise
