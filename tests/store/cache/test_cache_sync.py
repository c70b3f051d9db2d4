"""What a sync copies to the cache, and what it drops."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from cache_reading import ask, did, measurement_ids

from diode_store.cache import layout as cache_layout
from diode_store.cache.cache import Cache, cache_path
from diode_store.cache.sync import SyncReport, sync
from diode_store.query import analytics
from diode_store.records import Timing
from diode_store.warehouse import schema
from samples import EVERY_FIELD

if TYPE_CHECKING:
    import sqlite3

    from conftest import MakeMeasurement
    from diode_store.warehouse.store import Store


def test_tables_are_those_of_the_schema() -> None:
    """Every column of the warehouse is copied, but for its own bookkeeping."""
    for table, columns in (cache_layout.FACTS | cache_layout.SNAPSHOTS).items():
        if table == cache_layout.MARKS:
            continue
        marked = set(cache_layout.SNAPSHOTS[cache_layout.MARKS]) - {"id"} if table == "measurements" else set()
        assert [c.name for c in schema.metadata.tables[table].columns if c.name not in marked] == list(columns)
    copied = {*cache_layout.FACTS, *cache_layout.SNAPSHOTS} - {cache_layout.MARKS}
    assert {*schema.metadata.tables} - copied == {"warehouse", "tombstones"}
    assert cache_layout.REVISION == schema.HEAD_REVISION
    assert cache_layout.VERSION_TABLE == schema.VERSION_TABLE


def test_sync_copies_and_then_has_nothing_to_do(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement
) -> None:
    """The first sync copies everything, the second writes nothing at all."""
    store.write([make_measurement(1), make_measurement(2)])
    assert did(sync(database_url, cache)) == (2, 6, 0, None)
    before = {path.name: path.stat().st_mtime_ns for path in cache.path.iterdir()}
    report = sync(database_url, cache)
    assert did(report) == (0, 0, 0, None)
    assert (report.measurements, report.timings, report.has_new_base) == (2, 6, False)
    after = {path.name: path.stat().st_mtime_ns for path in cache.path.iterdir() if path.name != "checked.json"}
    assert after == before


def test_sync_takes_an_engine(store: Store, cache: Cache, make_measurement: MakeMeasurement) -> None:
    """Whoever has an engine need not know the URL."""
    store.write([make_measurement(1)])
    assert did(sync(store.engine, cache)) == (1, 3, 0, None)


def test_nothing_to_sync_is_cheap(database_url: str, store: Store, make_measurement: MakeMeasurement) -> None:
    """A query on a cache that is up to date loads neither SQLAlchemy nor Arrow nor NumPy."""
    store.write([make_measurement(1)])
    sync(database_url, Cache(cache_path(database_url)))
    code = (
        "import sys; from diode_store.query import analytics, results;"  # noqa: S608 - our own names
        f"con = analytics.connect({database_url!r});"
        "print(*results.run_query(con, 'SELECT count(*) FROM fastest_configs'));"
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
    """Whoever connects can say what was copied, and can leave the cache as it is."""
    store.write([make_measurement(1)])
    reports: list[SyncReport] = []
    analytics.connect(database_url, on_sync=reports.append).close()
    analytics.connect(database_url, sync=False, on_sync=reports.append).close()
    assert [did(report) for report in reports] == [(1, 3, 0, None)]


def test_every_column_arrives(store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement) -> None:
    """Numbers, texts, flags, times and JSON have in the cache the values they had in the record."""
    base = make_measurement(1)
    timing = Timing(base.timings[1].config, 9.5, is_estimate=True, repeats=7, p10_us=9.25, p90_us=9.75)
    hardware = replace(base.hardware, l2_bytes=62914560, max_clock_mhz=1980)
    fields = {**EVERY_FIELD, "hardware": hardware, "timings": (timing,), "superseded_by": None, "metrics": ()}
    store.write([replace(base, **fields)])
    sync(database_url, cache)
    columns = (
        "hardware, vendor, arch, multiprocessors, l2_bytes, max_clock_mhz, memory_bytes, torch, python, op, dtype, "
        "b, m, n, k, layout, inputs, scalars, template, block_m, num_warps, allow_tf32, use_fast_accum, kwargs, "
        "is_vendor, runtime_us, outcome, is_estimate, repeats, p10_us, p90_us, source, measured_at, is_replay, "
        "search_space, sample_seed, choice_policy, statistic, flush_l2, launch_hidden, regime, sm_clock_mhz, "
        "memory_clock_mhz, temperature_c, throttle_reasons, foreign_processes, flags, family, dataset, licence, "
        "sweep_id, host, device_uuid, collector_version, measurement_uid"
    )
    [row] = ask(cache, f"SELECT {columns} FROM observations")  # noqa: S608 - our own names
    inputs = '[["bfloat16", [65, 128], [128, 1]], ["bfloat16", [128, 256], [256, 1]]]'
    assert row == (
        *("NVIDIA H200", "nvidia", "sm_90", 132, 62914560, 1980, None, "2.11.0+cu130", "3.12.3", "mm", "bfloat16"),
        *(1, 65, 256, 128, "nn", inputs, "[]", "triton::mm", 16, 4, False, None, "[]"),
        *(False, 9.5, "ok", True, 7, 9.25, 9.75, "sweep", datetime(2026, 11, 20, 12, 30), True),  # noqa: DTZ001 - UTC
        *("EXHAUSTIVE", 3, "hook:abc", "median", True, False, "read_flush", 1980, 2619),
        *(45, "none", 0, "throttled,hot", "llama3-8b", "d", "MIT", "s1", "gpu-7", "GPU-1"),
        *("0.2.0", "00000000000000000000000000000001"),
    )
    assert ask(cache, "SELECT extra FROM measurements") == [
        (r'{"note": "\u00e4", "list": [1, 2.5, null], "map": {"deep": null}}',)
    ]


def test_a_late_commit_with_a_lower_id_is_copied(
    store: Store, database_url: str, cache: Cache, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """Of two transactions the one with the lower id may commit last; a watermark would lose it."""
    store.write([make_measurement(1), make_measurement(2), make_measurement(3)])
    raw.execute("CREATE TEMP TABLE late AS SELECT * FROM measurements WHERE id = 2")
    raw.execute("CREATE TEMP TABLE late_timings AS SELECT * FROM timings WHERE measurement_id = 2")
    raw.execute("DELETE FROM measurements WHERE id = 2")
    raw.execute("DELETE FROM timings WHERE measurement_id = 2")
    sync(database_url, cache)
    assert measurement_ids(cache) == [1, 3]
    raw.execute("INSERT INTO measurements SELECT * FROM late")
    raw.execute("INSERT INTO timings SELECT * FROM late_timings")
    assert did(sync(database_url, cache)) == (1, 3, 0, None)
    assert measurement_ids(cache) == [1, 2, 3]


def test_a_deleted_measurement_leaves(
    store: Store, database_url: str, cache: Cache, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """What the warehouse no longer has, no view shows after the next sync; counts follow."""
    store.write([make_measurement(number) for number in range(4)])
    sync(database_url, cache)
    raw.execute("DELETE FROM measurements WHERE id = 2")
    raw.execute("DELETE FROM timings WHERE measurement_id = 2")
    report = sync(database_url, cache)
    assert did(report) == (0, 0, 1, None)
    assert (report.measurements, report.timings) == (3, 9)
    assert measurement_ids(cache) == [1, 3, 4]
    assert did(sync(database_url, cache)) == (0, 0, 0, None)
    raw.execute("DELETE FROM measurements")
    assert did(sync(database_url, cache)) == (0, 0, 3, None)
    assert measurement_ids(cache) == []


def test_an_id_that_was_used_again(
    store: Store, database_url: str, cache: Cache, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """After a backup was restored an id may stand for another measurement; its uid tells."""
    store.write([make_measurement(1), make_measurement(2)])
    sync(database_url, cache)
    raw.execute("UPDATE measurements SET uid = ? WHERE id = 2", (bytes(15) + b"\x09",))
    raw.execute("DELETE FROM timings WHERE measurement_id = 2 AND runtime_us IS NULL")
    assert did(sync(database_url, cache)) == (1, 2, 1, None)
    found = ask(cache, "SELECT measurement_uid[-1:], count(*) FROM observations GROUP BY ALL ORDER BY ALL")
    assert found == [("1", 3), ("9", 2)]


def test_a_superseded_measurement_leaves(
    store: Store, database_url: str, cache: Cache, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """It goes when it is marked, and comes back when the mark was a mistake; no timing is copied for that."""
    store.write([make_measurement(1), make_measurement(2)])
    sync(database_url, cache)
    raw.execute("UPDATE measurements SET superseded_by = ? WHERE id = 1", (bytes(16),))
    assert did(sync(database_url, cache)) == (0, 0, 0, None)
    assert measurement_ids(cache) == [2]
    raw.execute("UPDATE measurements SET superseded_by = NULL WHERE id = 1")
    sync(database_url, cache)
    assert measurement_ids(cache) == [1, 2]


def test_flags_that_are_set_later(
    store: Store, database_url: str, cache: Cache, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """A measurement that somebody flags after it was copied is no longer trusted."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    raw.execute("UPDATE measurements SET flags = 'throttled'")
    sync(database_url, cache)
    assert ask(cache, "SELECT DISTINCT flags FROM observations") == [("throttled",)]
    assert ask(cache, "SELECT count(*) FROM fastest_configs") == [(0,)]


def test_attributes_that_are_filled_in_later(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement
) -> None:
    """A dimension whose row changed is copied again."""
    first = make_measurement(1)
    store.write([first])
    sync(database_url, cache)
    store.write([replace(make_measurement(2), hardware=replace(first.hardware, l2_bytes=1024))])
    sync(database_url, cache)
    assert ask(cache, "SELECT id, l2_bytes FROM hardware") == [(1, 1024)]
