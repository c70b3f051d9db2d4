"""Make the next state of the cache from the warehouse and the state before."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import duckdb
import numpy as np

from diode_store.cache.bench import opened, show_state
from diode_store.cache.cache import BASE, RECENT, Reading, State, is_full
from diode_store.cache.facts import timings_per_measurement
from diode_store.cache.filling import FRESH, Filling
from diode_store.cache.layout import REVISION
from diode_store.cache.small import copy_small_tables
from diode_store.cache.source import block_range, digests, highest_id
from diode_store.cache.tables import NOW, STORED, create_all
from diode_store.errors import CacheError, UnwritableCacheError, first_line
from diode_store.system.files import PRIVATE_FILE
from diode_store.values.times import with_zone
from diode_store.views.view_files import definitions_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from diode_store.cache.cache import Cache
    from diode_store.cache.source import WarehouseRows

MOST_RECENT = 1_000_000
"""Timings up to which there is no new base, however small the base is."""
RECENT_SHARE = 0.1
"""Share of the base's timings, added or dropped, from which a sync writes a new base."""
# Cases that were numbered while their problem or device was missing, as after a backup was restored.
_UNBOUND = f"""
    SELECT 1 FROM {NOW}.known_cases AS c
    SEMI JOIN {RECENT}.problems AS p ON p.id = c.problem_id
    SEMI JOIN {RECENT}.hardware AS h ON h.id = c.hardware_id
    WHERE c.least_us IS NULL LIMIT 1
"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TOTALS = "SELECT count(*), coalesce(sum(timing_count), 0)::BIGINT FROM {}"


_KEY = np.dtype([("id", "<i8"), ("uid", "S16"), ("ingested_us", "<i8")])
"""A measurement as one value that NumPy compares; one that was stored again counts as another one."""


class BrokenCacheError(CacheError):
    """DuckDB failed on the files of the state before."""


@dataclass(frozen=True)
class Difference:
    """Work for a sync."""

    missing: NDArray[np.int64]
    """Ids of the measurements to copy, in order."""
    gone: NDArray[np.int64]
    """Ids of the measurements that the warehouse no longer has."""


@dataclass(frozen=True)
class _Work:
    """Work of a change after the small tables."""

    after: State
    """The state to make, without its files and counts."""
    difference: Difference
    each: float
    """Estimate of the timings of a measurement."""
    is_other: bool
    """True if all summaries must be worked out anew."""
    needs_first_base: bool
    """True if an empty cache gets so much that it goes straight into a base."""


class Change:
    """One change of the cache; the caller holds the lock."""

    def __init__(
        self, warehouse: WarehouseRows, cache: Cache, present: State, on_progress: Callable[[float], None]
    ) -> None:
        """Prepare a change.

        Args:
            warehouse: the warehouse to copy from.
            cache: the cache to change.
            present: its state, whose files nobody deletes meanwhile.
            on_progress: called with the number of newly copied timings.
        """
        self._warehouse = warehouse
        self._cache = cache
        self._present = present
        self._on_progress = on_progress
        self.added = 0
        """Copied measurements."""
        self.added_timings = 0
        self.dropped = 0
        """Dropped measurements."""

    def make(self, uuid: str, before: State) -> State:
        """Publish the state after ``before``, and return it.

        Args:
            uuid: the warehouse's uuid.
            before: the state to continue from; without files, everything is copied.

        Raises:
            BrokenCacheError: DuckDB cannot read the state before.
            UnwritableCacheError: the cache cannot be written.
        """
        # A clock that goes back must not give a number twice.
        generation = max(self._present.generation + 1, int(time.time() * 1e3))
        fresh = State(uuid, REVISION, definitions_digest(), generation, time.time())
        try:
            return self._made(fresh, before, self._cache.path / f"{RECENT}.new")
        except (duckdb.Error, OSError) as error:
            if isinstance(error, duckdb.ParserException):
                raise  # a fault of ours, and not of the files
            reason = getattr(error, "strerror", None) or first_line(error)
            if isinstance(error, duckdb.Error) and not is_full(error):
                raise BrokenCacheError(reason) from error
            message = f"{self._cache} cannot be written: {reason}; free some space or check its folder"
            raise UnwritableCacheError(message) from error
        finally:
            for litter in self._cache.path.glob("*.new*"):
                with suppress(OSError):
                    litter.unlink()

    def _made(self, fresh: State, before: State, recent: Path) -> State:
        old = {BASE: self._cache.path / before.base.name} if before.base else {}
        if before.recent:
            shutil.copyfile(self._cache.path / before.recent.name, recent)
        with opened(old, {RECENT: recent}) as connection:
            if not before.recent:
                create_all(connection, RECENT)
            work = self._read_small(connection, fresh, before, (RECENT, *old))
            if not work.needs_first_base:
                self._grow(connection, work, has_base=bool(old))
            after = _counted(work.after, connection)
        after = replace(after, base=before.base if old else None)
        if work.needs_first_base:
            after = self._based(after, {}, recent, work)
        elif _has_outgrown(after, before) or (work.is_other and old):
            after = self._based(after, old, recent)
        else:
            after = replace(after, base_measurements=before.base_measurements, base_timings=before.base_timings)
        recent.chmod(PRIVATE_FILE)
        after = replace(after, recent=self._cache.seal(recent, RECENT))
        self._cache.publish(after)
        return after

    def _read_small(
        self, connection: duckdb.DuckDBPyConnection, fresh: State, before: State, kinds: Sequence[str]
    ) -> _Work:
        """Copy the small tables, and find out which measurements to copy or drop."""
        warehouse = self._warehouse
        # Read without regard to the counts of the state before: this change makes them grow.
        show_state(connection, Reading(replace(before, dropped=1, changed=1), {}), kinds)
        connection.execute(f"CREATE TEMP TABLE old_marks AS FROM {RECENT}.marks")
        connection.execute("BEGIN")
        with warehouse.snapshot():
            prints, blocks, tips = digests(warehouse, before)
            last_id = highest_id(warehouse)
            left_out, is_other = copy_small_tables(connection, warehouse, before, prints, blocks)
            if before.measurements:
                then = before.blocks.get("measurements", {})
                difference = compare(warehouse, connection, then, blocks["measurements"])
            else:
                ids = np.array([row[0] for row in warehouse.rows("SELECT id FROM measurements")], np.int64)
                difference = Difference(np.sort(ids), np.empty(0, np.int64))
        connection.execute("COMMIT")
        is_other = is_other or bool(connection.execute(_UNBOUND).fetchall())
        each = timings_per_measurement(warehouse, difference.missing)
        is_redefined = bool(before.definitions) and before.definitions != fresh.definitions
        return _Work(
            replace(fresh, fingerprints=prints, blocks=blocks, tips=tips, left_out=left_out, last_id=last_id),
            difference,
            each,
            is_other=is_other or is_redefined,
            needs_first_base=not before.measurements and each * len(difference.missing) > MOST_RECENT,
        )

    def _grow(self, connection: duckdb.DuckDBPyConnection, work: _Work, *, has_base: bool) -> None:
        """Change the recent file."""
        filling = Filling(connection, RECENT, has_base=has_base)
        connection.execute("BEGIN")
        filling.drop(work.difference.gone)
        self.dropped = len(work.difference.gone)
        if len(work.difference.missing):
            filling.add(self._warehouse, work.difference.missing, work.each, partial(self._took, work))
        if work.is_other and not has_base:
            filling.renew()
        if not (work.is_other and has_base):
            filling.end()
        connection.execute("COMMIT")

    def _took(self, work: _Work, measurements: int, timings: int) -> None:
        self.added += measurements
        self.added_timings += timings
        lines = work.after.left_out.setdefault("facts", [])
        lines.extend(line for line in dict.fromkeys(self._warehouse.left_out) if line not in lines)
        self._warehouse.left_out.clear()
        self._on_progress(timings)

    def _based(self, after: State, old: dict[str, Path], recent: Path, work: _Work | None = None) -> State:
        """Write a new base, and empty the recent file of what the base has; return the state with the base.

        Args:
            after: the state, whose recent file is complete.
            old: the base before.
            recent: the recent file.
            work: a first copy, which goes from the warehouse into the base; None if the recent file has everything.
        """
        path = self._cache.path / f"{BASE}.new"
        with opened(old, {RECENT: recent, FRESH: path}) as connection:
            show_state(connection, Reading(State(dropped=1, changed=1), {}), () if work else (RECENT, *old))
            filling = Filling(connection, FRESH, has_base=False)
            filling.copy()
            if work:
                filling.add(self._warehouse, work.difference.missing, work.each, partial(self._took, work))
            filling.end()
            for name in (*STORED, "dropped", "changed"):
                connection.execute(f"DELETE FROM {RECENT}.{name}")
            measurements, timings = connection.execute(_TOTALS.format(f"{FRESH}.measurements")).fetchall()[0]
        path.chmod(PRIVATE_FILE)
        return replace(
            after,
            base=self._cache.seal(path, BASE),
            base_measurements=measurements,
            base_timings=timings,
            measurements=measurements,
            timings=timings,
            recent_timings=0,
            dropped=0,
            changed=0,
        )


def _counted(after: State, connection: duckdb.DuckDBPyConnection) -> State:
    """Return a state, shown in the schema ``NOW``, with the counts of its rows."""
    measurements, timings = connection.execute(_TOTALS.format(f"{NOW}.stored_measurements")).fetchall()[0]
    [rows] = connection.execute(
        f"SELECT (SELECT count(*) FROM {RECENT}.timings), (SELECT count(*) FROM {RECENT}.dropped), "
        f"(SELECT count(*) FROM {RECENT}.changed)"
    ).fetchall()
    recent_timings, dropped, changed = rows
    return replace(
        after,
        measurements=measurements,
        timings=timings,
        recent_timings=recent_timings,
        dropped=dropped,
        changed=changed,
    )


def _has_outgrown(after: State, before: State) -> bool:
    """Return whether so much was added or dropped that a new base pays off."""
    least = max(MOST_RECENT, RECENT_SHARE * before.base_timings)
    dropped = after.dropped * before.base_timings / max(1, before.base_measurements)
    return after.recent_timings > least or dropped > least


def compare(
    source: WarehouseRows, connection: duckdb.DuckDBPyConnection, then: dict[str, str], now: dict[str, str]
) -> Difference:
    """Compare the measurements of the warehouse with those of the cache.

    Args:
        source: the warehouse.
        connection: a connection to the cache's state.
        then: digests of the warehouse's blocks when the cache was made.
        now: digests of its blocks.
    """
    missing, gone = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for block in sorted((b for b in now.keys() | then.keys() if now.get(b) != then.get(b)), key=int):
        # A block at a time: Python's rows take ten times the memory of an array.
        query = "SELECT id, uid, {} FROM {} WHERE id BETWEEN {} AND {} ORDER BY id"
        ours = query.format("epoch_us(ingested_at)", f"{NOW}.stored_measurements", *block_range(block))
        held = _keys(connection.execute(ours).fetchall())
        theirs = source.rows(query.format("ingested_at", "measurements", *block_range(block)))
        wanted = _keys((number, uid, _microseconds(stored)) for number, uid, stored in theirs)
        missing.append(np.setdiff1d(wanted, held)["id"])
        gone.append(np.setdiff1d(held, wanted)["id"])
    return Difference(np.concatenate(missing), np.concatenate(gone))


def _keys(rows: Iterable[tuple[int, bytes, int]]) -> NDArray[np.void]:
    return np.array([(number, bytes(uid), stored) for number, uid, stored in rows], _KEY)


def _microseconds(stored: object) -> int:
    """Return a time since 1970, or -1 for a value that is no time."""
    with suppress(ValueError):
        moment = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
        if isinstance(moment, datetime):
            return (with_zone(moment) - _EPOCH) // timedelta(microseconds=1)
    return -1
