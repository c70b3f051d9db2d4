"""Events in the life of a warehouse in an SQLite file, and a sync that is checked row by row."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import samples
from decided import decision
from diode_store.cache.cache import Cache, State
from diode_store.cache.source import digests
from diode_store.cache.sqlite import open_sqlite
from diode_store.cache.sync import SyncReport, sync
from diode_store.query import analytics
from diode_store.warehouse.database import write_transaction
from diode_store.warehouse.store import Store
from diode_store.warehouse.tombstones import bury, bury_decisions

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEYS = {
    **dict.fromkeys(("measurements", "decisions"), "id, uid, problem_id"),
    **dict.fromkeys(("problems", "configs"), "id, key"),
    "timings": "measurement_id, config_id",
}


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
