"""A sync of an SQLite file reads again only what may have changed, and sees every change of every history."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cache_reading import did
from sqlite_histories import HOW, History, back_up, delete, deliver, run, synced

from decided import decision
from diode_store.cache import source as cache_source
from diode_store.cache import sqlite as cache_sqlite
from diode_store.cache import tips as cache_tips
from diode_store.cache.cache import Cache, State
from diode_store.cache.sync import sync
from diode_store.warehouse.store import Store
from lanes import sizes

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

BLOCK = 4


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks and tips so small that a few rows fill many."""
    monkeypatch.setattr(cache_source, "BLOCK", BLOCK)
    monkeypatch.setattr(cache_sqlite, "BLOCK", BLOCK)
    monkeypatch.setattr(cache_tips, "_LAST", 1)


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of blocks that were read to compute their digests, by table."""
    found: Counter[str] = Counter()
    connect = cache_sqlite.connect_sqlite

    def noted(statement: str) -> None:
        if "group_concat" in statement:
            found[statement.partition(" FROM ")[2].partition(" ")[0]] += 1

    def traced(path: Path, mode: str) -> sqlite3.Connection:
        connection = connect(path, mode)
        connection.set_trace_callback(noted)
        return connection

    monkeypatch.setattr(cache_sqlite, "connect_sqlite", traced)
    return found


restored = pytest.mark.parametrize("restore", HOW.values(), ids=HOW)


def test_an_append_reads_the_last_blocks_alone(database_path: Path, cache: Cache, digested: Counter[str]) -> None:
    """The first sync reads every block; later ones read the last block and what follows, of each large table."""
    deliver(database_path, range(10 * BLOCK), with_decisions=True)
    sync(str(database_path), cache)
    assert digested == dict.fromkeys(("measurements", "decisions", "problems"), 11) | {"configs": 2}
    for numbers in ([100], [101, 102], range(200, 204), [3]):
        digested.clear()
        deliver(database_path, numbers, with_decisions=True)
        sync(str(database_path), cache)
        assert max(digested.values(), default=0) <= 2
    digested.clear()
    run(database_path, "UPDATE measurements SET flags = 'throttled' WHERE id = 2")
    sync(str(database_path), cache)
    # A sync that no new measurement begins compares the digests first without the lock, and then with it.
    assert max(digested.values()) <= 2 * 2


def test_an_append_beside_missing_ids(database_path: Path, cache: Cache, digested: Counter[str]) -> None:
    """Ids that were missing at the last sync cost nothing; those that a sync finds missing cost a full pass."""
    deliver(database_path, range(10 * BLOCK))
    delete(database_path, 3, 20)
    synced(database_path, cache)
    deliver(database_path, [100])
    digested.clear()
    assert did(sync(str(database_path), cache)) == (1, 3, 0, None)
    assert digested["measurements"] <= 2
    delete(database_path, 5)
    deliver(database_path, [101])
    digested.clear()
    assert did(sync(str(database_path), cache)) == (1, 3, 1, None)
    assert digested["measurements"] == 11
    synced(database_path, cache)


def test_deletes(database_path: Path, cache: Cache) -> None:
    """Old and new measurements, the last one, those that came since, and all of them."""
    deliver(database_path, range(6 * BLOCK))
    synced(database_path, cache)
    for number, ids in enumerate(([2], [24, 23], [1, 25], range(1, 40))):
        deliver(database_path, [100 + number])
        delete(database_path, *ids)
        synced(database_path, cache)
    deliver(database_path, [200, 201])
    synced(database_path, cache)


def test_a_delete_that_an_insert_balances(database_path: Path, cache: Cache) -> None:
    """There are as many measurements as before; in the end one of them has another id."""
    deliver(database_path, range(6 * BLOCK))
    synced(database_path, cache)
    delete(database_path, 3)
    deliver(database_path, [100])
    assert did(synced(database_path, cache)) == (1, 3, 1, None)
    run(
        database_path,
        "UPDATE measurements SET id = 3 WHERE id = 5",
        "UPDATE timings SET measurement_id = 3 WHERE measurement_id = 5",
    )
    assert did(synced(database_path, cache)) == (1, 3, 1, None)


@restored
def test_a_restored_backup(database_path: Path, cache: Cache, restore: Callable[[Path, Path], None]) -> None:
    """The rest is delivered again: in the same order or in another one, with the same last measurement or not."""
    deliver(database_path, range(20), with_decisions=True)
    backup = back_up(database_path)
    for order in ([20, 21, 22, 23], [20, 21, 22, 23], [21, 20, 22, 23], [22, 21, 20, 23], [20, 22], [*range(20, 29)]):
        deliver(database_path, order, with_decisions=True)
        synced(database_path, cache)
        restore(backup, database_path)
    synced(database_path, cache)


@restored
def test_a_restored_backup_with_other_numbers(
    database_path: Path, cache: Cache, restore: Callable[[Path, Path], None]
) -> None:
    """A measurement has the same id and uid when it is stored again, but its problem has another number."""
    deliver(database_path, range(20))
    backup = back_up(database_path)
    deliver(database_path, [20], with_decisions=True)
    synced(database_path, cache)
    restore(backup, database_path)
    with Store.open(str(database_path)) as store:
        store.write([decision(50)])
    deliver(database_path, [20])
    assert did(synced(database_path, cache)) == (1, 3, 1, None)


@restored
def test_a_restored_backup_with_other_deletes(
    database_path: Path, cache: Cache, restore: Callable[[Path, Path], None]
) -> None:
    """Deleted measurements come back, and as many others go, whose ids have the same sum; no insert tells of it."""
    deliver(database_path, range(20), with_decisions=True)
    backup = back_up(database_path)
    delete(database_path, 5, 8)
    synced(database_path, cache)
    restore(backup, database_path)
    delete(database_path, 6, 7)
    assert did(synced(database_path, cache)) == (2, 6, 2, None)


@restored
def test_a_restored_backup_with_other_problems(
    database_path: Path, cache: Cache, restore: Callable[[Path, Path], None]
) -> None:
    """No measurement names the last problems any more, and after the restore they come in another order."""
    deliver(database_path, range(20))
    backup = back_up(database_path)
    deliver(database_path, range(20, 40))
    delete(database_path, *range(21, 41))
    synced(database_path, cache)
    restore(backup, database_path)
    deliver(database_path, [21, 20, *range(22, 40)])
    delete(database_path, *range(21, 41))
    synced(database_path, cache)


@restored
def test_a_restored_backup_with_other_decisions(
    database_path: Path, cache: Cache, restore: Callable[[Path, Path], None]
) -> None:
    """Decisions are told apart as measurements are, while the measurements stay as they are."""
    deliver(database_path, range(20))
    with Store.open(str(database_path)) as store:
        store.write([decision(number) for number in range(20)])
    backup = back_up(database_path)
    for numbers in ([20, 21, 22, 23], [21, 20, 22, 23]):
        with Store.open(str(database_path)) as store:
            for number in numbers:
                store.write([decision(number)])
        synced(database_path, cache)
        restore(backup, database_path)
    synced(database_path, cache)


@pytest.mark.parametrize("name", ["warehouse.db", "other.db"])
def test_two_warehouses_with_one_uuid(database_path: Path, cache: Cache, name: str) -> None:
    """A copy lives on under another name, or in place of the first; each has measurements and deletes of its own."""
    deliver(database_path, range(20))
    copy = Path(shutil.copy(back_up(database_path), database_path.with_name("second.db")))
    first = Path(shutil.copy(database_path, database_path.with_name("first.db")))
    for number in range(3):
        for own, warehouse in enumerate((first, copy)):
            if number:
                delete(warehouse, 5 + 10 * own + number)
                deliver(warehouse, [100 * (own + 1) + number])
            place = database_path.with_name(name) if name == "warehouse.db" else warehouse
            if place != warehouse:
                shutil.copyfile(back_up_in_place(warehouse), place)
            synced(place, cache)


def back_up_in_place(database: Path) -> Path:
    """Return a warehouse's file with all commits in it."""
    run(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    return database


def test_vacuum_and_another_schema_version(database_path: Path, cache: Cache, digested: Counter[str]) -> None:
    """Both keep the ids: a sync reads everything once, and finds what came and went meanwhile."""
    deliver(database_path, range(20))
    delete(database_path, 7)
    synced(database_path, cache)
    for statement in ("VACUUM", "CREATE INDEX quick ON measurements (source)", "ANALYZE"):
        deliver(database_path, [100 + len(statement)])
        run(database_path, statement)
        synced(database_path, cache)
    deliver(database_path, [200])
    digested.clear()
    sync(str(database_path), cache)
    assert digested["measurements"] <= 2


def test_a_state_of_an_older_version(database_path: Path, cache: Cache, digested: Counter[str]) -> None:
    """It has no tips: the next sync with work reads everything once."""
    deliver(database_path, range(20))
    synced(database_path, cache)
    state = cache.state()
    assert state is not None
    with cache.lock():
        cache.publish(State(**{**vars(state), "tips": {}}))
    for expected in (6, 2):
        deliver(database_path, [100 + expected])
        digested.clear()
        assert did(sync(str(database_path), cache)) == (1, 3, 0, None)
        assert digested["measurements"] <= expected
    synced(database_path, cache)


@pytest.mark.quick(1)
@pytest.mark.parametrize("steps", sizes(60, 1000))
def test_random_histories(database_path: Path, steps: int) -> None:
    """Whatever happens between two syncs, the second one leaves in the cache what is in the warehouse."""
    seed = random.SystemRandom().randrange(2**32)
    history = History(database_path, seed)
    events: list[Any] = []
    try:
        events.extend(history.step() for _ in range(steps))
        for cache in history.caches:
            synced(database_path, cache)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, after {events[-12:]}: {error}") from error
