"""Read a warehouse for the cache through ADBC, which returns columns, not rows.

ADBC's driver for SQLite brings its own SQLite library. Two SQLite libraries in one process drop each other's locks when
they close a file. Therefore only the processes of ``diode_store.cache.worker``, which have no other connection, use
``open_columns``. PostgreSQL is in ``diode_store.cache.postgres``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from diode_store.cache.arrow_rows import arrow_type, checked_values, times_of
from diode_store.cache.layout import BYTES, FLAG, INT, JSON, REAL, TEXT, TIME
from diode_store.errors import DatabaseError, first_line
from diode_store.system.urls import BUSY_TIMEOUT_S, sqlite_uri
from diode_store.values.units import MS_PER_S
from diode_store.warehouse.drivers.sqlite_errors import reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diode_store.cache.layout import Columns

_BUSY_TIMEOUT = f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * MS_PER_S)}"
# The driver takes a column's type from the first batch. It fails if that batch has only NULLs and a later one text.
_ALL_ROWS = 2**30
_STORED_AS = {
    INT: pa.types.is_integer,
    FLAG: pa.types.is_integer,
    REAL: pa.types.is_floating,
    TEXT: pa.types.is_string,
    JSON: pa.types.is_string,
    TIME: pa.types.is_string,
    BYTES: lambda kind: pa.types.is_binary(kind) or pa.types.is_string(kind),
}


class AdbcSource:
    """An ADBC connection."""

    def __init__(self, connection: Any, options: dict[str, str]) -> None:
        """Read through ``connection``, which is not in autocommit mode, by statements with ``options``."""
        self._connection = connection
        self._options = options
        self.left_out: list[str] = []
        """Always empty: a server checks types, and ``diode_store.cache.worker`` reads an SQLite file with a wrong value
        again, by rows.
        """

    def batches(self, columns: Columns, sql: str) -> Iterator[pa.RecordBatch]:
        """See ``diode_store.cache.source.Facts``."""
        for arrays in self._read(sql):
            with checked_values():
                typed = list(map(self._of_type, columns.values(), arrays))
            yield pa.RecordBatch.from_arrays(typed, names=list(columns))

    def rows(self, sql: str) -> Iterator[Any]:
        """See ``diode_store.cache.source.Facts``."""
        for arrays in self._read(sql):
            yield from zip(*(values.to_pylist() for values in arrays), strict=True)

    def tips(self, before: dict[str, str]) -> tuple[dict[str, str], dict[str, int]]:  # noqa: ARG002 - as for SQLite
        """See ``diode_store.cache.source.WarehouseRows``; ids may be committed in any order."""
        return {}, {}

    def _read(self, sql: str) -> Iterator[list[pa.Array]]:
        """Yield the columns of each batch."""
        from adbc_driver_manager import AdbcStatusCode, OperationalError

        with self._connection.cursor(adbc_stmt_kwargs=self._options) as cursor:
            cursor.execute(sql)
            try:
                for batch in cursor.fetch_record_batch():
                    # Return extension types, such as JSON, as their storage type.
                    yield [getattr(values, "storage", values) for values in batch.columns]
            except OSError as error:
                # Arrow, not ADBC, raises errors after the first batch.
                raise OperationalError(first_line(error), status_code=AdbcStatusCode.IO) from error

    def _of_type(self, kind: str, values: pa.Array) -> pa.Array:
        """Return a column with the cache's type for ``kind``."""
        return values.cast(arrow_type(kind))


class SqliteColumns(AdbcSource):
    """A warehouse in an SQLite file."""

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """See ``source.Facts``; ADBC has begun a transaction, which lasts until it is ended."""
        try:
            yield
        finally:
            self._connection.rollback()

    def _of_type(self, kind: str, values: pa.Array) -> pa.Array:
        if values.null_count == len(values):
            return pa.nulls(len(values), arrow_type(kind))
        # The driver gives a whole column one type: one text makes all values text and shortens numbers. It also takes
        # bytes for text, and does not check for more of either than Arrow can count.
        if not _STORED_AS[kind](values.type):
            raise TypeError(f"a column of {kind} is stored as {values.type}")
        values.validate(full=True)
        if kind == TIME:
            return times_of(values)
        return values.cast(pa.int8() if kind == FLAG else arrow_type(kind)).cast(arrow_type(kind))


@contextlib.contextmanager
def open_columns(path: Path) -> Iterator[SqliteColumns]:
    """Open a warehouse's file for reading, after ``diode_store.cache.opening.open_source`` has checked it.

    Raises:
        DatabaseError: the file cannot be read, or ADBC is not installed.
    """
    try:
        from adbc_driver_manager import Error
        from adbc_driver_sqlite import StatementOptions, dbapi
    except ImportError as error:
        raise DatabaseError(f"{path}: copying it needs ADBC; run `pip install adbc-driver-sqlite`") from error

    try:
        with contextlib.closing(dbapi.connect(sqlite_uri(path, "ro"))) as connection:
            with connection.cursor() as cursor:
                cursor.execute(_BUSY_TIMEOUT)
            yield SqliteColumns(connection, {StatementOptions.BATCH_ROWS.value: str(_ALL_ROWS)})
    except Error as error:
        raise DatabaseError(f"{path}: {reason(error)}") from error
