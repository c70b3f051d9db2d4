"""The lake's files: how large, how many, how long they stay, and who may write them."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from lake_reading import ask, measurement_ids

from diode_store.errors import LakeError
from diode_store.lake import compact as lake_compact
from diode_store.lake import lake as lake_module
from diode_store.lake import sync as lake_sync
from diode_store.lake.sync import SyncReport, sync
from diode_store.query import analytics

if TYPE_CHECKING:
    import sqlite3

    from conftest import MakeMeasurement
    from diode_store.lake.lake import Lake
    from diode_store.warehouse.store import Store


def test_large_syncs_are_cut_between_measurements(
    store: Store,
    database_url: str,
    lake: Lake,
    make_measurement: MakeMeasurement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Segments stay near their size, and each measurement is whole in one of them."""
    monkeypatch.setattr(lake_sync, "TIMINGS_PER_SEGMENT", 7)
    store.write([make_measurement(number) for number in range(10)])
    copied: list[float] = []
    report = sync(database_url, lake, on_progress=copied.append)
    assert report.segments == len(copied) > 2
    assert sum(copied) == 30
    assert max(copied) <= 14
    manifest = lake.manifest()
    assert manifest is not None
    assert sorted(segment.timing_count for segment in manifest.segments) == sorted(copied)
    assert ask(lake, "SELECT measurement_id, count(*) FROM timings GROUP BY 1 ORDER BY 1") == [
        (number, 3) for number in range(1, 11)
    ]


def test_small_segments_are_merged(
    store: Store,
    database_url: str,
    lake: Lake,
    raw: sqlite3.Connection,
    make_measurement: MakeMeasurement,
) -> None:
    """Many small syncs leave few files, and what was dropped is really gone from the merged one."""
    for number in range(7):
        store.write([make_measurement(number)])
        assert sync(database_url, lake).segments == number + 1
    raw.execute("DELETE FROM measurements WHERE id = 3")
    assert sync(database_url, lake).segments == 6
    for number in range(7, 9):
        store.write([make_measurement(number)])
        report = sync(database_url, lake)
    assert (report.merged, report.segments, report.measurements, report.timings) == (8, 1, 8, 24)
    manifest = lake.manifest()
    assert manifest is not None
    assert manifest.segments[0].dropped == ()
    assert measurement_ids(lake) == [1, 2, 4, 5, 6, 7, 8, 9]


def test_merging_honours_what_was_dropped_inside_a_segment(
    store: Store,
    database_url: str,
    lake: Lake,
    raw: sqlite3.Connection,
    make_measurement: MakeMeasurement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A segment of which a part was dropped brings only the rest into the merged one."""
    monkeypatch.setattr(lake_compact, "TOO_MANY_SMALL", 2)
    store.write([make_measurement(number) for number in range(3)])
    sync(database_url, lake)
    raw.execute("DELETE FROM measurements WHERE id = 2")
    sync(database_url, lake)
    manifest = lake.manifest()
    assert manifest is not None
    assert manifest.segments[0].dropped == (2,)
    store.write([make_measurement(4)])
    assert sync(database_url, lake).merged == 2
    assert ask(lake, "SELECT measurement_id, count(*) FROM timings GROUP BY 1 ORDER BY 1") == [(1, 3), (3, 3), (4, 3)]


def test_readers_keep_what_they_opened(
    store: Store, database_url: str, lake: Lake, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """A connection opened before a sync goes on reading its own state, though the sync replaced files."""
    store.write([make_measurement(1)])
    with closing(analytics.connect(database_url)) as before:
        raw.execute("DELETE FROM measurements")
        store.write([make_measurement(2), make_measurement(3)])
        sync(database_url, lake)
        assert before.execute("SELECT DISTINCT measurement_id FROM observations").fetchall() == [(1,)]
    assert measurement_ids(lake) == [2, 3]


def test_retired_files_go_when_nobody_can_hold_them(
    store: Store,
    database_url: str,
    lake: Lake,
    raw: sqlite3.Connection,
    make_measurement: MakeMeasurement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replaced files stay for a while, then the next sync deletes them, even one with nothing to copy."""
    store.write([make_measurement(1)])
    sync(database_url, lake)
    old = {path.name for path in lake.path.glob("*-timings.parquet")}
    raw.execute("DELETE FROM measurements")
    sync(database_url, lake)
    assert {path.name for path in lake.path.glob("*-timings.parquet")} == old
    monkeypatch.setattr(lake_module, "RETIREMENT_S", 0.0)
    sync(database_url, lake)
    assert list(lake.path.glob("*-timings.parquet")) == []
    manifest = lake.manifest()
    assert manifest is not None
    assert {path.name for path in lake.path.glob("*.parquet")} == manifest.files()


def test_remains_of_a_killed_sync_are_swept(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """Files that no manifest ever named go once they are old."""
    store.write([make_measurement(1)])
    sync(database_url, lake)
    for name in ("000100-timings.parquet", "000101-timings.parquet.new"):
        (lake.path / name).write_bytes(b"half")
    os.utime(lake.path / "000100-timings.parquet", (0, 0))
    store.write([make_measurement(2)])
    sync(database_url, lake)
    assert not (lake.path / "000100-timings.parquet").exists()
    assert (lake.path / "000101-timings.parquet.new").exists()


def test_syncs_that_collide_wait_for_each_other(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """Four at once copy everything exactly once."""
    store.write([make_measurement(number) for number in range(50)])
    reports: list[SyncReport] = []
    threads = [threading.Thread(target=lambda: reports.append(sync(database_url, lake))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.added for report in reports) == [0, 0, 0, 50]
    assert ask(lake, "SELECT count(*), count(DISTINCT measurement_id) FROM timings") == [(150, 50)]


def test_a_lock_that_is_never_given_back(lake: Lake) -> None:
    """Waiting ends, and the message says what is in the way."""
    with lake.lock(), pytest.raises(LakeError, match=r"another sync of .* has been running"), lake.lock(timeout_s=0.1):
        pass


def test_sync_while_measurements_arrive(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """Readers see whole measurements only, whenever they look."""
    done = threading.Event()

    def write() -> None:
        for number in range(100):
            store.write([make_measurement(number)])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    halves = []
    while not done.is_set():
        sync(database_url, lake)
        halves += ask(lake, "SELECT measurement_id FROM timings GROUP BY 1 HAVING count(*) <> 3")
    writer.join()
    assert halves == []
    sync(database_url, lake)
    assert len(measurement_ids(lake)) == 100
