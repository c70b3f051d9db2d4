"""A database that has not changed is not read again; one that has is never taken for one that has not."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cache_reading import did, measurement_ids

from diode_store.cache import stamp as cache_stamp
from diode_store.cache import sync as cache_sync
from diode_store.cache.stamp import stamp_of
from diode_store.cache.sync import sync
from lanes import sizes

if TYPE_CHECKING:
    from conftest import MakeMeasurement
    from diode_store.cache.cache import Cache
    from diode_store.warehouse.store import Store


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every opening of the database adds; files settle at once."""
    monkeypatch.setattr(cache_stamp, "SETTLED_S", 0.05)
    opened: list[str] = []
    original = cache_sync.open_source

    def noted(url: str, *more: Any) -> object:
        opened.append(url)
        return original(url, *more)

    monkeypatch.setattr(cache_sync, "open_source", noted)
    return opened


def settle() -> None:
    """Wait until the file was quiet for long enough."""
    time.sleep(0.2)


def test_what_has_not_changed_is_not_read(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement, reads: list[str]
) -> None:
    """The first sync after a quiet moment compares digests, later ones need not."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    settle()
    for expected in (2, 2, 2):
        assert did(sync(database_url, cache)) == (0, 0, 0, None)
        assert len(reads) == expected
    store.write([make_measurement(2)])
    assert did(sync(database_url, cache)) == (1, 3, 0, None)
    assert len(reads) == 3


def test_every_kind_of_change_is_seen(
    store: Store,
    database_url: str,
    cache: Cache,
    raw: sqlite3.Connection,
    make_measurement: MakeMeasurement,
    reads: list[str],
) -> None:
    """Rows that come, go or change, a checkpoint, and times that somebody sets back."""
    store.write([make_measurement(number) for number in range(4)])
    sync(database_url, cache)
    for statement, left in (
        ("DELETE FROM measurements WHERE id = 1", [2, 3, 4]),
        ("UPDATE measurements SET superseded_by = uid WHERE id = 2", [3, 4]),
        ("UPDATE measurements SET superseded_by = NULL WHERE id = 2", [2, 3, 4]),
    ):
        settle()
        sync(database_url, cache)
        path = raw.execute("PRAGMA database_list").fetchone()[2]
        before = Path(path).stat()
        raw.execute(statement)
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        sync(database_url, cache)
        assert measurement_ids(cache) == left


def test_a_restored_backup_is_seen(
    store: Store,
    database_url: str,
    database_path: Path,
    cache: Cache,
    make_measurement: MakeMeasurement,
    reads: list[str],
) -> None:
    """Another file in the same place, with the same size and times, is another file."""
    store.write([make_measurement(1)])
    store.close()
    backup = shutil.copy2(database_path, database_path.with_name("backup.db"))
    with closing(sqlite3.connect(backup)) as other, other:
        other.execute("UPDATE measurements SET uid = zeroblob(16)")
    sync(database_url, cache)
    settle()
    sync(database_url, cache)
    shutil.copystat(database_path, backup)
    Path(backup).replace(database_path)
    assert did(sync(database_url, cache)) == (1, 3, 1, None)


def test_a_file_that_changed_just_now_is_not_believed(store: Store, database_path: Path) -> None:
    """Two commits within one tick of the clock leave the same times, so a moment must pass."""
    store.counts()
    os.utime(database_path)
    assert stamp_of(database_path) is None
    assert stamp_of(database_path.with_name("nowhere.db")) is None


@pytest.mark.long
@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("commits", sizes(8, 60))
def test_random_commits_are_all_seen(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement, commits: int
) -> None:
    """Whether a sync follows at once or after a pause, it sees every commit."""
    for number in range(commits):
        store.write([make_measurement(number)])
        if number % 5 == 0:
            settle()
        sync(database_url, cache)
        sync(database_url, cache)
        assert len(measurement_ids(cache)) == number + 1
