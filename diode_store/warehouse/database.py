"""Connections to the warehouse: SQLite set up for durability and many processes, or PostgreSQL.

Every error of a driver that passes through an engine made here becomes a one-line ``DatabaseError``, or ``RecordError``
if it is about a value.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from diode_store.errors import DatabaseError, DiodeError
from diode_store.system.urls import (
    BUSY_TIMEOUT_S,
    check_credentials,
    connect_sqlite,
    is_published,
    only_readable,
    redact,
    refuse_password_on_command_line,
    sqlite_path,
)
from diode_store.values.units import MS_PER_S
from diode_store.warehouse.drivers import postgres_errors, sqlite_errors
from diode_store.warehouse.drivers.binding import is_unbindable, unstorable

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping

    from sqlalchemy.engine import ExceptionContext

    from diode_store.warehouse.drivers.postgres_waits import BoundedConnection

__all__ = [
    "begin_write",
    "create_database_file",
    "database_file",
    "describe",
    "driver_connection",
    "integrity_problems",
    "make_engine",
    "redact",
    "refuse_password_on_command_line",
    "size_bytes",
    "sqlite_path",
    "write_transaction",
]

_POSTGRES = ("postgresql", "postgres")
# A network that drops packets must give an error in a minute; what TCP cannot see is left to ``postgres_waits``.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVES = 30, 10, 3
_POSTGRES_DEFAULTS = {
    "application_name": "torch-diode",
    "connect_timeout": "5",
    "keepalives_idle": str(_KEEPALIVE_IDLE_S),
    "keepalives_interval": str(_KEEPALIVE_INTERVAL_S),
    "keepalives_count": str(_KEEPALIVES),
    "tcp_user_timeout": "60000",
}
_SERVER_OPTIONS = {
    "tcp_keepalives_idle": _KEEPALIVE_IDLE_S,
    "tcp_keepalives_interval": _KEEPALIVE_INTERVAL_S,
    "tcp_keepalives_count": _KEEPALIVES,
}
"""The same on the server's side, which holds a lost client's locks until it notices; its own default is two hours.

Not ``tcp_user_timeout``, which would also end the session of a client that lives and does not read for a while."""
_WRITE_OPTION = "diode_write"
_FILE = "diode_file"


def make_engine(url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sa.Engine:
    """Return an engine; nothing is opened or created yet.

    Args:
        url: an SQLite or PostgreSQL URL, or the path of an SQLite file.
        busy_timeout_s: longest wait for a lock that another process holds, in seconds.

    Raises:
        DatabaseError: another kind of database, an address that cannot be read, or a missing driver.
    """
    if is_published(url):
        raise DatabaseError(only_readable(url))
    path = sqlite_path(url)
    engine = _postgres_engine(url, busy_timeout_s) if path is None else _sqlite_engine(path, busy_timeout_s)
    event.listen(engine, "handle_error", _translate, retval=True)
    return engine


def create_database_file(engine: sa.Engine) -> None:
    """Create an SQLite engine's file if it does not exist: mode 0600, its folder 0700; else do nothing.

    Raises:
        DatabaseError: the folder or file cannot be made.
    """
    path = database_file(engine)
    if path is None or sqlite_errors.is_there(path):
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise DatabaseError(f"{path} cannot be created: {error.strerror}; name another place") from error


def database_file(engine: sa.Engine) -> Path | None:
    """Return the file of an SQLite engine; None for any other."""
    return Path(engine.url.database or "") if engine.dialect.name == "sqlite" else None


def size_bytes(engine: sa.Engine) -> int:
    """Return how large a database is on its disk; an SQLite file with what its write-ahead log still holds."""
    path = database_file(engine)
    if path is not None:
        return sum(part.stat().st_size for part in (path, Path(f"{path}-wal")) if part.exists())
    with engine.connect() as connection:
        return int(connection.scalar(sa.select(sa.func.pg_database_size(sa.func.current_database()))) or 0)


def describe(engine: sa.Engine) -> str:
    """Return the engine's file, or its address without the password; for messages."""
    return str(database_file(engine) or redact(engine.url.render_as_string(hide_password=True)))


@contextmanager
def write_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that writes; it commits at the end, and rolls back on any error.

    Raises:
        DatabaseError: the database failed, or the commit went to a file that was deleted meanwhile.
    """
    with engine.connect() as connection:
        with begin_write(connection):
            yield connection
        path = database_file(engine)
        if path is not None:
            _check_same_file(path, connection.info)


def begin_write(connection: sa.Connection) -> sa.RootTransaction:
    """Begin a transaction that writes on ``connection``.

    On SQLite this takes the write lock at once (BEGIN IMMEDIATE). A transaction that first reads and then writes would
    fail if another one wrote in between.
    """
    return connection.execution_options(**{_WRITE_OPTION: True}).begin()


@contextmanager
def driver_connection(connection: sa.Connection) -> Iterator[Any]:
    """Yield the driver's own connection for what SQLAlchemy cannot express; its errors become ours.

    It takes part in the transaction of ``connection``, and is closed for good when it turns out to be lost.
    """
    dialect = connection.dialect
    driver = connection.connection.driver_connection
    try:
        yield driver
    except dialect.loaded_dbapi.Error as error:
        if dialect.is_disconnect(error, connection.connection.dbapi_connection, None):
            connection.invalidate(error)
        raise _ours(connection.engine, error, dialect) from error


def integrity_problems(engine: sa.Engine) -> list[str]:
    """Return what SQLite finds wrong with its file and the references in it; empty for any other database."""
    if engine.dialect.name != "sqlite":
        return []
    with engine.connect() as connection:
        damage = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA quick_check") if row[0] != "ok"]
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    return [*damage, *(f"row {row[1]} of {row[0]} refers to a row of {row[2]} that is not there" for row in broken)]


def _sqlite_engine(path: Path, busy_timeout_s: float) -> sa.Engine:
    def connect() -> sqlite3.Connection:
        sqlite_errors.is_there(path)
        # rw: only `create_database_file` creates one; a mistyped path must not leave an empty database behind.
        connection = connect_sqlite(path, "rw", busy_timeout_s=busy_timeout_s, check_same_thread=False)
        try:
            _set_pragmas(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), creator=connect, poolclass=sa.QueuePool)
    event.listen(engine, "begin", _begin_sqlite)
    event.listen(engine, "connect", lambda _, record: record.info.update({_FILE: _identity(path)}))
    event.listen(engine, "checkout", lambda _, record, __: _check_same_file(path, record.info))
    return engine


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from another one of the same name."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _check_same_file(path: Path, info: Mapping[str, Any]) -> None:
    """Refuse a connection whose file was replaced or deleted, for example by a restored backup.

    SQLite would keep writing to the old file, which is lost, and commit without an error.
    """
    if _identity(path) != info.get(_FILE):
        raise DatabaseError(f"{path} was replaced or deleted while it was open; open it again")


def _set_pragmas(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get(_WRITE_OPTION, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgres_engine(url: str, busy_timeout_s: float) -> sa.Engine:
    check_credentials(url)
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError) as error:
        raise DatabaseError(f"{redact(url)} is not a database URL") from error
    dialect = parsed.get_backend_name()
    if dialect not in _POSTGRES:
        raise DatabaseError(f"{redact(url)}: {dialect} is not supported; use SQLite or PostgreSQL")
    settings = {"lock_timeout": int(busy_timeout_s * MS_PER_S), **_SERVER_OPTIONS}
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    options = f"{options} {_query_value(parsed, 'options')}".rstrip()
    defaults = {name: value for name, value in _POSTGRES_DEFAULTS.items() if name not in parsed.query}
    try:
        from diode_store.warehouse.drivers.postgres_waits import BoundedConnection

        engine = sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            connect_args={**defaults, "options": options},
            pool_pre_ping=True,
        )
    except (ImportError, NoSuchModuleError) as error:
        raise DatabaseError(
            f"{redact(url)}: PostgreSQL needs a driver; run `pip install torch-diode[postgres]`"
        ) from error
    event.listen(engine, "do_connect", lambda _, __, args, options: BoundedConnection.connect(*args, **options))
    event.listen(engine, "checkin", partial(_note_pooled, is_idle=True))
    event.listen(engine, "checkout", partial(_note_pooled, is_idle=False))
    return engine


def _note_pooled(connection: BoundedConnection | None, *_: object, is_idle: bool) -> None:
    if connection is not None:  # None if the connection was invalidated
        connection.is_idle_in_pool = is_idle


def _query_value(url: sa.URL, name: str) -> str:
    value = url.query.get(name, "")
    return value if isinstance(value, str) else " ".join(value)


def _translate(context: ExceptionContext) -> DiodeError | None:
    """Turn the driver's error into our one-line error; other errors pass unchanged."""
    original, driver = context.original_exception, context.dialect.loaded_dbapi
    if context.engine is not None and isinstance(original, driver.Error):
        return _ours(context.engine, original, context.dialect)
    # Without a statement, code of ours that SQLAlchemy calls raised the error. Reading involves no record.
    writes = context.connection is not None and context.connection.get_execution_options().get(_WRITE_OPTION)
    if writes and context.statement is not None and is_unbindable(original, driver.Error, driver.DataError):
        return unstorable(str(original))
    return None


def _ours(engine: sa.Engine, error: BaseException, dialect: sa.Dialect) -> DiodeError:
    """Return our error for a driver's: a value that does not fit must not look like an unreachable database."""
    reason = (sqlite_errors if dialect.name == "sqlite" else postgres_errors).reason(error)
    if is_unbindable(error, dialect.loaded_dbapi.Error, dialect.loaded_dbapi.DataError):
        return unstorable(reason)
    return DatabaseError(f"{describe(engine)}: {reason}")
