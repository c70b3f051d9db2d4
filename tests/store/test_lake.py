"""The lake: what a sync copies, drops, repairs and leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from diode_store import analytics, lake_source, lake_sync, lake_tables, schema
from diode_store import lake as lake_module
from diode_store.errors import DatabaseError, LakeError, SchemaError
from diode_store.lake import Lake, lake_path
from diode_store.lake_sync import SyncReport, sync
from diode_store.records import Timing
from samples import EVERY_FIELD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import MakeMeasurement
    from diode_store.store import Store


@pytest.fixture
def lake(database_path: Path) -> Lake:
    """Return the lake of the empty warehouse."""
    return Lake(database_path.with_suffix(".lake"))


@pytest.fixture
def raw(database_path: Path) -> Iterator[sqlite3.Connection]:
    """Return a plain connection to the warehouse, for changes no store makes."""
    with closing(sqlite3.connect(database_path, isolation_level=None)) as connection:
        yield connection


def ask(lake: Lake, sql: str) -> list[tuple[Any, ...]]:
    """Query the lake as it is."""
    with closing(analytics.open_lake(lake)) as connection:
        return connection.execute(sql).fetchall()


def measurement_ids(lake: Lake) -> list[int]:
    """Return the ids of the measurements that the view shows."""
    return [number for (number,) in ask(lake, "SELECT DISTINCT measurement_id FROM observations ORDER BY 1")]


def did(report: SyncReport) -> tuple[int, int, int, str | None]:
    """Return what a sync added and dropped, and why it rebuilt."""
    return report.added, report.added_timings, report.dropped, report.rebuilt


def test_tables_are_those_of_the_schema() -> None:
    """Every column of the warehouse is copied, but for its own bookkeeping."""
    for table, columns in (lake_tables.FACTS | lake_tables.SNAPSHOTS).items():
        if table == lake_tables.MARKS:
            continue
        marked = set(lake_tables.SNAPSHOTS[lake_tables.MARKS]) - {"id"} if table == "measurements" else set()
        assert [c.name for c in schema.metadata.tables[table].columns if c.name not in marked] == list(columns)
    copied = {*lake_tables.FACTS, *lake_tables.SNAPSHOTS} - {lake_tables.MARKS}
    assert {*schema.metadata.tables} - copied == {"warehouse"}
    assert lake_tables.REVISION == schema.HEAD_REVISION
    assert lake_tables.VERSION_TABLE == schema.VERSION_TABLE


def test_sync_copies_and_then_has_nothing_to_do(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """The first sync copies everything, the second writes nothing at all."""
    store.write([make_measurement(1), make_measurement(2)])
    assert did(sync(database_url, lake)) == (2, 6, 0, None)
    before = {path.name: path.stat().st_mtime_ns for path in lake.path.iterdir()}
    report = sync(database_url, lake)
    assert did(report) == (0, 0, 0, None)
    assert (report.measurements, report.timings, report.segments) == (2, 6, 1)
    assert {path.name: path.stat().st_mtime_ns for path in lake.path.iterdir()} == before


def test_sync_takes_an_engine(store: Store, lake: Lake, make_measurement: MakeMeasurement) -> None:
    """Whoever has an engine need not know the URL."""
    store.write([make_measurement(1)])
    assert did(sync(store.engine, lake)) == (1, 3, 0, None)


def test_nothing_to_sync_is_cheap(database_url: str, store: Store, make_measurement: MakeMeasurement) -> None:
    """A query on a lake that is up to date loads neither SQLAlchemy nor Arrow nor NumPy."""
    store.write([make_measurement(1)])
    sync(database_url, Lake(lake_path(database_url)))
    code = (
        "import sys; from diode_store import analytics;"  # noqa: S608 - our own names
        f"con = analytics.connect({database_url!r});"
        "print(*analytics.run_query(con, 'SELECT count(*) FROM fastest_configs'));"
        "print(*sorted(set(sys.modules) & {'sqlalchemy', 'alembic', 'pyarrow', 'numpy', 'torch', 'rich'}))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout == "(1,)\n\n"


def test_a_committed_row_is_seen_at_once(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """``connect`` syncs before it answers."""
    counts = []
    for number in range(3):
        store.write([make_measurement(number)])
        with closing(analytics.connect(database_url)) as connection:
            counts += connection.execute("SELECT count(*) FROM observations").fetchall()
    assert counts == [(3,), (6,), (9,)]


def test_connect_tells_of_its_sync(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Whoever connects can say what was copied, and can leave the lake as it is."""
    store.write([make_measurement(1)])
    reports: list[SyncReport] = []
    analytics.connect(database_url, on_sync=reports.append).close()
    analytics.connect(database_url, sync=False, on_sync=reports.append).close()
    assert [did(report) for report in reports] == [(1, 3, 0, None)]


def test_every_column_arrives(store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement) -> None:
    """Numbers, texts, flags, times and JSON have in the lake the values they had in the record."""
    base = make_measurement(1)
    timing = Timing(base.timings[1].config, 9.5, is_estimate=True, repeats=7, p10_us=9.25, p90_us=9.75)
    hardware = replace(base.hardware, l2_bytes=62914560, max_clock_mhz=1980)
    fields = {**EVERY_FIELD, "hardware": hardware, "timings": (timing,), "superseded_by": None}
    store.write([replace(base, **fields)])
    sync(database_url, lake)
    columns = (
        "hardware, vendor, arch, multiprocessors, l2_bytes, max_clock_mhz, memory_bytes, torch, python, op, dtype, "
        "b, m, n, k, layout, inputs, scalars, template, block_m, num_warps, allow_tf32, use_fast_accum, kwargs, "
        "is_vendor, runtime_us, outcome, is_estimate, repeats, p10_us, p90_us, source, measured_at, is_replay, "
        "search_space, sample_seed, choice_policy, statistic, flush_l2, launch_hidden, sm_clock_mhz, memory_clock_mhz, "
        "temperature_c, throttle_reasons, foreign_processes, flags, dataset, licence, sweep_id, host, device_uuid, "
        "collector_version, measurement_uid"
    )
    [row] = ask(lake, f"SELECT {columns} FROM observations")  # noqa: S608 - our own names
    inputs = '[["bfloat16", [65, 128], [128, 1]], ["bfloat16", [128, 256], [256, 1]]]'
    assert row == (
        *("NVIDIA H200", "nvidia", "sm_90", 132, 62914560, 1980, None, "2.11.0+cu130", "3.12.3", "mm", "bfloat16"),
        *(1, 65, 256, 128, "nn", inputs, "[]", "triton::mm", 16, 4, False, None, "[]"),
        *(False, 9.5, "ok", True, 7, 9.25, 9.75, "sweep", datetime(2026, 11, 20, 12, 30), True),  # noqa: DTZ001 - UTC
        *("EXHAUSTIVE", 3, "hook:abc", "median", True, False, 1980, 2619),
        *(45, "none", 0, "throttled,hot", "d", "MIT", "s1", "gpu-7", "GPU-1"),
        *("0.2.0", "00000000000000000000000000000001"),
    )
    assert ask(lake, "SELECT extra FROM measurements") == [
        (r'{"note": "\u00e4", "list": [1, 2.5, null], "map": {"deep": null}}',)
    ]


def test_a_late_commit_with_a_lower_id_is_copied(
    store: Store, database_url: str, lake: Lake, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """Of two transactions the one with the lower id may commit last; a watermark would lose it."""
    store.write([make_measurement(1), make_measurement(2), make_measurement(3)])
    raw.execute("CREATE TEMP TABLE late AS SELECT * FROM measurements WHERE id = 2")
    raw.execute("CREATE TEMP TABLE late_timings AS SELECT * FROM timings WHERE measurement_id = 2")
    raw.execute("DELETE FROM measurements WHERE id = 2")
    raw.execute("DELETE FROM timings WHERE measurement_id = 2")
    sync(database_url, lake)
    assert measurement_ids(lake) == [1, 3]
    raw.execute("INSERT INTO measurements SELECT * FROM late")
    raw.execute("INSERT INTO timings SELECT * FROM late_timings")
    assert did(sync(database_url, lake)) == (1, 3, 0, None)
    assert measurement_ids(lake) == [1, 2, 3]


def test_a_deleted_measurement_leaves(
    store: Store, database_url: str, lake: Lake, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """What the warehouse no longer has, no view shows after the next sync; counts follow."""
    store.write([make_measurement(number) for number in range(4)])
    sync(database_url, lake)
    raw.execute("DELETE FROM measurements WHERE id = 2")
    raw.execute("DELETE FROM timings WHERE measurement_id = 2")
    report = sync(database_url, lake)
    assert did(report) == (0, 0, 1, None)
    assert (report.measurements, report.timings) == (3, 9)
    assert measurement_ids(lake) == [1, 3, 4]
    assert did(sync(database_url, lake)) == (0, 0, 0, None)
    raw.execute("DELETE FROM measurements")
    assert did(sync(database_url, lake)) == (0, 0, 3, None)
    assert measurement_ids(lake) == []


def test_an_id_that_was_used_again(
    store: Store, database_url: str, lake: Lake, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """After a backup was restored an id may stand for another measurement; its uid tells."""
    store.write([make_measurement(1), make_measurement(2)])
    sync(database_url, lake)
    raw.execute("UPDATE measurements SET uid = ? WHERE id = 2", (bytes(15) + b"\x09",))
    raw.execute("DELETE FROM timings WHERE measurement_id = 2 AND runtime_us IS NULL")
    assert did(sync(database_url, lake)) == (1, 2, 1, None)
    found = ask(lake, "SELECT measurement_uid[-1:], count(*) FROM observations GROUP BY ALL ORDER BY ALL")
    assert found == [("1", 3), ("9", 2)]


def test_a_superseded_measurement_leaves(
    store: Store, database_url: str, lake: Lake, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """It goes when it is marked, and comes back when the mark was a mistake; no timing is copied for that."""
    store.write([make_measurement(1), make_measurement(2)])
    sync(database_url, lake)
    raw.execute("UPDATE measurements SET superseded_by = ? WHERE id = 1", (bytes(16),))
    assert did(sync(database_url, lake)) == (0, 0, 0, None)
    assert measurement_ids(lake) == [2]
    raw.execute("UPDATE measurements SET superseded_by = NULL WHERE id = 1")
    sync(database_url, lake)
    assert measurement_ids(lake) == [1, 2]


def test_flags_that_are_set_later(
    store: Store, database_url: str, lake: Lake, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """A measurement that somebody flags after it was copied is no longer trusted."""
    store.write([make_measurement(1)])
    sync(database_url, lake)
    raw.execute("UPDATE measurements SET flags = 'throttled'")
    sync(database_url, lake)
    assert ask(lake, "SELECT DISTINCT flags FROM observations") == [("throttled",)]
    assert ask(lake, "SELECT count(*) FROM fastest_configs") == [(0,)]


def test_attributes_that_are_filled_in_later(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """A dimension whose row changed is copied again."""
    first = make_measurement(1)
    store.write([first])
    sync(database_url, lake)
    store.write([replace(make_measurement(2), hardware=replace(first.hardware, l2_bytes=1024))])
    sync(database_url, lake)
    assert ask(lake, "SELECT id, l2_bytes FROM hardware") == [(1, 1024)]


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
    assert report.segments == 4
    assert copied == [9, 9, 9, 3]
    manifest = lake.manifest()
    assert manifest is not None
    assert [segment.timing_count for segment in manifest.segments] == [9, 9, 9, 3]
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
    monkeypatch.setattr(lake_sync, "TOO_MANY_SMALL", 2)
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


def test_the_lake_of_another_warehouse_is_rebuilt(
    store: Store, database_url: str, database_path: Path, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """A database that was deleted and made again does not answer with the old one's timings, and says so."""
    store.write([make_measurement(1)])
    sync(database_url, lake)
    with closing(sqlite3.connect(database_path)) as other, other:
        other.execute("UPDATE warehouse SET uuid = 'another'")
        other.execute("DELETE FROM measurements")
        other.execute("DELETE FROM timings")
    assert did(sync(database_url, lake)) == (0, 0, 0, "it was the lake of another warehouse")
    assert measurement_ids(lake) == []


def remove_timings(lake: Lake) -> None:
    """Delete a segment's file."""
    next(lake.path.glob("*-timings.parquet")).unlink()


def cut_timings(lake: Lake) -> None:
    """Truncate a segment's file, as a full disk does."""
    path = next(lake.path.glob("*-timings.parquet"))
    os.truncate(path, path.stat().st_size - 10)


def break_manifest(lake: Lake) -> None:
    """Write no JSON into the manifest."""
    (lake.path / "manifest.json").write_text("{")


def empty_manifest(lake: Lake) -> None:
    """Write a manifest without its fields."""
    (lake.path / "manifest.json").write_text(json.dumps({"format": lake_module.FORMAT}))


def future_manifest(lake: Lake) -> None:
    """Write a manifest of a later format."""
    (lake.path / "manifest.json").write_text('{"format": 99}')


def other_revision(lake: Lake) -> None:
    """Let the manifest be from another schema revision."""
    path = lake.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "revision": "0000"}))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (remove_timings, "-timings.parquet is missing"),
        (cut_timings, " bytes and not "),
        (break_manifest, "manifest.json is damaged"),
        (empty_manifest, "manifest.json is damaged"),
        (future_manifest, "has format 99 and this torch-diode reads 1"),
        (other_revision, "it was made at schema revision 0000"),
    ],
)
def test_a_damaged_lake_is_rebuilt(
    store: Store,
    database_url: str,
    lake: Lake,
    make_measurement: MakeMeasurement,
    damage: Any,
    expected: str,
) -> None:
    """The lake is a copy: whatever happened to it, the next sync makes it whole again and says why."""
    store.write([make_measurement(1)])
    sync(database_url, lake)
    damage(lake)
    report = sync(database_url, lake)
    assert expected in (report.rebuilt or "")
    assert (report.added, measurement_ids(lake)) == (1, [1])
    assert did(sync(database_url, lake)) == (0, 0, 0, None)


@pytest.mark.parametrize("damage", [remove_timings, cut_timings, break_manifest, empty_manifest, future_manifest])
def test_a_damaged_lake_without_a_sync_is_an_error(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement, damage: Any
) -> None:
    """With --no-sync nothing can be repaired; one line names the file and the command that can."""
    store.write([make_measurement(1)])
    sync(database_url, lake)
    damage(lake)
    with pytest.raises(LakeError, match=r"run `diode sync( --rebuild)?`$") as raised:
        analytics.connect(database_url, sync=False)
    assert str(lake.path) in str(raised.value)


def test_a_rebuild_that_was_asked_for(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """Everything is copied anew beside the old files."""
    store.write([make_measurement(1)])
    sync(database_url, lake)
    assert did(sync(database_url, lake, rebuild=True)) == (1, 3, 0, "it was asked for")
    assert measurement_ids(lake) == [1]


def test_an_empty_lake_has_empty_views(database_url: str, tmp_path: Path) -> None:
    """Whether nothing was measured or nothing synced, views answer with no rows and typed columns."""
    for connection in (
        analytics.connect(database_url),
        analytics.connect(str(tmp_path / "nowhere.db"), sync=False),
    ):
        for view in analytics.VIEWS:
            assert connection.execute(f"SELECT * FROM {view}").fetchall() == []  # noqa: S608 - our own names
        types = dict(connection.execute("SELECT column_name, column_type FROM (DESCRIBE observations)").fetchall())
        assert types["runtime_us"] == "DOUBLE"
        assert types["measured_at"] == "TIMESTAMP"
        connection.close()


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
    """Files that no manifest ever named go once they are old, and their numbers are not used again."""
    store.write([make_measurement(1)])
    sync(database_url, lake)
    for name in ("000100-timings.parquet", "000101-timings.parquet.new"):
        (lake.path / name).write_bytes(b"half")
    os.utime(lake.path / "000100-timings.parquet", (0, 0))
    store.write([make_measurement(2)])
    sync(database_url, lake)
    assert not (lake.path / "000100-timings.parquet").exists()
    assert (lake.path / "000101-timings.parquet.new").exists()
    manifest = lake.manifest()
    assert manifest is not None
    assert manifest.next_number > 101


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


def test_the_lake_is_private(store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement) -> None:
    """Its folder is no more readable than the database it copies."""
    store.write([make_measurement(1)])
    sync(database_url, lake)
    assert lake.path.stat().st_mode & 0o777 == 0o700


def test_a_lake_that_cannot_be_written(database_url: str, tmp_path: Path) -> None:
    """The message names the folder and both ways out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeError, match=r"cannot be written .* set DIODE_LAKE .* --no-sync"):
        sync(database_url, Lake(tmp_path / "file" / "lake"))


def test_a_warehouse_that_is_not_there(tmp_path: Path) -> None:
    """Nothing is created for a mistyped name."""
    with pytest.raises(SchemaError, match="holds no warehouse yet; create it with `diode db upgrade`"):
        analytics.connect(str(tmp_path / "typo.db"))
    assert list(tmp_path.glob("typo*")) == []


def test_a_database_without_our_tables(tmp_path: Path) -> None:
    """Somebody else's database is told from an empty warehouse."""
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection, connection:
        connection.execute("CREATE TABLE things (id INTEGER)")
    with pytest.raises(SchemaError, match="diode db upgrade"):
        analytics.connect(str(tmp_path / "other.db"))


def test_a_database_of_another_revision(database_url: str, raw: sqlite3.Connection) -> None:
    """An older or newer schema is refused, with the command that helps."""
    raw.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0000'")  # noqa: S608 - our own names
    with pytest.raises(SchemaError, match="diode db upgrade"):
        analytics.connect(database_url)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """The driver's complaint becomes one line with the file's name."""
    (tmp_path / "junk.db").write_bytes(b"junk" * 1000)
    with pytest.raises(DatabaseError, match=r"junk\.db cannot be read: file is not a database"):
        analytics.connect(str(tmp_path / "junk.db"))


def test_a_warehouse_that_lost_its_uuid(database_url: str, raw: sqlite3.Connection) -> None:
    """Without it nobody could tell whose lake it is."""
    raw.execute("DELETE FROM warehouse")
    with pytest.raises(DatabaseError, match="lost its uuid"):
        analytics.connect(database_url)


def test_both_ways_to_read_agree(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """The reader for other databases sees what the reader for SQLite sees."""
    store.write([make_measurement(number) for number in range(3)])
    with lake_source.open_source(database_url) as source:
        expected = (lake_source.warehouse_uuid(source), lake_source.fingerprints(source))
    with store.engine.connect() as connection:
        other = lake_source._SqlAlchemySource(connection)
        with other.snapshot():
            assert (lake_source.warehouse_uuid(other), lake_source.fingerprints(other)) == expected


def test_where_a_lake_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside an SQLite file, in the data folder for a server, elsewhere if told so; no password gets into a name."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert lake_path("sqlite:////data/runs.db") == Path("/data/runs.lake")
    assert lake_path("runs.sqlite3") == Path("runs.lake")
    assert lake_path("sqlite:////data/runs.db", Path("/lake")) == Path("/lake")
    server = lake_path("postgresql://me:secret@db/warehouse")
    assert server.parent == tmp_path / "torch-diode"
    assert server == lake_path("postgresql://me:other@db/warehouse")
    assert server != lake_path("postgresql://me:secret@db/other")


def test_the_environment_chooses_the_lake(
    store: Store, database_url: str, tmp_path: Path, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DIODE_LAKE holds for whoever does not say otherwise."""
    store.write([make_measurement(1)])
    monkeypatch.setenv("DIODE_LAKE", str(tmp_path / "chosen"))
    analytics.connect(database_url).close()
    assert (tmp_path / "chosen" / "manifest.json").exists()
    assert not lake_path(database_url).exists()


def test_large_results_do_not_litter_the_working_directory(database_url: str) -> None:
    """What does not fit into memory goes to the system's temporary folder."""
    with closing(analytics.connect(database_url)) as connection:
        [(folder,)] = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    assert Path(folder) == Path(tempfile.gettempdir()) / f"diode-{os.getpid()}"


def test_a_name_with_quotes_and_spaces(
    store: Store, database_path: Path, tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    """Paths are quoted wherever they meet SQL or a URI."""
    store.write([make_measurement(1)])
    store.close()
    folder = tmp_path / "it's 100% a=b?"
    folder.mkdir()
    moved = shutil.copy(database_path, folder / "ware house#1.db")
    with closing(analytics.connect(str(moved))) as connection:
        assert connection.execute("SELECT count(*) FROM observations").fetchall() == [(3,)]
