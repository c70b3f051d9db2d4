"""What a sync asks of a warehouse; SQLite is read by the standard library alone, PostgreSQL through SQLAlchemy.

A second SQLite library in a process that writes would drop the writer's locks when it closes the file, so SQLite
is read by the library that writes it. Light: with SQLite nothing is imported that a query does not need.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from diode_store.errors import DatabaseError, SchemaError
from diode_store.lake_tables import MARKS, REVISION, SNAPSHOTS, VERSION_TABLE
from diode_store.settings import upgrade_command
from diode_store.sqlite_errors import reason
from diode_store.urls import sqlite_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_BUSY_TIMEOUT_S = 30.0
# Tables that only grow, but for an empty ``extra`` being filled in: their counts tell whether they have changed.
_GROWING = ("problems", "configs")
_MARKED = "SELECT id, flags, superseded_by FROM measurements WHERE flags IS NOT NULL OR superseded_by IS NOT NULL"


class Source(Protocol):
    """A warehouse as rows; iterate over one result at a time."""

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """Hold one state of the database for all that is read inside; keep it short, it holds back cleaning up."""

    def rows(self, sql: str) -> Iterator[Any]:
        """Yield the rows of a SELECT that both databases understand."""


@contextlib.contextmanager
def open_source(url: str) -> Iterator[Source]:
    """Open the warehouse at ``url`` for reading.

    Raises:
        SchemaError: there is none, or one of another revision.
        DatabaseError: it cannot be read.
    """
    path = sqlite_path(url)
    if path is None:
        with _open_other(url) as source:
            yield source
        return
    if not path.exists():
        raise SchemaError(f"{path} holds no warehouse yet; create it with {upgrade_command(str(path))}")
    if path.is_dir():
        raise DatabaseError(f"{path} is a folder; name a file in it")
    try:
        with contextlib.closing(_connect(path)) as connection:
            if _revision(connection) != REVISION:
                _explain(url)
            yield _SqliteSource(connection)
    except sqlite3.Error as error:
        raise DatabaseError(f"{path}: {reason(error)}") from error


class _SqliteSource:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def rows(self, sql: str) -> Iterator[Any]:
        return self._connection.execute(sql)


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)


def _revision(connection: sqlite3.Connection) -> str | None:
    try:
        row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608 - our own name
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return None
        raise
    return str(row[0]) if row else None


def _explain(url: str) -> None:
    """Raise the SchemaError that fits; another revision is rare enough to load SQLAlchemy for its message."""
    from diode_store.store import Store

    Store.open(url).close()


@contextlib.contextmanager
def _open_other(url: str) -> Iterator[Source]:
    """Read through SQLAlchemy; the one function to replace by a faster reader of PostgreSQL."""
    from diode_store.store import Store

    with Store.open(url) as store:
        engine = store.engine.execution_options(isolation_level="REPEATABLE READ")
        with engine.connect() as connection:
            yield _SqlAlchemySource(connection)


class _SqlAlchemySource:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._connection.begin():
            yield

    def rows(self, sql: str) -> Iterator[Any]:
        result = self._connection.execution_options(stream_results=True).exec_driver_sql(sql)
        return (tuple(row) for row in result)


def warehouse_uuid(source: Source) -> str:
    """Return which warehouse it is.

    Raises:
        DatabaseError: the database does not say.
    """
    row = next(iter(source.rows("SELECT uuid FROM warehouse")), None)
    if row is None:
        raise DatabaseError("the warehouse has lost its uuid; restore the database from a backup")
    return str(row[0])


def fingerprints(source: Source) -> dict[str, str]:
    """Return a digest of each part of the warehouse, cheap to make; what is equal need not be copied again."""
    found = {name: _growth(source, name) for name in _GROWING}
    whole = (name for name in SNAPSHOTS if name not in _GROWING)
    found.update((name, _digest(source.rows(select(name)))) for name in whole)
    return {**found, "measurements": _digest_of_uids(measurement_uids(source))}


def measurement_uids(source: Source) -> Iterator[tuple[int, bytes]]:
    """Yield (id, uid) of every measurement, in the order of their ids."""
    return source.rows("SELECT id, uid FROM measurements ORDER BY id")


def select(table: str) -> str:
    """Return the SELECT of a snapshot's columns."""
    if table == MARKS:
        return f"{_MARKED} ORDER BY id"
    columns = SNAPSHOTS[table]
    return f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2"  # noqa: S608 - our own names


def _growth(source: Source, table: str) -> str:
    sql = f"SELECT count(*), coalesce(max(id), 0), count(extra) FROM {table}"  # noqa: S608 - our own names
    return ":".join(str(value) for value in next(iter(source.rows(sql))))


def _digest_of_uids(rows: Iterable[tuple[int, bytes]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for number, uid in rows:
        digest.update(b"%d:" % number)
        digest.update(uid)
    return digest.hexdigest()


def _digest(rows: Iterable[tuple[Any, ...]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(repr(row).encode())
    return digest.hexdigest()
