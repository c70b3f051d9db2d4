from __future__ import annotations

import os
import signal
import statistics
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest
from daemon_process import ANY_PORT, Daemon
from daemon_samples import PROGRAM, fill, stored_in
from spool_samples import sample, segment_bytes

from diode_collectors.ingest import daemon as daemon_module
from diode_collectors.ingest.daemon import Observer, run_daemon
from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.ingest.settings import DaemonSettings
from diode_collectors.spool.backlog import Backlog
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.warehouse.store import Store
from lanes import long
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from diode_collectors.ingest.report import IngestReport


# Several spools


def test_one_daemon_empties_several_spools(tmp_path: Path, database_path: Path) -> None:
    """Each has its lock and its figures."""
    first, second = tmp_path / "first", tmp_path / "second"
    fill(first, range(3))
    with Daemon(first, database_path, "--spool", second, *ANY_PORT) as daemon:
        eventually(lambda: stored_in(database_path) == [0, 1, 2])
        fill(second, range(10, 14))
        eventually(lambda: stored_in(database_path) == [0, 1, 2, 10, 11, 12, 13])
        assert [Spool(path).lock_holder() for path in (first, second)] == [daemon.process.pid] * 2
        rows = "diode_ingest_rows_ingested_total"
        eventually(lambda: daemon.metrics()[f'{rows}{{spool="{second}",table="measurements"}}'] == 4)
        assert daemon.metrics()[f'{rows}{{spool="{first}",table="measurements"}}'] == 3
        other = subprocess.run(
            [PROGRAM, "run", "--spool", tmp_path / "third", "--spool", second, "--database", database_path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert other.returncode == 1
        assert f"error: {second}: another diode-ingest (pid {daemon.process.pid})" in other.stderr
        assert Spool(tmp_path / "third").lock_holder() is None
        assert daemon.end(signal.SIGTERM) == 0


def test_a_spool_that_fails_does_not_hold_up_another(tmp_path: Path, database_path: Path) -> None:
    """Its own pauses grow; the other one's records go in at once."""
    bad, good = tmp_path / "bad", tmp_path / "good"
    bad.mkdir()
    (bad / "a.seg").write_bytes(segment_bytes([1])[:-30])
    (bad / "quarantine").write_text("a file in the way")
    with Daemon(bad, database_path, "--spool", good, "--backoff-first", 30, *ANY_PORT) as daemon:
        daemon.wait_for("event=failed")
        fill(good, range(3))
        eventually(lambda: stored_in(database_path) == [0, 1, 2])
        assert str(bad) in daemon.get("/readyz")[1]
        assert daemon.end(signal.SIGTERM) == 0


def test_a_long_backlog_leaves_others_their_turn(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spool that takes long is left after its turn, and gone on with after the others."""
    monkeypatch.setattr(daemon_module, "TURN_S", 0.0)
    spools = [tmp_path / "long", tmp_path / "short"]
    fill(spools[0], range(1000))
    fill(spools[1], range(1000, 1010))
    stop = threading.Event()
    order: list[str] = []

    class Recorder(Observer):
        def passed(self, spool: Path, report: IngestReport, seconds: float) -> None:
            """Remember whose turn it was, and whether it was cut short."""
            assert seconds >= 0
            order.append(f"{spool.name} {'cut' if report.stopped else 'done'}")
            if not any(Spool(each).sealed() for each in spools):
                stop.set()

    settings = DaemonSettings(database=database_url, spool=tuple(spools))
    run_daemon(settings, lambda: Store.open(database_url), stop, observers=[Recorder()])
    assert order[:3] == ["long cut", "short done", "long cut"]
    assert order[-1] == "long done"


# Quick and cheap


def test_what_comes_is_stored_long_before_the_next_poll(directory: Path, database_path: Path) -> None:
    """The folder is watched: with a minute from poll to poll a sealed segment is in the warehouse within moments."""
    with Daemon(directory, database_path, "--poll-interval", 60) as daemon:
        daemon.wait_for("event=connected")
        time.sleep(0.5)
        waits = []
        for number in range(5):
            begin = time.monotonic()
            fill(directory, range(number, number + 1))
            eventually(lambda number=number: len(stored_in(database_path)) == number + 1)  # type: ignore[misc]
            waits.append(time.monotonic() - begin)
        assert daemon.end(signal.SIGTERM) == 0
    assert statistics.median(waits) < 5


def test_a_daemon_loads_nothing_it_does_not_need(directory: Path, database_path: Path) -> None:
    """After a batch and a rejection none of the heavy libraries is in the process, and its memory is small."""
    code = (
        "import os, pathlib, signal, sys, threading, time\n"
        "def watch():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, {15})\n"
        "    directory = pathlib.Path(sys.argv[3])\n"
        "    while any(directory.glob('*.seg')): time.sleep(0.05)\n"
        "    print(*sorted({'alembic','pyarrow','duckdb','torch','rich','numpy','pandas'} & set(sys.modules)))\n"
        "    status = pathlib.Path('/proc/self/status').read_text()\n"
        "    print(*[line.split()[1] for line in status.splitlines() if line.startswith('VmRSS')], flush=True)\n"
        "    os.kill(os.getpid(), 15)\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        "from diode_collectors.ingest.commands.ingest import main\n"
        "main(sys.argv[1:])\n"
    )
    fill(directory, range(100))
    (directory / "z.seg").write_bytes(segment_bytes([1])[:-30])
    python = PROGRAM.with_name("python")
    command = [python, "-c", code, "run", "--spool", directory, "--database", database_path, *ANY_PORT]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded, resident_kib = finished.stdout.split("\n")[:2]
    assert loaded == ""
    assert int(resident_kib) < 120 * 1024


@long
def test_a_daemon_at_rest_costs_next_to_nothing(directory: Path, database_path: Path) -> None:
    """Less than a hundredth of a core over some seconds, with everything served."""
    with Daemon(directory, database_path, *ANY_PORT, "--poll-interval", 1) as daemon:
        eventually(lambda: daemon.get("/readyz")[0] == 200)
        time.sleep(1)
        before, begin = _cpu_s(daemon.process.pid), time.monotonic()
        time.sleep(6)
        share = (_cpu_s(daemon.process.pid) - before) / (time.monotonic() - begin)
        assert daemon.end(signal.SIGTERM) == 0
    assert share <= 0.01


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123 - no path but a name
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The time of day


def test_a_clock_that_is_set_back_loses_and_doubles_nothing(directory: Path, store: Store) -> None:
    """Segments named by a clock that jumps about, or stands still, all arrive once."""
    times = iter([5_000_000_000, 4_000_000_000, 4_000_000_000, 0, 9_000_000_000, 1])
    with SpoolWriter(directory, time_ns=lambda: next(times)) as writer:
        for number in range(6):
            writer.append(sample(number))
            writer.seal()
    assert len(Spool(directory).sealed()) == 6
    report = ingest_once(directory, store)
    assert (report.measurements, report.duplicates, report.segments) == (6, 0, 6)


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_the_age_of_what_waits_does_not_jump_with_the_clock(directory: Path, jump_s: float) -> None:
    """Setting the time of day makes no false alarm and hides no true one."""
    fill(directory, range(2))
    (segment,) = Spool(directory).sealed()
    wall, clock = segment.stat().st_mtime + 10, 500.0
    backlog = Backlog(directory, clock=lambda: clock, time_of_day=lambda: wall)
    assert backlog.look().oldest_s == pytest.approx(10)
    wall, clock = wall + jump_s, clock + 5
    assert backlog.look().oldest_s == pytest.approx(15)
    segment.unlink()
    assert backlog.look().oldest_s == 0


def test_a_segment_from_the_future_is_of_no_age(directory: Path) -> None:
    """Written by a clock that runs ahead, it counts from when it is first seen."""
    fill(directory, range(2))
    (segment,) = Spool(directory).sealed()
    clock = 500.0
    backlog = Backlog(directory, clock=lambda: clock, time_of_day=lambda: segment.stat().st_mtime - 900)
    assert backlog.look().oldest_s == 0
    clock = 507.0
    assert backlog.look().oldest_s == 7
