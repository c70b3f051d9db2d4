"""Run one read-only statement and return its rows as Python values or as Arrow batches.

Rows are fetched on demand, so a result need not fit into memory. Ctrl-C stops DuckDB as far as DuckDB obeys.
``diode_store.query.limited`` runs a person's query in a process that can be ended.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import duckdb

from diode_store.errors import CORRUPT, DamagedCacheError, QueryError, mark_damaged
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
"""DuckDB's names of the types that Parquet can hold."""


class QueryResult:
    """The rows of a query as tuples of Python values; iterate once."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> None:
        """Run ``sql`` and fetch its first rows, so that early errors precede any output."""
        self._connection = connection
        with errors_of_duckdb():
            self._first = _interruptible(
                connection, lambda: connection.execute(sql, parameters).fetchmany(_ROWS_AT_ONCE)
            )
            self.columns = tuple(str(column[0]) for column in connection.description or ())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows.

        Raises:
            QueryError: the query failed after its first rows.
        """
        for rows in self.parts():
            yield from rows

    def parts(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows in large lists.

        Raises:
            QueryError: the query failed after its first rows.
        """
        rows = self._first
        while rows:
            yield rows
            with errors_of_duckdb():
                rows = _interruptible(self._connection, lambda: self._connection.fetchmany(_ROWS_AT_ONCE))


def run_query(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> QueryResult:
    """Run one read-only statement.

    Args:
        connection: from ``analytics.connect``.
        sql: one SELECT or EXPLAIN.
        parameters: values for each ``?`` as a list, or for each ``$name`` as a dictionary.

    Raises:
        QueryError: the query is not one SELECT or EXPLAIN, would write or read elsewhere, or fails; one line.
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
    """Return the rows of one read-only statement as Arrow batches, produced on demand.

    The whole result is never in memory. A connection can read only one stream at a time.

    Args:
        connection: from ``analytics.connect``.
        sql: one SELECT, with a ``?`` or ``$name`` for each parameter.
        parameters: the values.
        rows_a_batch: maximum rows in a batch.

    Raises:
        QueryError: the query is not one SELECT, would write or read elsewhere, or fails; one line.
    """
    with errors_of_duckdb():
        return bound(connection, sql, parameters).to_arrow_reader(rows_a_batch)


def arrow_table(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()
) -> pa.Table:
    """Return all rows of one read-only statement; 128-bit sums that fit into 64 bits become integers.

    Raises:
        QueryError: as for ``run_query``.
    """
    with errors_of_duckdb():
        relation = bound(connection, sql, parameters)
        table = _interruptible(connection, lambda: relation.to_arrow_reader(_ROWS_A_BATCH).read_all())
    return narrowed(table, wide_columns(relation))


def wide_columns(relation: duckdb.DuckDBPyRelation) -> list[int]:
    """Return the positions of the columns of 128-bit integers."""
    return [place for place, kind in enumerate(relation.types) if kind.id == "hugeint"]


def narrowed(table: pa.Table, places: list[int]) -> pa.Table:
    """Return the table with 64-bit integers in the columns at ``places``, if their values fit."""
    import pyarrow as pa

    for place in places:
        with contextlib.suppress(pa.ArrowInvalid):  # too large for 64 bits
            table = table.set_column(place, table.field(place).name, table.column(place).cast(pa.int64()))
    return table


class Batches:
    """The rows of a query as Arrow batches; iterate once."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        relation: duckdb.DuckDBPyRelation,
        rows_a_batch: int = _ROWS_A_BATCH,
    ) -> None:
        """Run the query and fetch its first batch.

        Raises:
            QueryError: the query fails.
        """
        self._connection = connection
        with errors_of_duckdb():
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
        with errors_of_duckdb():
            return _interruptible(self._connection, lambda: next(self._reader, None))


class PlainBatches(Batches):
    """The rows of a query as Arrow batches for Parquet.

    Types that Parquet lacks, such as intervals, become text.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str, *, rows_a_batch: int = _ROWS_AT_ONCE) -> None:
        """Run ``sql`` and fetch its first batch.

        Raises:
            QueryError: as for ``run_query``, or the rows have times with a zone.
        """
        with errors_of_duckdb():
            relation = _plain(bound(connection, sql))
        super().__init__(connection, relation, rows_a_batch)


@contextlib.contextmanager
def errors_of_duckdb() -> Iterator[None]:
    """Turn DuckDB's errors into a ``QueryError`` of one line; Arrow raises OSError for errors of its source.

    Raises:
        DamagedCacheError: a block of the cache has a wrong checksum.
        QueryError: any other error.
    """
    try:
        yield
    except (duckdb.Error, OSError) as error:
        if CORRUPT in str(error):
            reason = f"the cache is damaged: {one_line(error)}"
            mark_damaged(reason)
            raise DamagedCacheError(reason) from error
        raise QueryError(one_line(error)) from error


def bound(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()
) -> duckdb.DuckDBPyRelation:
    """Return the relation of one read-only statement; only an EXPLAIN runs already here.

    Raises:
        QueryError: the query is not one SELECT or EXPLAIN, would write or read elsewhere, or has a mistake; one line.
    """
    check_reads_only(connection, sql)
    with errors_of_duckdb():
        # `execute` would build its result twice, the second time as Arrow.
        relation = connection.sql(
            without_semicolon(sql), params=parameters if isinstance(parameters, dict) else list(parameters)
        )
    if relation is None:
        raise QueryError("this statement has no rows to stream; use SELECT")
    return relation


def _plain(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Cast columns of types outside ``_PLAIN`` to text."""
    kinds = kinds_of(relation)
    if _PLAIN.issuperset(kinds):
        return relation
    columns = (
        f"#{place}" if kind in _PLAIN else f'#{place}::VARCHAR AS "{name.replace(chr(34), chr(34) * 2)}"'
        for place, (kind, name) in enumerate(zip(kinds, relation.columns, strict=True), 1)
    )
    return relation.project(", ".join(columns))


def kinds_of(relation: duckdb.DuckDBPyRelation) -> list[str]:
    """Return DuckDB's name of each column's type, in lower case and without parameters.

    Raises:
        QueryError: a column has times with a zone.
    """
    kinds = [str(kind.id) for kind in relation.types]
    if _WITH_ZONE in kinds:
        raise QueryError(NO_ZONES)
    return kinds


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], Any]) -> Any:
    """Return the result of ``work``; Ctrl-C stops it at once.

    Python handles signals in its main thread after DuckDB returns, which may take hours for a large join. Therefore
    DuckDB works in another thread while the main thread waits.
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
            # A query that DuckDB has not begun yet would miss a single interrupt.
            for _ in range(_INTERRUPTS):
                connection.interrupt()
                if ended.wait(_INTERRUPT_EVERY_S):
                    break
            raise
