"""Bring the cache up to date with the warehouse.

A sync compares *sets* of measurements, never the highest id: of two PostgreSQL transactions, the one with the lower id
may commit last. Equal digests of both sets end the sync at once, as before most queries. Only a sync with work to do
loads DuckDB and Arrow.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from diode_store.cache.cache import State
from diode_store.cache.layout import REVISION
from diode_store.cache.opening import open_source, stamp
from diode_store.cache.source import digests, highest_id, warehouse_uuid
from diode_store.cache.stamp import is_remembered, remember
from diode_store.errors import CacheError, DamagedCacheError, UnwritableCacheError
from diode_store.system.urls import is_published
from diode_store.views.view_files import definitions_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from diode_store.cache.cache import Cache
    from diode_store.cache.source import WarehouseRows


@dataclass(frozen=True)
class SyncReport:
    """Report of a sync."""

    measurements: int
    """Measurements in the cache now."""
    timings: int
    """Timings in the cache now."""
    added: int
    """Copied measurements."""
    added_timings: int
    dropped: int
    """Dropped measurements, which the warehouse no longer has."""
    has_new_base: bool
    """True if the sync wrote the whole base anew, because much was added."""
    rebuilt: str | None
    """Reason for rebuilding the cache, if it was rebuilt."""
    seconds: float
    left_out: tuple[str, ...] = ()
    """A line for each row that the cache lacks because its column cannot hold a value."""


def sync(
    source: str | sa.Engine,
    cache: Cache,
    *,
    rebuild: bool = False,
    on_progress: Callable[[float], None] = lambda _timings: None,
) -> SyncReport:
    """Copy missing measurements to ``cache`` and drop those that the warehouse no longer has.

    Args:
        source: the warehouse: its URL, the path of an SQLite file, or an engine.
        cache: the cache to fill.
        rebuild: True to copy everything again.
        on_progress: called with the number of newly copied timings.

    Raises:
        SchemaError: there is no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        CacheError: the cache cannot be written.
    """
    started = time.monotonic()
    url = source if isinstance(source, str) else source.url.render_as_string(hide_password=False)
    seen = stamp(url)
    present = None if rebuild else _usable(cache)
    if present is None or not is_remembered(cache, present.generation, seen):
        with open_source(url, cache.path, lambda: rebuild or _usable(cache) is None) as warehouse:
            if present is None or not holds_the_same(present, warehouse):
                with cache.lock():
                    return _locked(warehouse, cache, on_progress, started, rebuild=rebuild)
        remember(cache, present.generation, seen)
    return report_of(present, started)


def sync_to_read(url: str, cache: Cache, *, on_progress: Callable[[float], None] = lambda _timings: None) -> SyncReport:
    """Sync before reading; a cache that cannot be written stays as it is, which a line on stderr says.

    Raises:
        SchemaError: there is no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        CacheError: there is no cache of this warehouse and none can be written.
    """
    started = time.monotonic()
    try:
        return sync(url, cache, on_progress=on_progress)
    except UnwritableCacheError as error:
        state = _usable(cache)
        if state is None or not _is_of(state, url):
            raise
        moment = datetime.fromtimestamp(state.synced_at, UTC)
        sys.stderr.write(f"{error.reason}; the answer is of {moment:%Y-%m-%d %H:%M} UTC\n")
        return report_of(state, started)


def _is_of(state: State, url: str) -> bool:
    """Return whether a cache has the content of the warehouse, and not of another one in its folder before."""
    if is_published(url):
        return True  # a published table has a folder of its own
    with open_source(url) as warehouse, warehouse.snapshot():
        return state.warehouse == warehouse_uuid(warehouse)


def _usable(cache: Cache) -> State | None:
    """Return the cache's state, unless it must be rebuilt or worked out anew."""
    try:
        state = cache.state()
    except DamagedCacheError:
        return None
    if state is None or state.revision != REVISION or state.definitions != definitions_digest():
        return None
    return None if cache.damage(state) else state


def holds_the_same(state: State, warehouse: WarehouseRows) -> bool:
    """Return whether there is nothing to do."""
    with warehouse.snapshot():
        # A new measurement shows in the highest id, which saves computing the digests twice.
        if highest_id(warehouse) > state.last_id or state.warehouse != warehouse_uuid(warehouse):
            return False
        now = digests(warehouse, state)
        return (state.fingerprints, state.blocks) == (now.prints, now.blocks)


def _locked(
    warehouse: WarehouseRows,
    cache: Cache,
    on_progress: Callable[[float], None],
    started: float,
    *,
    rebuild: bool,
) -> SyncReport:
    """Sync while no other process does."""
    from diode_store.cache.change import BrokenCacheError, Change

    with warehouse.snapshot():
        uuid = warehouse_uuid(warehouse)
    rebuilt = "it was asked for" if rebuild else None
    before = State()
    try:
        before = cache.state() or before
        rebuilt = rebuilt or _why_unusable(before, uuid, cache)
    except DamagedCacheError as error:
        rebuilt = error.reason
    cache.sweep(before if before.files else None)
    try:
        change = Change(warehouse, cache, before, on_progress)
        after = change.make(uuid, State(generation=before.generation) if rebuilt else before)
    except BrokenCacheError as error:
        if rebuilt:
            raise CacheError(f"{cache} cannot be written: {error}; free some space or check its folder") from error
        rebuilt = f"it was damaged: {error}"
        change = Change(warehouse, cache, before, on_progress)
        after = change.make(uuid, State(generation=before.generation))
    return report_of(
        after,
        started,
        added=change.added,
        added_timings=change.added_timings,
        dropped=0 if rebuilt else change.dropped,
        has_new_base=after.base is not None and after.base != before.base,
        rebuilt=rebuilt if before.files or not rebuild else None,
    )


def _why_unusable(state: State, uuid: str, cache: Cache) -> str | None:
    if state == State():
        return None
    if state.warehouse != uuid:
        return "it was the cache of another warehouse"
    if state.revision != REVISION:
        return f"it was made at schema revision {state.revision}"
    return cache.damage(state)


def report_of(
    state: State,
    started: float,
    *,
    added: int = 0,
    added_timings: int = 0,
    dropped: int = 0,
    has_new_base: bool = False,
    rebuilt: str | None = None,
) -> SyncReport:
    """Return the report of a sync that ended in ``state``."""
    return SyncReport(
        measurements=state.measurements,
        timings=state.timings,
        added=added,
        added_timings=added_timings,
        dropped=dropped,
        has_new_base=has_new_base,
        rebuilt=rebuilt,
        seconds=time.monotonic() - started,
        left_out=tuple(line for lines in state.left_out.values() for line in lines),
    )
