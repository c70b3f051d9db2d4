"""The two files of a cache: when there is a base, what a new one holds, and readers beside a sync."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cache_reading import ask, measurement_ids

from diode_store.cache import change, facts, filling, worker
from diode_store.cache import sync as sync_module
from diode_store.cache.cache import Cache
from diode_store.cache.sync import sync
from diode_store.errors import CacheError
from diode_store.query import analytics

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement
    from diode_store.warehouse.store import Store

_CASES = "SELECT case_no, hardware_id, environment_id, problem_id, regime FROM known_cases ORDER BY case_no"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ten timings be many."""
    monkeypatch.setattr(change, "MOST_RECENT", 10)
    monkeypatch.setattr(facts, "TIMINGS_AT_ONCE", 7)
    monkeypatch.setattr(filling, "TIMINGS_AT_ONCE", 7)


@pytest.mark.parametrize("workers", [False, True], ids=["rows", "columns"])
def test_a_first_base_is_sorted_by_case(
    store: Store,
    database_url: str,
    cache: Cache,
    make_measurement: MakeMeasurement,
    monkeypatch: pytest.MonkeyPatch,
    *,
    workers: bool,
) -> None:
    """Whoever reads the warehouse, a large first copy goes straight into a base."""
    monkeypatch.setattr(worker, "WORTH_A_PROCESS", 1 if workers else 1_000)
    store.write([make_measurement(number) for number in (4, 3, 2, 1, 0)])
    report = sync(database_url, cache)
    assert (report.added, report.added_timings, report.has_new_base) == (5, 15, True)
    state = cache.state()
    assert state is not None
    assert (state.base_timings, state.recent_timings) == (15, 0)
    cases = ask(cache, _CASES)
    assert [case[0] for case in cases] == [1, 2, 3, 4, 5]
    assert [case[1:] for case in cases] == sorted(case[1:] for case in cases)


@pytest.mark.long
def test_what_comes_later_is_recent_until_it_is_much(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement
) -> None:
    """A base stays one file until a tenth of it was added, or dropped; then all is in a new one."""
    store.write([make_measurement(number) for number in range(5)])
    sync(database_url, cache)
    bases = []
    for number in range(5, 10):
        store.write([make_measurement(number)])
        sync(database_url, cache)
        assert len(measurement_ids(cache)) == number + 1
        state = cache.state()
        assert state is not None
        assert state.base is not None
        bases.append((state.base.name, state.base_timings, state.recent_timings))
    assert [counts for _, *counts in bases] == [[15, 3], [15, 6], [15, 9], [27, 0], [27, 3]]
    assert len({name for name, *_ in bases}) == 2
    assert len(list(cache.path.glob("base-*"))) == 1


def test_deleted_measurements_leave_the_base(
    store: Store, database_url: str, cache: Cache, database_path: Path, make_measurement: MakeMeasurement
) -> None:
    """First by a list of their ids, then with the next base."""
    store.write([make_measurement(number) for number in range(6)])
    sync(database_url, cache)
    counts = []
    for number in range(1, 5):
        with closing(sqlite3.connect(database_path)) as raw, raw:
            raw.execute("DELETE FROM timings WHERE measurement_id = ?", (number,))
            raw.execute("DELETE FROM measurements WHERE id = ?", (number,))
        assert sync(database_url, cache).dropped == 1
        assert measurement_ids(cache) == list(range(number + 1, 7))
        state = cache.state()
        assert state is not None
        counts.append((state.dropped, state.base_measurements, state.measurements))
    assert counts == [(1, 6, 5), (2, 6, 4), (3, 6, 3), (0, 2, 2)]


def test_a_reader_keeps_its_state(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement
) -> None:
    """Both files of an old state can be read, though new ones have replaced them."""
    store.write([make_measurement(number) for number in range(5)])
    sync(database_url, cache)
    count = "SELECT (SELECT count(*) FROM timings), (SELECT count(*) FROM fastest_configs)"
    with closing(analytics.open_cache(cache)) as old:
        store.write([make_measurement(number) for number in range(5, 10)])
        assert sync(database_url, cache).has_new_base
        with closing(analytics.open_cache(cache)) as new:
            assert new.execute(count).fetchall() == [(30, 10)]
        assert old.execute(count).fetchall() == [(15, 5)]


@pytest.mark.long
def test_readers_beside_syncs(store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement) -> None:
    """Whoever opens the cache while it changes sees one whole state."""
    store.write([make_measurement(number) for number in range(5)])
    sync(database_url, cache)
    ends, seen, failed = threading.Event(), [], []

    def read() -> None:
        query = (
            "SELECT (SELECT count(*) FROM timings) - 3 * (SELECT count(*) FROM measurements), count(*) FROM summaries"
        )
        while not ends.is_set():
            try:
                seen.extend(ask(cache, query))
            except Exception as error:  # noqa: BLE001 - all errors are failures here
                failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(5, 11):
        store.write([make_measurement(number)])
        sync(database_url, cache)
    ends.set()
    for reader in readers:
        reader.join()
    assert failed == []
    assert {torn for torn, _ in seen} == {0}
    assert {cases for _, cases in seen} <= set(range(5, 12))


def test_a_folder_that_cannot_be_written(
    store: Store,
    database_url: str,
    cache: Cache,
    make_measurement: MakeMeasurement,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A sync is an error; a reader gets what is there, and a line with its age, unless it is another warehouse's."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    store.write([make_measurement(2)])
    (cache.path / "lock").unlink()
    (cache.path / "lock").symlink_to("elsewhere")  # root may write any folder, but the lock is no link
    with pytest.raises(CacheError, match=r"cannot be written \(.*\); set DIODE_CACHE .*--no-sync"):
        sync(database_url, cache)
    for is_synced, said in (True, r".* cannot be written \(.*\); the answer is of 20.* UTC\n"), (False, ""):
        with closing(analytics.connect(database_url, sync=is_synced)) as connection:
            assert connection.execute("SELECT count(*) FROM timings").fetchall() == [(3,)]
        assert re.fullmatch(said, capsys.readouterr().err)
    state = cache.state()
    assert state is not None
    cache.publish(replace(state, warehouse="another"))
    with pytest.raises(CacheError, match="cannot be written"):
        analytics.connect(database_url)


def test_a_sync_that_fails_leaves_the_old_state(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk shows when the new file is made, or when it gets its name."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    before = sorted(path.name for path in cache.path.iterdir())
    store.write([make_measurement(2)])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for where in (change.shutil, "copyfile"), (Cache, "seal"), (Cache, "publish"):
        with monkeypatch.context() as patch:
            patch.setattr(*where, full)
            with pytest.raises(CacheError, match="No space left on device; free some space or check its folder"):
                sync(database_url, cache)
        assert measurement_ids(cache) == [1]
    sync_module.sync(database_url, cache)
    assert measurement_ids(cache) == [1, 2]
    assert len(list(cache.path.iterdir())) == len(before)
