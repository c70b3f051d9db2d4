"""`diode lake`: few large segments of many small ones, and a look at what there is."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from lake_reading import ask, did, measurement_ids

from diode_store.command_line.console import run
from diode_store.commands.lake import app
from diode_store.errors import LakeError
from diode_store.lake import lake as lake_module
from diode_store.lake.compact import MOST_DROPPED, compact
from diode_store.lake.status import lake_status
from diode_store.lake.sync import sync
from diode_store.query import analytics

if TYPE_CHECKING:
    import sqlite3

    from conftest import MakeMeasurement
    from diode_store.lake.lake import Lake
    from diode_store.warehouse.store import Store

_COUNTS = "SELECT measurement_id, count(*) FROM timings GROUP BY 1 ORDER BY 1"


@pytest.fixture
def in_parts(
    store: Store, database_url: str, lake: Lake, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> Lake:
    """Return a lake of five segments with one measurement dropped from each of two."""
    for number in range(5):
        store.write([make_measurement(2 * number), make_measurement(2 * number + 1)])
        sync(database_url, lake)
    raw.execute("DELETE FROM measurements WHERE id IN (2, 9)")
    sync(database_url, lake)
    return lake


def run_lake(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Run ``diode lake ARGS...`` and return its status and what it printed."""
    with pytest.raises(SystemExit) as ended:
        run(app, args, name="diode lake")
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_compaction_leaves_one_segment(in_parts: Lake, database_url: str) -> None:
    """Readers see what they saw; the files hold no more than that, and the next sync has nothing to do."""
    before = ask(in_parts, "SELECT * FROM observations ORDER BY ALL")
    done = compact(in_parts)
    assert (done.segments_before, done.segments_after, done.rewritten, done.dropped) == (5, 1, 5, 2)
    assert done.timings == 24
    assert done.bytes_after < done.bytes_before
    manifest = in_parts.manifest()
    assert manifest is not None
    [segment] = manifest.segments
    assert (segment.measurement_count, segment.timing_count, segment.dropped) == (8, 24, ())
    assert (segment.first_id, segment.last_id) == (1, 10)
    assert ask(in_parts, "SELECT * FROM observations ORDER BY ALL") == before
    assert did(sync(database_url, in_parts)) == (0, 0, 0, None)


def test_a_sync_after_a_compaction_still_finds_what_went(
    in_parts: Lake, store: Store, database_url: str, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """A merged segment spans many ids; deletions in it and new ones beside it are found."""
    compact(in_parts)
    raw.execute("DELETE FROM measurements WHERE id = 5")
    store.write([make_measurement(50)])
    assert did(sync(database_url, in_parts)) == (1, 3, 1, None)
    assert measurement_ids(in_parts) == [1, 3, 4, 6, 7, 8, 10, 11]


def test_a_dry_run_changes_nothing(in_parts: Lake) -> None:
    """It says what would be done."""
    before = {path.name: path.stat().st_mtime_ns for path in in_parts.path.iterdir()}
    done = compact(in_parts, dry_run=True)
    assert (done.segments_before, done.segments_after, done.dropped, done.files_deleted) == (5, 1, 2, 0)
    assert {path.name: path.stat().st_mtime_ns for path in in_parts.path.iterdir()} == before


def test_full_segments_are_left_alone(in_parts: Lake) -> None:
    """Only what is smaller than a segment should be, or holds dropped measurements, is rewritten."""
    assert compact(in_parts, most_timings=6).rewritten == 2
    assert compact(in_parts, most_timings=6).rewritten == 0
    assert ask(in_parts, _COUNTS) == [(number, 3) for number in (1, 3, 4, 5, 6, 7, 8, 10)]


def test_readers_keep_what_they_opened_during_a_compaction(in_parts: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was there before reads on, however long after; then its files go."""
    monkeypatch.setattr(lake_module, "RETIREMENT_S", 0.0)
    with closing(analytics.open_lake(in_parts)) as before:
        expected = before.execute(_COUNTS).fetchall()
        compact(in_parts)
        for _ in range(3):
            compact(in_parts)
        assert before.execute(_COUNTS).fetchall() == expected
        assert len(list(in_parts.path.glob("*-timings.parquet"))) == 6
    del before
    assert compact(in_parts).files_deleted == 10
    manifest = in_parts.manifest()
    assert manifest is not None
    assert {path.name for path in in_parts.path.glob("*.parquet")} == manifest.files()
    assert manifest.retired == {}


def test_a_sync_rewrites_a_segment_with_many_dropped(
    store: Store, database_url: str, lake: Lake, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """After a large prune queries need not look every timing up in a long list."""
    store.write([make_measurement(number) for number in range(MOST_DROPPED + 10)])
    sync(database_url, lake)
    raw.execute("DELETE FROM measurements WHERE id > 5")
    assert did(sync(database_url, lake)) == (0, 0, MOST_DROPPED + 5, None)
    manifest = lake.manifest()
    assert manifest is not None
    assert [(s.measurement_count, s.timing_count, s.dropped) for s in manifest.segments] == [(5, 15, ())]
    assert measurement_ids(lake) == [1, 2, 3, 4, 5]


def test_compacting_where_there_is_no_lake(lake: Lake) -> None:
    """The message says what makes one; nothing is created."""
    with pytest.raises(LakeError, match=r"holds no lake; run `diode sync`"):
        compact(lake)
    assert not lake.path.exists()


def test_compacting_a_damaged_lake(in_parts: Lake) -> None:
    """It is left for a sync to mend."""
    next(in_parts.path.glob("*-timings.parquet")).unlink()
    with pytest.raises(LakeError, match=r"-timings.parquet is missing; run `diode sync`"):
        compact(in_parts)


def test_status(in_parts: Lake) -> None:
    """Counts, sizes and what is kept for whom."""
    with closing(analytics.open_lake(in_parts)):
        found = lake_status(in_parts)
    assert (found.measurements, found.timings, found.dropped) == (8, 24, 2)
    assert (found.segments, found.small_segments, found.format) == (5, 5, lake_module.FORMAT)
    assert found.generations_read == (found.generation,)
    assert found.damage is None
    manifest = in_parts.manifest()
    assert manifest is not None
    assert found.bytes == sum((in_parts.path / name).stat().st_size for name in manifest.files())
    assert found.retired_files == len(manifest.retired) > 0


@pytest.mark.usefixtures("default_database")
def test_the_commands(in_parts: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """``diode lake status`` and ``compact`` for people and for scripts."""
    code, out, _ = run_lake(capsys, "status", "--json")
    assert (code, json.loads(out)["segments"]) == (0, 5)
    code, out, _ = run_lake(capsys, "status")
    assert code == 0
    assert "damage            none" in out
    code, out, _ = run_lake(capsys, "compact", "--dry-run")
    assert out.startswith(f"{in_parts}: 5 segments would be rewritten (5 -> 1), 24 timings, 2 dropped measurements")
    code, out, _ = run_lake(capsys, "compact", "--json")
    assert (json.loads(out)["segments_after"], json.loads(out)["dry_run"]) == (1, False)
    code, out, _ = run_lake(capsys, "compact")
    assert out == f"{in_parts}: nothing to merge among 1 segments\n"


def test_the_commands_without_a_lake(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and exit 1."""
    for command in ("status", "compact"):
        code, out, err = run_lake(capsys, command, "--database", database_url)
        assert (code, out) == (1, "")
        assert "holds no lake; run `diode sync`" in err
        assert err.count("\n") == 1
