from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from compare import assert_exactly_once
from processes import drained
from producing import produce, produced

from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.warehouse.database import make_engine
from diode_store.warehouse.measurements import iter_measurements
from diode_store.warehouse.store import Store
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from processes import ForkServer

HOUR_NS = 3600 * 10**9


class Clock:
    """The time of day, as it may be set."""

    def __init__(self) -> None:
        self.now_ns = time.time_ns()

    def time_ns(self) -> int:
        """Return it; it goes on a little each time."""
        self.now_ns += 1000
        return self.now_ns


def test_a_clock_that_is_set_back_while_a_writer_writes(spool: Path, database_url: str) -> None:
    """A writer's later segments have earlier names, or the very same: every record is there, once, none overwritten."""
    clock = Clock()
    measurements = produce(1, range(120))
    with SpoolWriter(spool, time_ns=clock.time_ns) as writer:
        for number, measurement in enumerate(measurements):
            writer.append(measurement)
            if number % 10 == 9:
                writer.seal()
                clock.now_ns -= HOUR_NS if number % 20 == 9 else -HOUR_NS
    assert len(Spool(spool).sealed()) == 12
    with Store.open(database_url) as store:
        assert ingest_once(spool, store).measurements == 120
    assert_exactly_once(database_url, [m.uid for m in measurements], produced)


def test_records_go_in_by_the_names_of_their_segments(
    spool: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a segment the order is that of writing; between segments that of their names, whatever was first."""
    clock = Clock()
    later, earlier = produce(1, range(10)), produce(2, range(10))
    for measurements in (later, earlier):
        with SpoolWriter(spool, time_ns=clock.time_ns) as writer:
            for measurement in measurements:
                writer.append(measurement)
        clock.now_ns -= HOUR_NS
    monkeypatch.setattr("diode_collectors.ingest.batches.BATCH_TIMINGS", 1)
    with Store.open(database_url) as store:
        ingest_once(spool, store)
    engine = make_engine(database_url)
    assert [m.uid for m in iter_measurements(engine)] == [m.uid for m in (*earlier, *later)]
    engine.dispose()
    assert_exactly_once(database_url, [m.uid for m in (*earlier, *later)], produced)


def test_files_from_the_future_and_from_1970(processes: ForkServer, spool: Path, database_url: str) -> None:
    """Whatever times files bear, a daemon takes them at once, and the status makes no negative age of them."""
    for run, moment in enumerate((0, time.time() + 10 * 365 * 86400)):
        with SpoolWriter(spool) as writer:
            for measurement in produce(run, range(5)):
                writer.append(measurement)
        (newest,) = (path for path in Spool(spool).sealed() if path.stat().st_mtime > 1)
        os.utime(newest, (moment, moment))
        if run == 0:
            newest.rename(newest.with_name(f"{0:020d}-{newest.name.partition('-')[2]}"))
    assert (Spool(spool).status().oldest_s or 0) > 0
    daemon = processes.daemon(spool, database_url)
    eventually(lambda: drained(spool))
    assert daemon.end(signal.SIGTERM) == 0
    assert_exactly_once(database_url, [m.uid for run in (0, 1) for m in produce(run, range(5))], produced)
