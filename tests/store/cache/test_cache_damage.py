"""Caches that must be rebuilt, and warehouses and folders that cannot be used."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from cache_reading import did, measurement_ids

from diode_store.errors import DatabaseError, CacheError, SchemaError
from diode_store.cache import cache as cache_module
from diode_store.cache.cache import Cache
from diode_store.cache.sync import sync
from diode_store.query import analytics
from diode_store.warehouse import schema

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement
    from diode_store.warehouse.store import Store


def test_the_cache_of_another_warehouse_is_rebuilt(
    store: Store, database_url: str, database_path: Path, cache: Cache, make_measurement: MakeMeasurement
) -> None:
    """A database that was deleted and made again does not answer with the old one's timings, and says so."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    with closing(sqlite3.connect(database_path)) as other, other:
        other.execute("UPDATE warehouse SET uuid = 'another'")
        other.execute("DELETE FROM measurements")
        other.execute("DELETE FROM timings")
    assert did(sync(database_url, cache)) == (0, 0, 0, "it was the cache of another warehouse")
    assert measurement_ids(cache) == []


def remove_timings(cache: Cache) -> None:
    """Delete a segment's file."""
    next(cache.path.glob("*-timings.parquet")).unlink()


def cut_timings(cache: Cache) -> None:
    """Truncate a segment's file, as a full disk does."""
    path = next(cache.path.glob("*-timings.parquet"))
    os.truncate(path, path.stat().st_size - 10)


def break_manifest(cache: Cache) -> None:
    """Write no JSON into the manifest."""
    (cache.path / "manifest.json").write_text("{")


def empty_manifest(cache: Cache) -> None:
    """Write a manifest without its fields."""
    (cache.path / "manifest.json").write_text(json.dumps({"format": cache_module.FORMAT}))


def future_manifest(cache: Cache) -> None:
    """Write a manifest of a later format."""
    (cache.path / "manifest.json").write_text('{"format": 99}')


def other_revision(cache: Cache) -> None:
    """Let the manifest be from another schema revision."""
    path = cache.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "revision": "0000"}))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (remove_timings, "-timings.parquet is missing"),
        (cut_timings, " bytes and not "),
        (break_manifest, "manifest.json is damaged"),
        (empty_manifest, "manifest.json is damaged"),
        (future_manifest, f"has format 99 and this torch-diode reads {cache_module.FORMAT}"),
        (other_revision, "it was made at schema revision 0000"),
    ],
)
def test_a_damaged_cache_is_rebuilt(
    store: Store,
    database_url: str,
    cache: Cache,
    make_measurement: MakeMeasurement,
    damage: Any,
    expected: str,
) -> None:
    """The cache is a copy: whatever happened to it, the next sync makes it whole again and says why."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    damage(cache)
    report = sync(database_url, cache)
    assert expected in (report.rebuilt or "")
    assert (report.added, measurement_ids(cache)) == (1, [1])
    assert did(sync(database_url, cache)) == (0, 0, 0, None)


@pytest.mark.parametrize("damage", [remove_timings, cut_timings, break_manifest, empty_manifest, future_manifest])
def test_a_damaged_cache_without_a_sync_is_an_error(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement, damage: Any
) -> None:
    """With --no-sync nothing can be repaired; one line names the file and the command that can."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    damage(cache)
    with pytest.raises(CacheError, match=r"run `diode sync( --rebuild)?`$") as raised:
        analytics.connect(database_url, sync=False)
    assert str(cache.path) in str(raised.value)


def test_a_rebuild_that_was_asked_for(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement
) -> None:
    """Everything is copied anew beside the old files."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    assert did(sync(database_url, cache, rebuild=True)) == (1, 3, 0, "it was asked for")
    assert measurement_ids(cache) == [1]


def test_a_cache_that_cannot_be_written(database_url: str, tmp_path: Path) -> None:
    """The message names the folder and both ways out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"cannot be written .* set DIODE_CACHE .* --no-sync"):
        sync(database_url, Cache(tmp_path / "file" / "cache"))


def test_a_warehouse_that_is_not_there(tmp_path: Path) -> None:
    """Nothing is created for a mistyped name."""
    with pytest.raises(SchemaError, match="holds no warehouse yet; create it with `diode db upgrade --database /"):
        analytics.connect(str(tmp_path / "typo.db"))
    assert list(tmp_path.glob("typo*")) == []


def test_a_database_without_our_tables(tmp_path: Path) -> None:
    """Somebody else's database is told from an empty warehouse."""
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection, connection:
        connection.execute("CREATE TABLE things (id INTEGER)")
    with pytest.raises(SchemaError, match=r"another program's database \(it has 1 table: things\)"):
        analytics.connect(str(tmp_path / "other.db"))


def test_a_database_of_another_revision(database_url: str, raw: sqlite3.Connection) -> None:
    """A schema that is not ours to read is refused, with what helps."""
    raw.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0000'")  # noqa: S608 - our own names
    with pytest.raises(SchemaError, match="has schema revision 0000, from which no migration leads"):
        analytics.connect(database_url)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """The driver's complaint becomes one line with the file's name."""
    (tmp_path / "junk.db").write_bytes(b"junk" * 1000)
    with pytest.raises(DatabaseError, match=r"junk\.db: it is not an SQLite database; name another file"):
        analytics.connect(str(tmp_path / "junk.db"))


def test_a_warehouse_that_lost_its_uuid(database_url: str, raw: sqlite3.Connection) -> None:
    """Without it nobody could tell whose cache it is."""
    raw.execute("DELETE FROM warehouse")
    with pytest.raises(DatabaseError, match="lost its uuid"):
        analytics.connect(database_url)
