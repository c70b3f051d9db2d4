from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from daemon_process import Daemon, has_open
from daemon_samples import PROGRAM, fill, stored_in
from spool_samples import segment_bytes, uid_of

from diode_collectors.spool.spool import Spool
from lanes import long
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_daemon(directory: Path, database_path: Path, number: signal.Signals) -> None:
    """SIGTERM and SIGINT end it at once, with 0 and a word in the log; the spool is free again."""
    daemon = Daemon(directory, database_path)
    assert Spool(directory).lock_holder() == daemon.process.pid
    begin = time.monotonic()
    assert daemon.end(number) == 0
    assert time.monotonic() - begin < 20
    assert "event=stopped" in daemon.log[-1]
    assert Spool(directory).lock_holder() is None


@pytest.mark.parametrize("delay_s", [0.05, *(pytest.param(delay_s, marks=long) for delay_s in (0.0, 0.15))])
def test_a_signal_finishes_the_batch(directory: Path, database_path: Path, delay_s: float) -> None:
    """Stopped amid its work it exits with 0; what it committed and what it left make up the whole, once each."""
    fill(directory, range(1500))
    daemon = Daemon(directory, database_path)
    daemon.wait_until_it_works(database_path)
    time.sleep(delay_s)
    assert daemon.end(signal.SIGTERM) == 0
    done = stored_in(database_path)
    assert len(set(done)) == len(done)
    rest = subprocess.run(
        [PROGRAM, "--once", "--spool", directory, "--database", database_path],
        capture_output=True,
        check=True,
        text=True,
    )
    assert rest.stdout.startswith(f"{1500 - len(done):,} new, ")
    assert stored_in(database_path) == list(range(1500))


@pytest.mark.long
def test_a_single_pass_obeys_signals_too(directory: Path, database_path: Path) -> None:
    """`--once` interrupted finishes its batch, says that the rest is still there, and exits with 0."""
    fill(directory, range(400), timings=150)
    command = [PROGRAM, "--once", "--spool", directory, "--database", database_path]
    process: subprocess.Popen[str] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    eventually(lambda: has_open(process, database_path))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    done = stored_in(database_path)
    assert process.returncode == 0
    assert out.startswith(f"{len(done)} new, 0 already stored")
    assert len(done) == 400 or out.endswith("stopped early, the rest is still in the spool\n")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert stored_in(database_path) == list(range(400))


@contextlib.contextmanager
def stuck(directory: Path, database_path: Path) -> Iterator[Daemon]:
    """Yield a daemon that waits, with ten records to store, for a database that somebody else has locked meanwhile."""
    with contextlib.closing(sqlite3.connect(database_path)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        fill(directory, range(10))
        daemon = Daemon(directory, database_path)
        daemon.wait_until_it_works(database_path)
        time.sleep(0.5)
        yield daemon
        rival.rollback()


def test_a_signal_ends_a_stuck_daemon(directory: Path, database_path: Path) -> None:
    """Stuck in a database that somebody else has locked, it ends within ten seconds all the same; nothing is lost."""
    with stuck(directory, database_path) as daemon:
        begin = time.monotonic()
        assert daemon.end(signal.SIGTERM) == 0
        assert time.monotonic() - begin < 10
    assert daemon.log[-1].startswith("stopped in the middle of a batch")
    assert len(Spool(directory).sealed()) == 1
    subprocess.run([PROGRAM, "--once", "--spool", directory, "--database", database_path], check=True)
    assert stored_in(database_path) == list(range(10))


def test_a_second_signal_ends_it_at_once(directory: Path, database_path: Path) -> None:
    """Stuck in a database that somebody else has locked, it obeys the second signal; nothing is lost."""
    with stuck(directory, database_path) as daemon:
        begin = time.monotonic()
        assert daemon.end(signal.SIGTERM, signal.SIGTERM) == 128 + signal.SIGTERM
        assert time.monotonic() - begin < 20
    assert len(Spool(directory).sealed()) == 1
    subprocess.run([PROGRAM, "--once", "--spool", directory, "--database", database_path], check=True)
    assert stored_in(database_path) == list(range(10))


@pytest.mark.long
@pytest.mark.parametrize("delay_s", [0.1, *(pytest.param(delay_s, marks=long) for delay_s in (0.0, 0.2, 0.4))])
def test_a_killed_daemon_loses_and_doubles_nothing(directory: Path, database_path: Path, delay_s: float) -> None:
    """After kill -9 the next one takes over the spool, and every record is there exactly once."""
    fill(directory, range(400), timings=150)
    daemon = Daemon(directory, database_path)
    daemon.wait_until_it_works(database_path)
    time.sleep(delay_s)
    assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
    successor = Daemon(directory, database_path)
    eventually(lambda: Spool(directory).sealed() == [])
    assert successor.end(signal.SIGTERM) == 0
    assert stored_in(database_path) == list(range(400))


def test_a_second_daemon_names_the_first(directory: Path, database_path: Path) -> None:
    """Two daemons on one spool: the second one exits with 1 and one line that names the pid."""
    daemon = Daemon(directory, database_path)
    second = subprocess.run(
        [PROGRAM, "run", "--spool", directory, "--database", database_path], capture_output=True, text=True, check=False
    )
    assert (second.returncode, len(second.stderr.splitlines())) == (1, 1)
    assert f"error: {directory}: another diode-ingest (pid {daemon.process.pid}) is running" in second.stderr
    assert daemon.end(signal.SIGTERM) == 0


def test_a_daemon_logs_what_it_does(directory: Path, database_path: Path) -> None:
    """The log holds a line for what was ingested and a line for each rejection."""
    (directory / "a.seg").write_bytes(segment_bytes([1, 2])[:-3])
    daemon = Daemon(directory, database_path)
    daemon.wait_for("event=rejected")
    assert daemon.end(signal.SIGTERM) == 0
    assert any("event=ingested segments=1 measurements=2" in line for line in daemon.log)
    assert any("reason=truncated" in line and "segment=a.seg" in line for line in daemon.log)
    with sqlite3.connect(database_path) as connection:
        assert connection.execute("SELECT uid FROM measurements").fetchall() == [(uid_of(1),), (uid_of(2),)]
    connection.close()


def test_a_failing_worker_ends_the_process(directory: Path, tmp_path: Path) -> None:
    """An error at the start is one line and exit status 1, promptly."""
    begin = time.monotonic()
    absent = tmp_path / "absent.db"
    finished = subprocess.run(
        [PROGRAM, "run", "--spool", directory, "--database", absent], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 1
    assert "diode db upgrade" in finished.stderr.splitlines()[-1]
    assert time.monotonic() - begin < 20
    assert not absent.exists()


def test_a_spool_that_is_deleted_ends_it(directory: Path, database_path: Path) -> None:
    """Its lock went with the folder, so another daemon may work on the new one: it says so and exits with 1."""
    daemon = Daemon(directory, database_path)
    shutil.rmtree(directory)
    assert daemon.end() == 1
    assert f"error: {directory} was deleted while the daemon worked on it; start the daemon again" in daemon.log
