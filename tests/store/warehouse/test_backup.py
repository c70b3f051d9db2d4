"""Copies of a database in use: whole, private, checked, and never in the place of another."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import samples
from diode_store.errors import BackupError, DatabaseError
from diode_store.warehouse import migrate
from diode_store.warehouse.database import integrity_problems, make_engine
from diode_store.warehouse.store import Store
from diode_store.warehouse.upkeep import backup

if TYPE_CHECKING:
    from conftest import RunCommand

DATA = Path(__file__).parents[2] / "data"
BATCH = 5
WRITER = (
    "import sys, itertools, samples\nfrom diode_store.warehouse.store import Store\n"
    "with Store.open(sys.argv[1]) as store:\n"
    "    for start in itertools.count(0, 5):\n"
    "        store.write(samples.measurement(start + n) for n in range(5)); print(start, flush=True)\n"
)


@pytest.fixture
def writer(database_path: Path) -> subprocess.Popen[str]:
    """Return a process that commits five measurements at a time for as long as it lives."""
    command = [sys.executable, "-c", WRITER, str(database_path)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_copy_while_others_write(database_path: Path, tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    """Copies made under a busy writer hold whole transactions, all that was committed before, and end."""
    assert writer.stdout is not None
    engine = make_engine(str(database_path))
    try:
        for number in range(5):
            acknowledged = int(writer.stdout.readline())
            target = tmp_path / f"copy-{number}.db"
            assert backup(engine, target) == target.stat().st_size
            copy = make_engine(str(target))
            migrate.require_current(copy)
            assert integrity_problems(copy) == []
            copy.dispose()
            [(measurements, timings)] = samples.sql(
                target, "SELECT (SELECT count(*) FROM measurements), (SELECT count(*) FROM timings)"
            )
            assert measurements >= acknowledged + BATCH
            assert (measurements % BATCH, timings) == (0, 3 * measurements)
    finally:
        writer.kill()
        writer.communicate()
        engine.dispose()


def test_a_copy_is_one_private_file(store: Store, database_path: Path, tmp_path: Path) -> None:
    """It is for its owner alone, needs no other file, and can be read where nothing can be written."""
    store.write([samples.measurement(1)])
    pages: list[float] = []
    target = tmp_path / "copy.db"
    backup(store.engine, target, pages.append)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sum(pages) == target.stat().st_size // 4096
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]
    with closing(sqlite3.connect(f"file:{target}?immutable=1", uri=True)) as connection:
        assert connection.execute("SELECT count(*) FROM timings").fetchone() == (3,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    with Store.open(str(target)) as copy:
        assert copy.write([samples.measurement(1), samples.measurement(2)]).measurements == 1
    assert samples.sql(database_path, "SELECT count(*) FROM measurements") == [(1,)]


def test_nothing_is_replaced(store: Store, tmp_path: Path) -> None:
    """A file that is there, a folder, and the warehouse itself are refused and left as they were."""
    (tmp_path / "there.db").write_text("mine")
    (tmp_path / "link.db").symlink_to(tmp_path / "nowhere.db")
    for name in ("there.db", "link.db", "warehouse.db"):
        with pytest.raises(BackupError, match=f"{name} exists already; a backup is never replaced, name another"):
            backup(store.engine, tmp_path / name)
    with pytest.raises(BackupError, match="is a folder; name a file in it"):
        backup(store.engine, tmp_path)
    with pytest.raises(BackupError, match=r"No such file or directory; name another folder"):
        backup(store.engine, tmp_path / "none" / "x.db")
    assert (tmp_path / "there.db").read_text() == "mine"
    assert not list(tmp_path.glob("*.new"))


def test_too_little_room(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that cannot take the copy is found out beforehand, and nothing is written."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=12_345))
    with pytest.raises(BackupError, match=r"has 12.35 kB free, and the copy may take .* kB; make room first"):
        backup(store.engine, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_a_damaged_database_is_not_copied(tmp_path: Path, diode: RunCommand) -> None:
    """A copy of damage would push good backups out; it is refused in one line and nothing is left of it."""
    source = tmp_path / "damaged.db"
    shutil.copy(DATA / "warehouse-0001.db", source)
    with source.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 20 * 4096)
    ended = diode("db", "backup", tmp_path / "copy.db", "--database", source)
    assert ended.code == 1
    assert "damaged" in ended.err
    assert ended.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.glob("copy*")) == []


def test_a_backup_of_any_revision(tmp_path: Path, diode: RunCommand) -> None:
    """Before an upgrade the old warehouse is copied as it is; what is no warehouse is refused."""
    source = tmp_path / "old.db"
    shutil.copy(DATA / "warehouse-0001.db", source)
    copy = tmp_path / "copy.db"
    answer = json.loads(diode("db", "backup", copy, "--json", "--database", source).out)
    assert answer == {"file": str(copy), "revision": "0001", "bytes": copy.stat().st_size}
    rows = "SELECT * FROM timings ORDER BY 1, 2"
    assert samples.sql(copy, rows) == samples.sql(source, rows)
    ended = diode("db", "backup", tmp_path / "x.db", "--database", tmp_path / "none.db")
    assert ended == (1, "", f"error: {tmp_path / 'none.db'} holds no warehouse; name another database\n")


def test_postgresql_has_its_own_backup(diode: RunCommand, postgres_url: str, tmp_path: Path) -> None:
    """For a server the command names pg_dump."""
    ended = diode("db", "backup", tmp_path / "x.db", "--database", postgres_url)
    assert ended.code == 1
    assert "is not a file; back it up with PostgreSQL's own `pg_dump --format=custom`" in ended.err


def test_vacuum_on_both(diode: RunCommand, any_url: str) -> None:
    """The space of deleted rows is given back on either database, and the rows that are left are the same."""
    with Store.open(any_url) as store:
        store.write([samples.measurement(number) for number in range(50)])
    diode("db", "prune", "--older-than", "1h", "--all", "--yes", "--database", any_url)
    ended = diode("db", "vacuum", "--database", any_url)
    assert ended.code == 0
    with Store.open(any_url) as store:
        assert store.counts()["timings"] == 150


def test_vacuum_waits_for_nobody_in_vain(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the new file it is refused before anything is locked."""
    from diode_store.warehouse.upkeep import vacuum

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1))
    with pytest.raises(BackupError, match="the new file and the log it goes through may take"):
        vacuum(store.engine)


def test_vacuum_of_a_locked_database(database_path: Path) -> None:
    """A writer that does not end is named as the reason, in our words."""
    from diode_store.warehouse.upkeep import vacuum

    engine = make_engine(str(database_path), busy_timeout_s=0.1)
    with closing(sqlite3.connect(database_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseError, match="another process holds it locked"):
            vacuum(engine)
    engine.dispose()
