"""What a sync asks of a warehouse; SQLite is read by the standard library alone.

A second SQLite library in a process that writes would drop the writer's locks when it closes the file, so SQLite
is read by the library that writes it. PostgreSQL is in ``diode_store.lake_postgres``. Light: with SQLite nothing is
imported that a query does not need.

Whether measurements came or went is told by *blocks*: for every ``BLOCK`` ids a digest of the ids and uids that
are there. Digests of all blocks are made in one pass by the database itself, which costs a fraction of fetching
the rows, and only blocks whose digest changed are compared row by row. Counts or a highest id would not do: a
delete and an insert can balance, and a PostgreSQL transaction with lower ids may commit last.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from typing import TYPE_CHECKING, Any, Protocol

from diode_store.errors import DatabaseError, SchemaError
from diode_store.lake_tables import MARKS, REVISION, SNAPSHOTS, VERSION_TABLE
from diode_store.settings import upgrade_command
from diode_store.sqlite_errors import is_there, reason
from diode_store.urls import sqlite_path, sqlite_uri

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from diode_store.lake_files import Columns

BLOCK = 4096
"""How many ids share a digest."""

_BUSY_TIMEOUT_S = 30.0
# Few enough that their tuples die before Python's garbage collector counts them.
_ROWS_AT_ONCE = 500
# Dimensions that grow large: told by their keys, and by how many have ``extra``, which may be filled in later.
_KEYED = ("problems", "configs")
_MARKED = "SELECT id, flags, superseded_by FROM measurements WHERE flags IS NOT NULL OR superseded_by IS NOT NULL"


class Facts(Protocol):
    """What measurements and timings are copied from; iterate over one result at a time."""

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """Hold one state of the database for all that is read inside; keep it short, it holds back cleaning up."""

    def batches(self, columns: Columns, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a SELECT of ``columns`` as Arrow, in the lake's types."""


class Source(Facts, Protocol):
    """A warehouse as rows; iterate over one result at a time."""

    @property
    def file(self) -> Path | None:
        """The SQLite file, which other processes can read too; None for a server."""

    def rows(self, sql: str) -> Iterator[Any]:
        """Yield the rows of a SELECT that both databases understand."""

    def blocks(self, table: str, key: str) -> dict[str, str]:
        """Return block → digest of the ids and 16-byte keys in it, without the blocks that are empty."""


@contextlib.contextmanager
def open_source(url: str) -> Iterator[Source]:
    """Open the warehouse at ``url`` for reading.

    Raises:
        SchemaError: there is none, or one of another revision.
        DatabaseError: it cannot be read.
    """
    path = sqlite_path(url)
    if path is None:
        from diode_store.lake_postgres import open_postgres

        with open_postgres(url) as source:
            yield source
        return
    if not is_there(path):
        raise SchemaError(f"{path} holds no warehouse yet; create it with {upgrade_command(str(path))}")
    try:
        with contextlib.closing(_connect(path)) as connection:
            if _revision(connection) != REVISION:
                explain(url)
            yield SqliteSource(path, connection)
    except sqlite3.Error as error:
        raise DatabaseError(f"{path}: {reason(error)}") from error


class SqliteSource:
    """A warehouse in an SQLite file."""

    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        self.file = file
        self._connection = connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """See ``Source``."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def rows(self, sql: str) -> Iterator[Any]:
        """See ``Source``."""
        return self._connection.execute(sql)

    def batches(self, columns: Columns, sql: str) -> Iterator[pa.RecordBatch]:
        """See ``Source``."""
        from diode_store.lake_files import batch_of

        cursor = self._connection.execute(sql)
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            yield batch_of(columns, zip(*rows, strict=True))

    def blocks(self, table: str, key: str) -> dict[str, str]:
        """See ``Source``."""
        found = {}
        start = self._first_id(table, 0)
        # Joining keys and ids in SQLite makes two values a block of what would be two a row.
        joined = f"SELECT group_concat(id), CAST(group_concat({key}, '') AS BLOB) FROM {table} WHERE id BETWEEN ? AND ?"  # noqa: S608 - our own names
        while start is not None:
            block = start // BLOCK
            ids, keys = self._connection.execute(joined, (block * BLOCK, block * BLOCK + BLOCK - 1)).fetchone()
            found[str(block)] = _digest((ids.encode(), keys))
            start = self._first_id(table, (block + 1) * BLOCK)
        return found

    def _first_id(self, table: str, least: int) -> int | None:
        row = self._connection.execute(f"SELECT min(id) FROM {table} WHERE id >= ?", (least,)).fetchone()  # noqa: S608 - our own names
        return None if row[0] is None else int(row[0])


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(sqlite_uri(path, "ro"), uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)


def _revision(connection: sqlite3.Connection) -> str | None:
    try:
        row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608 - our own name
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return None
        raise
    return str(row[0]) if row else None


def explain(url: str) -> None:
    """Raise the SchemaError that fits; another revision is rare enough to load SQLAlchemy for its message."""
    from diode_store.store import Store

    Store.open(url).close()


def warehouse_uuid(source: Source) -> str:
    """Return which warehouse it is.

    Raises:
        DatabaseError: the database does not say.
    """
    row = next(iter(source.rows("SELECT uuid FROM warehouse")), None)
    if row is None:
        raise DatabaseError("the warehouse has lost its uuid; restore the database from a backup")
    return str(row[0])


def highest_id(source: Source) -> int:
    """Return the highest id of a measurement, -1 if there is none."""
    return int(next(iter(source.rows("SELECT coalesce(max(id), -1) FROM measurements")))[0])


def fingerprints(source: Source) -> dict[str, str]:
    """Return a digest of each snapshot's table; what is equal need not be copied again."""
    found = {}
    for name in SNAPSHOTS:
        found[name] = _keyed(source, name) if name in _KEYED else _digest(repr(r).encode() for r in _all(source, name))
    return found


def measurement_blocks(source: Source) -> dict[str, str]:
    """Return the digests of the measurements by block."""
    return source.blocks("measurements", "uid")


def select(table: str) -> str:
    """Return the SELECT of a snapshot's columns."""
    if table == MARKS:
        return f"{_MARKED} ORDER BY id"
    columns = SNAPSHOTS[table]
    return f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2"  # noqa: S608 - our own names


def _all(source: Source, table: str) -> Iterator[Any]:
    return source.rows(select(table))


def _keyed(source: Source, table: str) -> str:
    extras = list(source.rows(f"SELECT count(extra) FROM {table}"))  # noqa: S608 - our own names
    return _digest(repr(part).encode() for part in (extras, sorted(source.blocks(table, "key").items())))


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()
