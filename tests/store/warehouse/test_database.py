from __future__ import annotations

import sqlite3
import stat
import sys
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from diode_store.errors import DatabaseError
from diode_store.warehouse import database, migrate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def engine(database_path: Path) -> Iterator[sa.Engine]:
    """Return an engine on an empty warehouse that does not wait long for locks."""
    made = database.make_engine(str(database_path), busy_timeout_s=0.05)
    yield made
    made.dispose()


def pragma(engine: sa.Engine, name: str) -> object:
    """Return a setting of a connection as every user of the engine gets it."""
    with engine.connect() as connection:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar()


def refused(url: str) -> str:
    """Return what is said of a database that cannot be used."""
    with pytest.raises(DatabaseError) as error:
        migrate.current(database.make_engine(url))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "value"), [("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1), ("busy_timeout", 30000)]
)
def test_sqlite_is_durable_and_shared(database_path: Path, name: str, value: object) -> None:
    """Every connection has a write-ahead log, syncs on every commit, checks references and waits for locks."""
    engine = database.make_engine(str(database_path))
    assert pragma(engine, name) == value
    engine.dispose()


def test_commit_and_rollback(engine: sa.Engine) -> None:
    """What a transaction did is there after it, and gone after an error, tables included."""
    with database.write_transaction(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE kept (x)")

    def fail_half_way() -> None:
        with database.write_transaction(engine) as connection:
            connection.exec_driver_sql("CREATE TABLE dropped (x)")
            connection.exec_driver_sql("INSERT INTO kept VALUES (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    names = sa.inspect(engine).get_table_names()
    assert ("kept" in names, "dropped" in names) == (True, False)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM kept").scalar() == 0


def test_writers_take_the_lock_at_once(engine: sa.Engine, database_path: Path) -> None:
    """Two writers cannot both read first and then collide: the second waits before it begins."""
    other = database.make_engine(str(database_path), busy_timeout_s=0.05)
    with (
        database.write_transaction(engine),
        pytest.raises(DatabaseError, match="another process holds it locked; try again"),
        database.write_transaction(other),
    ):
        pass
    other.dispose()


def test_readers_do_not_wait_for_a_writer(engine: sa.Engine, database_path: Path) -> None:
    """A reader beside a writer sees the last commit."""
    other = database.make_engine(str(database_path), busy_timeout_s=0.05)
    with database.write_transaction(engine) as writer:
        writer.exec_driver_sql("UPDATE warehouse SET uuid = 'changed'")
        with other.connect() as reader:
            assert reader.exec_driver_sql("SELECT uuid FROM warehouse").scalar() != "changed"
    other.dispose()


def test_a_locked_database_is_one_line(engine: sa.Engine, database_path: Path) -> None:
    """A lock that does not go away is reported with the file and what to do."""
    holder = sqlite3.connect(database_path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseError) as error, database.write_transaction(engine):
        pass
    holder.close()
    assert str(error.value) == f"{database_path}: another process holds it locked; try again when that process is done"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder is named as what it is."""
    assert refused(str(tmp_path)) == f"{tmp_path} is a folder; name a file in it"


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """A file of something else is neither read nor changed."""
    path = tmp_path / "notes.txt"
    path.write_text("measure more\n" * 100)
    assert refused(str(path)) == f"{path}: it is not an SQLite database; name another file"
    assert path.read_text() == "measure more\n" * 100


def test_a_damaged_database_is_refused(database_path: Path) -> None:
    """A torn file says that it is damaged and needs its backup."""
    with database_path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)
    engine = database.make_engine(str(database_path))
    with pytest.raises(DatabaseError, match=f"{database_path}: it is damaged; restore it from a backup"):
        database.integrity_problems(engine)
    engine.dispose()


def test_a_place_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A folder below a file cannot exist, and the message says which and why."""
    (tmp_path / "file").write_text("")
    engine = database.make_engine(str(tmp_path / "file" / "warehouse.db"))
    with pytest.raises(DatabaseError, match=r"warehouse.db cannot be created: (File exists|Not a directory); name"):
        database.create_database_file(engine)


def test_an_existing_file_is_left_alone(database_path: Path) -> None:
    """Making sure that the file exists changes nothing if it does."""
    before = (database_path.read_bytes(), database_path.stat().st_mode)
    database.create_database_file(database.make_engine(str(database_path)))
    assert (database_path.read_bytes(), database_path.stat().st_mode) == before


def test_write_ahead_log_is_private(engine: sa.Engine, database_path: Path) -> None:
    """The files beside the database are as private as itself."""
    with database.write_transaction(engine) as connection:
        connection.exec_driver_sql("UPDATE warehouse SET extra = NULL")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in database_path.parent.glob("warehouse.db*")}
    assert modes == dict.fromkeys(("warehouse.db", "warehouse.db-wal", "warehouse.db-shm"), 0o600)
    assert database.size_bytes(engine) == sum(
        database_path.with_name(name).stat().st_size for name in ("warehouse.db", "warehouse.db-wal")
    )


def test_strange_paths_are_paths(tmp_path: Path) -> None:
    """Characters that mean something in a URL mean nothing in a path."""
    path = tmp_path / "50% of a?b#c.db"
    engine = database.make_engine(str(path))
    migrate.upgrade(engine)
    assert path.exists()
    assert database.describe(engine) == str(path)
    engine.dispose()


def test_sound_database_has_no_problems(engine: sa.Engine) -> None:
    """A database without damage has an empty list."""
    assert database.integrity_problems(engine) == []


def test_reference_to_nothing_is_a_problem(engine: sa.Engine, database_path: Path) -> None:
    """A row that refers to nothing is named."""
    with sqlite3.connect(database_path) as connection:
        connection.execute("INSERT INTO hardware_aliases (alias, hardware_id) VALUES ('x', 17)")
    connection.close()
    [problem] = database.integrity_problems(engine)
    assert "of hardware_aliases refers to a row of hardware that is not there" in problem


def test_postgresql_needs_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the driver the message names the extra to install, and hides the password."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DatabaseError) as error:
        database.make_engine("postgresql://me:secret@db/warehouse")
    assert str(error.value) == (
        "postgresql://me:***@db/warehouse: PostgreSQL needs a driver; run `pip install torch-diode[postgres]`"
    )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://me:secret@db/x", r"mysql://me:\*\*\*@db/x: mysql is not supported; use SQLite or PostgreSQL"),
        ("postgresql://db:port/x", "postgresql://db:port/x is not a database URL"),
        ("oracle+thing://db", "oracle is not supported"),
    ],
)
def test_other_databases_are_refused(url: str, message: str) -> None:
    """Another database, or what is no address at all, is named without its password."""
    with pytest.raises(DatabaseError, match=message):
        database.make_engine(url)
