"""Read a warehouse in an SQLite file for the cache, with the standard library alone.

A second SQLite library in a writing process would drop the writer's locks when it closes the file. Therefore the
library that writes SQLite also reads it. The module is light: it imports nothing that a query does not need.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

from diode_store.cache.layout import REVISION, VERSION_TABLE
from diode_store.cache.source import BLOCK, STORED_ONCE, block_range, digest_of, explain
from diode_store.cache.tips import Tips
from diode_store.errors import CacheValueError, DatabaseError, NoWarehouseError
from diode_store.system.settings import upgrade_command
from diode_store.system.urls import connect_sqlite
from diode_store.warehouse.drivers.sqlite_errors import is_there, reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from diode_store.cache.layout import Columns

# So few that Python frees the rows before its garbage collector runs.
_ROWS_AT_ONCE = 500


@contextlib.contextmanager
def open_sqlite(path: Path) -> Iterator[SqliteSource]:
    """Open the warehouse in the file ``path`` for reading.

    Raises:
        SchemaError: there is no warehouse, or one of another revision.
        DatabaseError: the file cannot be read.
    """
    if not is_there(path):
        raise NoWarehouseError(f"{path} holds no warehouse yet; create it with {upgrade_command(str(path))}")
    try:
        with contextlib.closing(connect_sqlite(path, "ro")) as connection:
            if _revision(connection) != REVISION:
                explain(str(path))
            yield SqliteSource(path, connection)
    except sqlite3.Error as error:
        raise DatabaseError(f"{path}: {reason(error)}") from error


class SqliteSource:
    """A warehouse in an SQLite file."""

    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        self.file = file
        self.left_out: list[str] = []
        self._connection = connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """See ``WarehouseRows``."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def rows(self, sql: str) -> Iterator[Any]:
        """See ``WarehouseRows``."""
        return self._connection.execute(sql)

    def batches(self, columns: Columns, sql: str) -> Iterator[pa.RecordBatch]:
        """See ``WarehouseRows``."""
        from diode_store.cache.arrow_rows import batch_of, fitting

        cursor = self._connection.execute(sql)
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            try:
                yield batch_of(columns, zip(*rows, strict=True))
            except CacheValueError:
                if kept := list(fitting(columns, rows, self.left_out)):
                    yield batch_of(columns, zip(*kept, strict=True))

    def tips(self, before: dict[str, str]) -> tuple[dict[str, str], dict[str, int]]:
        """See ``WarehouseRows``."""
        tips = Tips(self._connection, self.file)
        return tips.now(), tips.unchanged(before)

    def blocks(self, table: str, key: str, first: int) -> dict[str, str]:
        """See ``WarehouseRows``."""
        found = {}
        start = self._first_id(table, first * BLOCK)
        # A row that was stored again names other problems and configs if a restored backup numbers them anew.
        stored = "group_concat(ingested_at)" if table in STORED_ONCE else "''"
        # SQLite joins the values of a column, which makes three values per block instead of three per row.
        joined = (
            f"SELECT group_concat(id), CAST(group_concat({key}, '') AS BLOB), {stored} "
            f"FROM {table} WHERE id BETWEEN ? AND ?"
        )
        while start is not None:
            block = start // BLOCK
            ids, keys, times = self._connection.execute(joined, block_range(str(block))).fetchone()
            found[str(block)] = digest_of((ids.encode(), keys, times.encode()))
            start = self._first_id(table, (block + 1) * BLOCK)
        return found

    def _first_id(self, table: str, least: int) -> int | None:
        row = self._connection.execute(f"SELECT min(id) FROM {table} WHERE id >= ?", (least,)).fetchone()
        return None if row[0] is None else int(row[0])


def _revision(connection: sqlite3.Connection) -> str | None:
    try:
        row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return None
        raise
    return str(row[0]) if row else None
