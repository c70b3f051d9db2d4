from __future__ import annotations

import hashlib
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from compare import assert_exactly_once
from processes import drained
from producing import produce, produced

from diode_collectors.spool.spool import SpoolWriter
from diode_store.warehouse import schema
from diode_store.warehouse.database import make_engine
from waiting import eventually

if TYPE_CHECKING:
    from processes import ForkServer

    from conftest import RunCommand

COMMANDS = (
    ("query", "SELECT 1 FROM observations"),
    ("fastest", "--hardware", "H200"),
    ("sync",),
    ("hardware", "list"),
    ("hardware", "alias", "NVIDIA H200", "h"),
    ("import", "FILE"),
    ("export", "--format", "jsonl", "-o", "OUT"),
    ("db", "upgrade"),
    ("db", "check"),
    ("db", "stats"),
    ("train", "--hardware", "H200", "--output", "OUT"),
)


def set_revision(url: str, revision: str) -> None:
    """Write into a database that it has another revision."""
    engine = make_engine(url)
    with engine.begin() as connection:
        table = sa.table(schema.VERSION_TABLE, sa.column("version_num"))
        connection.execute(sa.update(table).values(version_num=revision))
    engine.dispose()


def content(folder: Path) -> dict[str, str]:
    """Return the names of the files in a folder with a digest of each; the lock file is nobody's record."""
    files = (path for path in sorted(folder.iterdir()) if path.name != "ingest.lock")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def newer_url(any_url: str) -> str:
    """Return a warehouse that a newer torch-diode has upgraded."""
    set_revision(any_url, "9999")
    return any_url


@pytest.fixture
def filled(spool: Path) -> Path:
    """Return a spool with ten measurements."""
    with SpoolWriter(spool) as writer:
        for measurement in produce(1, range(10)):
            writer.append(measurement)
    return spool


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["run", "--once", "--dry-run"])
def test_a_daemon_refuses_a_newer_schema(processes: ForkServer, filled: Path, newer_url: str, mode: str) -> None:
    """It ends with 1 and one line that names the remedy; the spool stays as it was, and goes in after the upgrade."""
    before = content(filled)
    ended = processes.ingest(mode, "--spool", filled, "--database", newer_url)
    assert ended.end() == 1
    (error,) = (line for line in ended.log.read_text().splitlines() if not line.startswith("at="))
    assert error.startswith("error: ")
    assert f"has schema revision 9999, newer than {schema.HEAD_REVISION}, the newest this torch-diode knows; " in error
    assert "pip install --upgrade torch-diode" in error
    assert content(filled) == before
    set_revision(newer_url, schema.HEAD_REVISION)
    daemon = processes.daemon(filled, newer_url)
    eventually(lambda: drained(filled))
    assert daemon.end(signal.SIGTERM) == 0
    assert_exactly_once(newer_url, [m.uid for m in produce(1, range(10))], produced)


def lose_connections(url: str, request: pytest.FixtureRequest, folder: Path) -> None:
    """End whatever connection there is to a database: on a server its sessions, on SQLite by a copy in its place."""
    if not url.startswith("sqlite"):
        name = sa.make_url(url).database
        end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname ="
        assert request.getfixturevalue("postgres_server").sql(f"{end} '{name}'")
        return
    path = Path(url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(folder / "copy.db")) as copy:
        source.backup(copy)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    (folder / "copy.db").replace(path)


@pytest.mark.quick(1)
def test_a_running_daemon_whose_database_is_upgraded(
    processes: ForkServer, spool: Path, any_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A daemon that finds its database upgraded when it connects again keeps the spool and tries again later."""
    writer = processes.writer(spool, 1, batches=7)
    daemon = processes.daemon(spool, any_url)
    daemon.says_more("event=ingested")
    assert writer.end() == 0
    eventually(lambda: drained(spool))
    set_revision(any_url, "9999")
    lose_connections(any_url, request, tmp_path)
    assert processes.writer(spool, 2, batches=7).end() == 0
    before = content(spool)
    eventually(lambda: daemon.says("has schema revision 9999") > 2)
    assert content(spool) == before
    set_revision(any_url, schema.HEAD_REVISION)
    eventually(lambda: drained(spool))
    assert daemon.end(signal.SIGTERM) == 0
    assert assert_exactly_once(any_url, processes.acknowledged(), produced) == 42


@pytest.mark.quick(6)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_every_command_refuses_a_newer_schema(
    command: tuple[str, ...],
    newer_url: str,
    jsonl_path: Path,
    tmp_path: Path,
    diode: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit status 1 and one line with the remedy; the revision stays."""
    monkeypatch.setenv("DIODE_DATABASE_URL", newer_url)
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "cache"))
    places = {"FILE": str(jsonl_path), "OUT": str(tmp_path / "out")}
    ended = diode(*(places.get(word, word) for word in command))
    assert (ended.code, ended.out) == (1, "")
    (line,) = ended.err.splitlines()
    assert "has schema revision 9999, newer than" in line
    assert not (tmp_path / "out").exists()
    assert "9999" in diode("db", "current").out
