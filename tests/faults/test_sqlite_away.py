from __future__ import annotations

import resource
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from compare import assert_exactly_once, stored_rows
from processes import ForkServer, drained, free_port, readiness
from producing import produced

from diode_collectors.spool.spool import Spool
from lanes import long, sizes
from waiting import eventually

if TYPE_CHECKING:
    from processes import Child

_DRIVER_WAITS_S = 30.0


def finish(processes: ForkServer, daemon: Child, writer: Child, spool: Path, url: str) -> None:
    """Stop the writer, let the daemon do what is left, and compare."""
    assert writer.end(signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: drained(spool))
    assert daemon.end(signal.SIGTERM) == 0
    assert Spool(spool).status().quarantined == 0
    assert "Traceback" not in daemon.log.read_text()
    assert assert_exactly_once(url, processes.acknowledged(), produced, others=True) > 0


@pytest.mark.parametrize("locked_s", sizes(1, _DRIVER_WAITS_S + 5))
def test_a_file_locked_for_long(
    processes: ForkServer, spool: Path, database_path: Path, database_url: str, locked_s: int
) -> None:
    """Another process holds the write lock: the daemon waits for it; locked too long is a failure it recovers from."""
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, database_url)
    daemon.says_more("event=ingested")
    with closing(sqlite3.connect(database_path, isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        before = len(processes.acknowledged())
        time.sleep(locked_s)
        assert len(processes.acknowledged()) > before, "a locked warehouse must not stop the writers"
        rival.execute("ROLLBACK")
    daemon.says_more("event=ingested")
    assert bool(daemon.says("event=failed")) == (locked_s > _DRIVER_WAITS_S)
    finish(processes, daemon, writer, spool, database_url)


def test_a_file_that_is_replaced(
    processes: ForkServer, spool: Path, database_path: Path, database_url: str, tmp_path: Path
) -> None:
    """An empty warehouse takes the place of the one in use: nothing goes to the old one unnoticed, or to both."""
    fresh = Path(shutil.copy(database_path, tmp_path / "fresh.db"))
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, database_url)
    daemon.says_more("event=ingested")
    # As a person would: the old one with its log aside, the new one in its place.
    aside = tmp_path / "aside"
    aside.mkdir()
    for part in (f"{database_path}-wal", f"{database_path}-shm", str(database_path)):
        Path(part).rename(aside / Path(part).name)
    fresh.rename(database_path)
    daemon.says_more("event=failed")
    daemon.says_more("event=ingested")
    assert writer.end(signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: drained(spool))
    assert daemon.end(signal.SIGTERM) == 0
    first = {bytes(row["measurement"]["uid"]) for row in stored_rows(str(aside / database_path.name))}
    acknowledged = processes.acknowledged()
    assert first < set(acknowledged)
    rest = [uid for uid in acknowledged if uid not in first]
    assert assert_exactly_once(database_url, rest, produced, others=True) <= len(rest) + len(first)
    assert assert_exactly_once(str(aside / database_path.name), sorted(first), produced) == len(first)


def test_a_file_that_is_gone_for_a_while(
    processes: ForkServer, spool: Path, database_path: Path, database_url: str, tmp_path: Path
) -> None:
    """A disk that is taken away and comes back: not ready meanwhile, and nothing is put where the file was."""
    port = free_port()
    folder = tmp_path / "disk"
    folder.mkdir()
    place = Path(shutil.copy(database_path, folder / "warehouse.db"))
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, str(place), "--listen", f"127.0.0.1:{port}")
    daemon.says_more("event=ingested")
    folder.rename(tmp_path / "away")
    daemon.says_more("event=failed")
    assert readiness(port)[0] == 503
    assert not folder.exists()
    (tmp_path / "away").rename(folder)
    daemon.says_more("event=ingested")
    assert readiness(port) == (200, "ready\n")
    finish(processes, daemon, writer, spool, str(place))


@long
def test_a_write_that_fails_in_the_middle(
    processes: ForkServer, spool: Path, database_path: Path, database_url: str
) -> None:
    """The system refuses to make the file longer amid a transaction: rolled back, retried, and whole in the end."""
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, database_url)
    for extra in (0, 5_000, 70_000):
        daemon.says_more("event=ingested")
        size = max(Path(f"{database_path}{suffix}").stat().st_size for suffix in ("", "-wal"))
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size + extra, resource.RLIM_INFINITY))
        daemon.says_more("event=failed")
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    daemon.says_more("event=ingested")
    finish(processes, daemon, writer, spool, database_url)


@long
def test_a_folder_that_cannot_be_written(
    ordinary: ForkServer, spool: Path, database_path: Path, database_url: str, tmp_path: Path
) -> None:
    """The folder of the file loses its write permission, and then the file itself: told in one line, then mended."""
    folder = tmp_path / "data"
    folder.mkdir()
    place = Path(shutil.copy(database_path, folder / "warehouse.db"))
    writer = ordinary.writer(spool, 1, pause_s=0.05)
    folder.chmod(0o500)
    daemon = ordinary.daemon(spool, str(place))
    daemon.says_more("event=failed")
    assert "check the owner and mode" in daemon.log.read_text()
    folder.chmod(0o700)
    daemon.says_more("event=ingested")
    assert daemon.end(signal.SIGTERM) == 0
    place.chmod(0o400)
    daemon = ordinary.daemon(spool, str(place))
    daemon.says_more("event=failed")
    # SQLite gives the files beside a database its mode.
    for part in folder.iterdir():
        part.chmod(0o600)
    daemon.says_more("event=ingested")
    finish(ordinary, daemon, writer, spool, str(place))


@pytest.mark.long
def test_a_spool_that_cannot_be_emptied(ordinary: ForkServer, spool: Path, database_url: str) -> None:
    """The spool loses its write permission: what is stored is not removed, is not stored again, and goes in the end."""
    writer = ordinary.writer(spool, 1, pause_s=0.05)
    eventually(lambda: len(Spool(spool).sealed()) > 2)
    assert writer.end(signal.SIGKILL) == -signal.SIGKILL
    daemon = ordinary.daemon(spool, database_url)
    daemon.says_more("event=ingested")
    assert daemon.end(signal.SIGTERM) == 0
    writer = ordinary.writer(spool, 2, batches=21)
    assert writer.end() == 0
    spool.chmod(0o500)
    daemon = ordinary.daemon(spool, database_url)
    eventually(lambda: daemon.says("event=failed") > 1)
    spool.chmod(0o700)
    eventually(lambda: drained(spool))
    assert daemon.end(signal.SIGTERM) == 0
    assert_exactly_once(database_url, ordinary.acknowledged(), produced, others=True)


@long
def test_a_machine_that_sleeps(processes: ForkServer, spool: Path, database_url: str) -> None:
    """Writer and daemon stopped for a while wherever they are, as a suspended machine does: they just go on."""
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, database_url)
    daemon.says_more("event=ingested")
    for _ in range(3):
        for number in (signal.SIGSTOP, signal.SIGCONT):
            daemon.send(number)
            writer.send(number)
            time.sleep(0.3)
    assert not daemon.says("event=reloaded")
    daemon.says_more("event=ingested")
    finish(processes, daemon, writer, spool, database_url)
