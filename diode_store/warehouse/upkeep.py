"""Copy the database file while it is in use, and free the disk space of deleted rows."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from diode_store.command_line.render import quantity
from diode_store.errors import BackupError, DatabaseError
from diode_store.system.files import PRIVATE_FILE, sync_folder, whole_file
from diode_store.system.urls import connect_sqlite
from diode_store.warehouse.database import database_file, describe, size_bytes
from diode_store.warehouse.drivers.sqlite_errors import reason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import sqlalchemy as sa

_PAGES_AT_ONCE = 1_000
_VACUUM_TABLES = "measurements, timings, metric_values, decisions, tombstones"


def backup(engine: sa.Engine, target: Path, on_progress: Callable[[float], None] = lambda _pages: None) -> int:
    """Copy an SQLite warehouse to ``target`` as it is at this moment; writers may go on meanwhile.

    The copy is checked and is on the disk when this returns; only its owner can read it.

    Args:
        engine: the warehouse.
        target: a file that is not there yet.
        on_progress: called with the number of pages just copied.

    Returns:
        The size of the copy in bytes.

    Raises:
        BackupError: the warehouse is no SQLite file, ``target`` exists or cannot be written, or the copy is damaged.
        DatabaseError: the warehouse cannot be read.
    """
    source = database_file(engine)
    if source is None:
        raise BackupError(
            f"{describe(engine)} is not a file; back it up with PostgreSQL's own `pg_dump --format=custom`"
        )
    _refuse_existing(target)
    _require_space(target.parent, size_bytes(engine) or 0, "the copy")
    try:
        with whole_file(target) as beside:
            os.close(os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
            _copy(source, beside, on_progress)
            _check_copy(source, beside)
            _refuse_existing(target)
        sync_folder(target.parent)
    except OSError as error:
        raise BackupError(f"{target} cannot be written: {error.strerror or error}; check its folder") from error
    return target.stat().st_size


def vacuum(engine: sa.Engine) -> None:
    """Return the space of deleted rows: SQLite rewrites its file, PostgreSQL marks the space for use again.

    SQLite blocks other writers meanwhile.

    Raises:
        DatabaseError: the database failed, is in use for too long, or its disk has too little room.
    """
    path = database_file(engine)
    if path is None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"VACUUM (ANALYZE) {_VACUUM_TABLES}")
        return
    # The new file is made beside the old one, and goes through the write-ahead log.
    _require_space(path.parent, 2 * (size_bytes(engine) or 0), "the new file and the log it goes through")
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        try:
            driver.execute("VACUUM")
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise DatabaseError(f"{path}: {reason(error)}") from error


def _copy(source: Path, target: Path, on_progress: Callable[[float], None]) -> None:
    done = 0

    def progress(_status: int, remaining: int, total: int) -> None:
        nonlocal done
        on_progress(total - remaining - done)
        done = total - remaining

    try:
        with closing(connect_sqlite(source, "rw")) as reader, closing(connect_sqlite(target, "rw")) as writer:
            # One snapshot for the whole copy: without it every commit of another process would restart the copy.
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            reader.backup(writer, pages=_PAGES_AT_ONCE, progress=progress, sleep=0)
            reader.execute("ROLLBACK")
            # Make the copy a single file, which can also be read on a read-only disk.
            writer.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise DatabaseError(f"{source}: {reason(error)}") from error


def _check_copy(source: Path, copy: Path) -> None:
    try:
        with closing(connect_sqlite(copy, "ro")) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(1)")]
    except sqlite3.Error as error:
        found = [reason(error)]
    if found != ["ok"]:
        raise BackupError(f"{source} is damaged ({found[0]}), and so is a copy of it; keep the backups you have")
    with copy.open("rb") as file:
        os.fsync(file.fileno())


def _refuse_existing(target: Path) -> None:
    if target.is_dir():
        raise BackupError(f"{target} is a folder; name a file in it")
    if target.exists() or target.is_symlink():
        raise BackupError(f"{target} exists already; a backup is never replaced, name another file")


def _require_space(folder: Path, needed: int, for_what: str) -> None:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise BackupError(f"{folder}: {error.strerror or error}; name another folder") from error
    if free < needed:
        raise BackupError(
            f"{folder} has {quantity(free, 'B')} free, and {for_what} may take {quantity(needed, 'B')}; make room first"
        )
