from __future__ import annotations

import logging
import sqlite3
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from daemon_samples import fill, stored_in
from spool_samples import header_bytes, segment_bytes

from diode_collectors.ingest.daemon import Observer, backoff_s, run_daemon
from diode_collectors.ingest.monitoring import logs
from diode_collectors.ingest.monitoring.daemon_log import LogObserver
from diode_collectors.ingest.report import IngestProgress, IngestReport, Rejection
from diode_collectors.ingest.settings import DaemonSettings
from diode_collectors.spool.spool import Spool
from diode_store.errors import DatabaseError, DiodeError, NoWarehouseError, SchemaError, SpoolError
from diode_store.warehouse.database import make_engine
from diode_store.warehouse.store import Store
from diode_store.wire.segments import Reason
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

HASTY = DaemonSettings(poll_interval_s=0.01, backoff_first_s=0.02, backoff_most_s=0.05)


class Recorder(Observer):
    """Remembers what it is told; can be given something to do when a pass ends or fails."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.events: list[str] = []
        self.errors: list[DiodeError] = []
        self.reports: list[IngestReport] = []
        self.on_failure: Callable[[int], None] = lambda _failures: None

    def started(self, spools: Sequence[Path]) -> None:
        """Remember it."""
        self.events.append(f"started {spools[0].name}")

    def connected(self) -> None:
        """Remember it."""
        self.events.append("connected")

    def progressed(self, spool: Path, progress: IngestProgress) -> None:
        """Remember it once."""
        assert spool.name == "spool"
        if progress.report.measurements and "progressed" not in self.events:
            self.events.append("progressed")

    def passed(self, spool: Path, report: IngestReport, seconds: float) -> None:
        """Remember it, and stop once something was ingested."""
        assert (spool.name, seconds >= 0) == ("spool", True)
        self.reports.append(report)
        if report.measurements or report.rejected:
            self.events.append("passed")
            self.stop.set()

    def failed(self, spool: Path, error: DiodeError, retry_s: float) -> None:
        """Remember it."""
        assert spool.name == "spool"
        assert 0 < retry_s <= HASTY.backoff_most_s
        self.errors.append(error)
        self.on_failure(len(self.errors))

    def stopped(self) -> None:
        """Remember it."""
        self.events.append("stopped")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Return an observer that ends the daemon when something was ingested, or after a while."""
    stop = threading.Event()
    timer = threading.Timer(30, stop.set)
    timer.start()
    yield Recorder(stop)
    timer.cancel()
    timer.join()


def run(directory: Path, open_store: Callable[[], Store], recorder: Recorder) -> None:
    """Run the daemon until the recorder stops it."""
    run_daemon(replace(HASTY, spool=(directory,)), open_store, recorder.stop, observers=[recorder])


def test_observers_hear_everything(directory: Path, database_url: str, recorder: Recorder) -> None:
    """From the start to the end an observer is told what happens, in order."""
    fill(directory, range(3))
    run(directory, lambda: Store.open(database_url), recorder)
    assert recorder.events == ["started spool", "connected", "progressed", "passed", "stopped"]
    assert recorder.reports[-1] == IngestReport(segments=1, measurements=3, timings=6)


def test_what_comes_later_is_ingested(
    directory: Path, database_url: str, database_path: Path, recorder: Recorder
) -> None:
    """The daemon looks again and again, and takes what appears while it runs."""
    thread = threading.Thread(target=run, args=(directory, lambda: Store.open(database_url), recorder))
    thread.start()
    eventually(lambda: len(recorder.reports) > 3)
    fill(directory, range(2))
    thread.join()
    assert stored_in(database_path) == [0, 1]


def test_a_database_without_schema_is_told_at_once(directory: Path, tmp_path: Path, recorder: Recorder) -> None:
    """At the start, a warehouse that is not there is a mistake that waiting does not mend."""
    with pytest.raises(SchemaError, match="diode db upgrade"):
        run(directory, lambda: Store.open(str(tmp_path / "absent.db")), recorder)
    assert Spool(directory).lock_holder() is None


def test_a_file_that_is_no_database_is_told_at_once(directory: Path, tmp_path: Path, recorder: Recorder) -> None:
    """Nor does waiting turn a text into a database."""
    text = tmp_path / "text.db"
    text.write_text("a text that is longer than the header of a database\n" * 10)
    with pytest.raises(DatabaseError, match="not an SQLite database"):
        run(directory, lambda: Store.open(str(text)), recorder)
    assert recorder.errors == []


def test_a_database_that_cannot_be_reached_at_the_start_is_tried_again(
    directory: Path, database_path: Path, tmp_path: Path, recorder: Recorder
) -> None:
    """A database that comes up after the daemon is no reason to give up."""
    fill(directory, range(2))
    place = tmp_path / "later.db"
    place.mkdir()

    def come_up(failures: int) -> None:
        if failures == 2:
            place.rmdir()
            database_path.rename(place)

    recorder.on_failure = come_up
    run(directory, lambda: Store.open(str(place)), recorder)
    assert [type(error) for error in recorder.errors] == [DatabaseError, DatabaseError]
    assert stored_in(place) == [0, 1]


def test_a_database_that_goes_away_and_comes_back(directory: Path, database_path: Path, recorder: Recorder) -> None:
    """Locked, then gone, then back: the daemon recovers by itself, and every record is there once."""
    fill(directory, range(120))
    aside = database_path.with_name("aside.db")
    rival = sqlite3.connect(database_path, check_same_thread=False)
    rival.execute("BEGIN IMMEDIATE")

    def next_trouble(failures: int) -> None:
        if failures == 2:
            rival.rollback()
            rival.close()
            database_path.rename(aside)
        if failures == 4:
            aside.rename(database_path)

    def open_store() -> Store:
        Store.open(str(database_path)).close()
        return Store(make_engine(str(database_path), busy_timeout_s=0.05))

    recorder.on_failure = next_trouble
    run(directory, open_store, recorder)
    assert [type(error) for error in recorder.errors] == [DatabaseError] * 2 + [NoWarehouseError] * 2
    assert stored_in(database_path) == list(range(120))
    assert Spool(directory).sealed() == []


def test_a_spool_that_cannot_be_emptied_is_tried_again(
    directory: Path, database_url: str, database_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the spool, a full disk under the quarantine say, stops the daemon no more than the database does."""
    (directory / "a.seg").write_bytes(header_bytes(version=2))
    (directory / "b.seg").write_bytes(segment_bytes([1]))
    (directory / "quarantine").write_text("a file in the way")
    recorder.on_failure = lambda failures: (directory / "quarantine").unlink() if failures == 2 else None
    run(directory, lambda: Store.open(database_url), recorder)
    assert [type(error) for error in recorder.errors] == [SpoolError, SpoolError]
    assert stored_in(database_path) == [1]
    assert Spool(directory).status().quarantined == 1


def test_one_daemon_per_spool(directory: Path, database_url: str, recorder: Recorder) -> None:
    """A second daemon is refused before it opens anything."""
    with Spool(directory).lock(), pytest.raises(SpoolError, match=r"another diode-ingest \(pid \d+\)"):
        run(directory, lambda: Store.open(database_url), recorder)
    assert recorder.events == []


def test_backoff_doubles_up_to_its_limit() -> None:
    """Each failure in a row doubles the wait, half of it random, and it never overflows."""
    settings = DaemonSettings(backoff_first_s=1, backoff_most_s=60)
    for failures, longest in ((0, 1), (1, 2), (3, 8), (6, 60), (10_000, 60)):
        waits = {backoff_s(failures, settings) for _ in range(50)}
        assert longest / 2 <= min(waits) < max(waits) <= longest
        assert len(waits) > 1


# Logs


def line_of(event: str, **fields: object) -> str:
    """Return what an event is logged as, without the time."""
    record = logging.LogRecord("diode.x", logging.WARNING, "", 0, event, None, None)
    record.fields = fields
    line = logs.KeyValueFormatter().format(record)
    at, _, rest = line.partition(" ")
    assert at.startswith("at=20")
    assert at.endswith("+00:00")
    return rest


def test_a_log_line_is_one_line_of_pairs() -> None:
    """Values that would break the line or the pairs are quoted."""
    assert line_of("ingested", rows=3, seconds=0.12345) == "level=warning event=ingested rows=3 seconds=0.123"
    assert line_of("failed", error='a "b"\nc=d', none="") == (
        r'level=warning event=failed error="a \"b\"\nc=d" none=""'
    )


def test_a_logged_exception_stays_one_line() -> None:
    """A stack trace is a field like any other."""
    record = logging.LogRecord("diode.x", logging.ERROR, "", 0, "crashed", None, None)
    try:
        int("why")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = logs.KeyValueFormatter().format(record)
    assert "\n" not in line
    assert "ValueError: invalid literal" in line


def test_configure_logs_ours_only(capsys: pytest.CaptureFixture[str]) -> None:
    """Our logger writes to stderr from its level upwards; the root logger is not touched."""
    logger = logging.getLogger(logs.LOGGER_NAME)
    before = (logger.handlers[:], logger.level, logger.propagate, logging.getLogger().handlers[:])
    try:
        logs.configure("WARNING")
        logs.configure("WARNING")
        logs.log(logging.getLogger("diode.ingest"), logging.INFO, "quiet")
        logs.log(logging.getLogger("diode.ingest"), logging.WARNING, "loud", n=1)
        assert logging.getLogger().handlers == before[3]
    finally:
        logger.handlers, logger.level, logger.propagate = before[0], before[1], before[2]
        logger.setLevel(before[1])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("level=warning event=loud n=1")


def test_the_log_observer(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Each event is logged once with its numbers; idle passes and repeated complaints are not."""
    caplog.set_level(logging.INFO)
    observer = LogObserver()
    observer.started([tmp_path])
    observer.passed(tmp_path, IngestReport(), 0.1)
    rejection = Rejection("a.seg", 40, Reason.BAD_CRC, "damaged")
    for _ in range(2):
        observer.passed(tmp_path, IngestReport(unreadable=("b.seg: cannot be read",)), 0.1)
    observer.passed(
        tmp_path,
        IngestReport(segments=1, measurements=2, timings=9, rejected=1, rejections=(rejection,), torn_bytes=4),
        0.5,
    )
    observer.failed(tmp_path, DatabaseError("away"), 2.0)
    observer.stopped()
    logged = [(record.message, getattr(record, "fields", {})) for record in caplog.records]
    assert [event for event, _ in logged] == [
        "started",
        "unreadable",
        "ingested",
        "rejected",
        "cut_torn_tail",
        "failed",
        "stopped",
    ]
    by_event = dict(logged)
    assert by_event["ingested"] == {
        "segments": 1,
        "measurements": 2,
        "duplicates": 0,
        "timings": 9,
        "decisions": 0,
        "rejected": 1,
        "seconds": 0.5,
        "spool": tmp_path,
    }
    assert by_event["rejected"] == {
        "segment": "a.seg",
        "offset": 40,
        "reason": Reason.BAD_CRC,
        "message": "damaged",
        "spool": tmp_path,
    }
