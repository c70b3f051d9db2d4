"""Read a warehouse for the lake through ADBC, which hands over columns, not rows.

Its driver for SQLite brings its own SQLite library. In a process that also has the file open through the standard
library, each would drop the other's locks when it closes the file, so ``open_columns`` is for the processes of
``diode_store.lake.worker``, which do nothing else. PostgreSQL is in ``diode_store.lake.postgres``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from diode_store.errors import DatabaseError, first_line
from diode_store.lake.layout import BYTES, FLAG, INT, JSON, REAL, TEXT, TIME
from diode_store.lake.parquet_files import arrow_type, checked_values, times_of
from diode_store.urls import BUSY_TIMEOUT_S, sqlite_uri
from diode_store.warehouse.sqlite_errors import reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diode_store.lake.parquet_files import Columns

_BUSY_TIMEOUT = f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}"
# The driver takes a column's type from the first batch, and fails if that has only NULLs and a later one text.
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
    """A connection of ADBC's."""

    def __init__(self, connection: Any, options: dict[str, str]) -> None:
        """Read through ``connection``, which is not in autocommit mode, by statements that have ``options``."""
        self._connection = connection
        self._options = options

    def batches(self, columns: Columns, sql: str) -> Iterator[pa.RecordBatch]:
        """See ``diode_store.lake.source.WarehouseRows``."""
        for arrays in self._read(sql):
            with checked_values():
                typed = list(map(self._of_type, columns.values(), arrays))
            yield pa.RecordBatch.from_arrays(typed, names=list(columns))

    def _read(self, sql: str) -> Iterator[list[pa.Array]]:
        """Yield the columns of one batch after the other."""
        from adbc_driver_manager import AdbcStatusCode, OperationalError

        with self._connection.cursor(adbc_stmt_kwargs=self._options) as cursor:
            cursor.execute(sql)
            try:
                for batch in cursor.fetch_record_batch():
                    # JSON, for one, is an extension type; here it is what it is stored as.
                    yield [getattr(values, "storage", values) for values in batch.columns]
            except OSError as error:
                # Errors after the first batch come from Arrow, not from ADBC.
                raise OperationalError(first_line(error), status_code=AdbcStatusCode.IO) from error

    def _of_type(self, kind: str, values: pa.Array) -> pa.Array:
        """Return a column of the type that the lake has for ``kind``."""
        return values.cast(arrow_type(kind))


class SqliteColumns(AdbcSource):
    """A warehouse in an SQLite file."""

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """See ``source.WarehouseRows``; ADBC has begun a transaction, which lasts until it is ended."""
        try:
            yield
        finally:
            self._connection.rollback()

    def _of_type(self, kind: str, values: pa.Array) -> pa.Array:
        if values.null_count == len(values):
            return pa.nulls(len(values), arrow_type(kind))
        # The driver makes one type of a whole column: text of everything where there is some, shortening
        # numbers; and it takes bytes for text, and more of either than Arrow can count, unchecked.
        if not _STORED_AS[kind](values.type):
            raise TypeError(f"a column of {kind} is stored as {values.type}")
        values.validate(full=True)
        if kind == TIME:
            return times_of(values)
        return values.cast(pa.int8() if kind == FLAG else arrow_type(kind)).cast(arrow_type(kind))


@contextlib.contextmanager
def open_columns(path: Path) -> Iterator[SqliteColumns]:
    """Open a warehouse's file for reading; ``diode_store.lake.opening.open_source`` checks that it is one.

    Raises:
        DatabaseError: it cannot be read, or ADBC is not installed.
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
