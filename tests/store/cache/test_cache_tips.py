"""A sync of an SQLite file reads again only what may have changed, and sees every change of every history."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cache_reading import did

import samples
from decided import decision
from diode_store.cache import source as cache_source
from diode_store.cache import sqlite as cache_sqlite
from diode_store.cache import tips as cache_tips
from diode_store.cache.cache import Cache, State
from diode_store.cache.source import digests
from diode_store.cache.sqlite import open_sqlite
from diode_store.cache.sync import SyncReport, sync
from diode_store.query import analytics
from diode_store.warehouse.database import write_transaction
from diode_store.warehouse.store import Store
from diode_store.warehouse.tombstones import bury, bury_decisions
from lanes import sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BLOCK = 4
_KEYS = {
    **dict.fromkeys(("measurements", "decisions"), "id, uid, problem_id"),
    **dict.fromkeys(("problems", "configs"), "id, key"),
    "timings": "measurement_id, config_id",
}


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


def deliver(database: Path, numbers: Iterable[int], *, with_decisions: bool = False) -> None:
    """Store measurements one after the other, as a daemon does; those that are there already stay."""
    with Store.open(str(database)) as store:
        for number in numbers:
            more = [decision(number)] if with_decisions else []
            store.write([samples.measurement(number), *more])


def delete(database: Path, *ids: int) -> None:
    """Delete measurements as a prune does."""
    with Store.open(str(database)) as store, write_transaction(store.engine) as connection:
        bury(connection, ids, "by hand")


def run(database: Path, *statements: str) -> None:
    """Run SQL that no part of torch-diode runs."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def back_up(database: Path) -> Path:
    """Copy a warehouse that nobody has open."""
    run(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(shutil.copy(database, database.with_name("backup.db")))


def _renamed(backup: Path, database: Path) -> None:
    copy = shutil.copy(backup, backup.with_name("copy.db"))
    for suffix in ("-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)
    Path(copy).replace(database)


def _overwritten(backup: Path, database: Path) -> None:
    """Restore a backup as ``cp`` does: the file keeps its inode."""
    run(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    before = database.stat().st_ino
    shutil.copyfile(backup, database)
    assert database.stat().st_ino == before


def _copied(backup: Path, database: Path) -> None:
    """Restore a backup as ``.restore`` of SQLite's shell does: in a transaction on the file."""
    with closing(sqlite3.connect(backup)) as old, closing(sqlite3.connect(database)) as new:
        old.backup(new)


HOW = {"renamed": _renamed, "overwritten": _overwritten, "copied": _copied}
restored = pytest.mark.parametrize("restore", HOW.values(), ids=HOW)


def synced(database: Path, cache: Cache) -> SyncReport:
    """Sync, and require that cache and state have what the warehouse has."""
    report = sync(str(database), cache)
    with closing(sqlite3.connect(database)) as stored, closing(analytics.open_cache(cache)) as copied:
        for table, columns in _KEYS.items():
            query = f"SELECT {columns} FROM {table} ORDER BY 1, 2"  # noqa: S608 - our own names
            assert copied.execute(query).fetchall() == stored.execute(query).fetchall(), table
    state = cache.state()
    assert state is not None
    with open_sqlite(database) as warehouse, warehouse.snapshot():
        assert digests(warehouse, State()).blocks == state.blocks
    return report


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


class History:
    """Random events of a warehouse that two caches follow."""

    def __init__(self, database: Path, seed: int) -> None:
        self._database = database
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._backups: list[Path] = []
        self.caches = [Cache(database.with_name(f"{number}.cache")) for number in range(2)]

    def step(self) -> str:
        """Let one thing happen, and return its name."""
        events = {
            self._deliver: 6,
            self._decide: 2,
            self._delete: 3,
            self._delete_by_hand: 1,
            self._back_up: 2,
            self._restore: 3,
            self._vacuum: 1,
            self._sync: 8,
        }
        event = self._random.choices(list(events), list(events.values()))[0]
        event()
        return event.__name__

    def _deliver(self) -> None:
        some = [self._random.randrange(60) for _ in range(self._random.randint(1, 9))]
        deliver(self._database, some, with_decisions=self._random.random() < 0.3)

    def _decide(self) -> None:
        with Store.open(str(self._database)) as store:
            for _ in range(self._random.randint(1, 9)):
                store.write([decision(self._random.randrange(80))])

    def _delete(self) -> None:
        with Store.open(str(self._database)) as store, write_transaction(store.engine) as connection:
            for bury_some in (bury, bury_decisions):
                bury_some(connection, self._ids(bury_some is bury), "by hand")
            connection.exec_driver_sql("DELETE FROM tombstones")  # so that they can be delivered again

    def _delete_by_hand(self) -> None:
        for number in self._ids(of_measurements=True):
            run(
                self._database,
                f"DELETE FROM measurements WHERE id = {number}",  # noqa: S608 - our own numbers
                f"DELETE FROM timings WHERE measurement_id = {number}",  # noqa: S608 - our own numbers
            )

    def _ids(self, of_measurements: bool) -> list[int]:  # noqa: FBT001 - tells two tables apart
        table = "measurements" if of_measurements else "decisions"
        with closing(sqlite3.connect(self._database)) as connection:
            ids = [row[0] for row in connection.execute(f"SELECT id FROM {table}")]  # noqa: S608 - our own names
        return self._random.sample(ids, min(len(ids), self._random.choice((0, 1, 1, 2, 12))))

    def _back_up(self) -> None:
        kept = self._database.with_name(f"backup-{len(self._backups)}.db")
        self._backups.append(Path(shutil.copy(back_up(self._database), kept)))

    def _restore(self) -> None:
        if self._backups:
            self._random.choice(list(HOW.values()))(self._random.choice(self._backups), self._database)

    def _vacuum(self) -> None:
        run(self._database, "VACUUM")

    def _sync(self) -> None:
        synced(self._database, self._random.choice(self.caches))


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
