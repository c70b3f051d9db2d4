"""Caches that must be rebuilt, and warehouses and folders that cannot be used."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from cache_reading import did, measurement_ids

from diode_store.cache import cache as cache_module
from diode_store.cache import change
from diode_store.cache.cache import Cache
from diode_store.cache.sync import sync
from diode_store.errors import CacheError, DatabaseError, SchemaError
from diode_store.query import analytics
from diode_store.warehouse import schema
from lanes import sizes

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement, RunCommand
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


def remove_file(cache: Cache) -> None:
    """Delete the recent file."""
    next(cache.path.glob("recent-*")).unlink()


def cut_file(cache: Cache) -> None:
    """Truncate the recent file, as a full disk does."""
    path = next(cache.path.glob("recent-*"))
    os.truncate(path, path.stat().st_size - 10)


def other_file(cache: Cache) -> None:
    """Put another DuckDB file of the same size in its place."""
    path = next(cache.path.glob("recent-*"))
    other = path.with_name("other.db")
    duckdb.connect(str(other)).close()
    content = other.read_bytes()
    path.write_bytes(content + bytes(path.stat().st_size - len(content)))


def break_state(cache: Cache) -> None:
    """Write no JSON into the state."""
    (cache.path / "state.json").write_text("{")


def empty_state(cache: Cache) -> None:
    """Write a state without its fields."""
    (cache.path / "state.json").write_text(json.dumps({"format": cache_module.FORMAT}))


def future_state(cache: Cache) -> None:
    """Write a state of a later format."""
    (cache.path / "state.json").write_text('{"format": 99}')


def other_number(cache: Cache) -> None:
    """Change one digit of the state."""
    path = cache.path / "state.json"
    path.write_text(path.read_text().replace('"timings": 3', '"timings": 4'))


DAMAGES = {
    remove_file: " is missing",
    cut_file: " bytes and not ",
    other_file: " is damaged at its beginning",
    break_state: "state.json is damaged",
    empty_state: "state.json is damaged",
    other_number: "state.json is damaged",
    future_state: f"has format 99 and this torch-diode reads {cache_module.FORMAT}",
}


@pytest.mark.quick(2)
@pytest.mark.parametrize(("damage", "expected"), DAMAGES.items())
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


@pytest.mark.quick(3)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_without_a_sync_is_an_error(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement, damage: Any
) -> None:
    """With --no-sync nothing can be repaired; one line names the file and the command that can."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    damage(cache)
    with pytest.raises(CacheError, match=r"run `diode cache rebuild`$") as raised:
        analytics.connect(database_url, sync=False)
    assert str(cache.path) in str(raised.value)


def test_another_revision_of_the_schema(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement
) -> None:
    """A cache that was made before a migration is rebuilt."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    state = cache.state()
    assert state is not None
    cache.publish(replace(state, revision="0000"))
    assert did(sync(database_url, cache)) == (1, 3, 0, "it was made at schema revision 0000")


@pytest.mark.parametrize(
    "arguments",
    [("query", "SELECT count(*) FROM timings", "--csv"), ("fastest", "--hardware", "NVIDIA H200")],
    ids=lambda arguments: arguments[0],
)
def test_damage_inside_is_told_and_repaired(
    store: Store,
    database_url: str,
    cache: Cache,
    make_measurement: MakeMeasurement,
    diode: RunCommand,
    arguments: tuple[str, ...],
) -> None:
    """A reader finds it by a checksum, says what to do, and the next one rebuilds the cache."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    path = next(cache.path.glob("recent-*"))
    content = bytearray(path.read_bytes())
    content[12_288::4_096] = bytes(byte ^ 1 for byte in content[12_288::4_096])
    path.write_bytes(content)
    refused = diode(*arguments, "--database", database_url, "--no-sync")
    assert (refused.code, refused.out) == (1, "")
    assert re.fullmatch(r"error: the cache is damaged.*; run `diode cache rebuild`\n", refused.err)
    repaired = diode("query", "SELECT count(*) FROM timings", "--csv", "--database", database_url)
    assert "the cache was rebuilt: the cache is damaged" in repaired.err
    assert repaired.out.splitlines()[1:] == ["3"]


@pytest.mark.parametrize("rounds", sizes(12, 500))
def test_flipped_bits_give_no_wrong_answer(
    store: Store,
    database_url: str,
    cache: Cache,
    tmp_path: Path,
    make_measurement: MakeMeasurement,
    monkeypatch: pytest.MonkeyPatch,
    rounds: int,
) -> None:
    """Whatever part of the cache's files has another bit: the answer is the same, or there is an error."""
    monkeypatch.setattr(change, "MOST_RECENT", 10)
    store.write([make_measurement(number) for number in range(6)])
    sync(database_url, cache)
    store.write([make_measurement(number) for number in range(6, 8)])
    sync(database_url, cache)
    expected = everything(cache)
    chance = random.Random(rounds)  # noqa: S311 - no secret
    names = sorted(path.name for path in cache.path.iterdir() if path.suffix == ".duckdb" or path.name == "state.json")
    assert len(names) == 3
    told = 0
    for number in range(rounds):
        copy = Cache(tmp_path / f"copy-{number}")
        shutil.copytree(cache.path, copy.path)
        path = copy.path / chance.choice(names)
        content = bytearray(path.read_bytes())
        at = chance.choice([chance.randrange(len(content)), chance.randrange(min(len(content), 12_300))])
        content[at] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        try:
            assert everything(copy) == expected, (path.name, at)
        except (CacheError, duckdb.Error):
            told += 1
    assert told


def everything(cache: Cache) -> list[Any]:
    """Return what the tables and the views of a cache say."""
    names = ("timings", "measurements", "configs", "problems", "marks", "fastest_configs", "coverage", "best_times")
    with closing(analytics.open_cache(cache)) as connection:
        return [connection.execute(f"SELECT count(*), sum(hash(t)) FROM {name} AS t").fetchall() for name in names]  # noqa: S608 - our own names


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
