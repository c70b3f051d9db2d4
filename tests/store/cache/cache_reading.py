"""What the cache's tests ask of a cache and of a sync."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from diode_store.query import analytics

if TYPE_CHECKING:
    from diode_store.cache.cache import Cache
    from diode_store.cache.sync import SyncReport


def ask(cache: Cache, sql: str) -> list[tuple[Any, ...]]:
    """Query the cache as it is."""
    with closing(analytics.open_cache(cache)) as connection:
        return connection.execute(sql).fetchall()


def measurement_ids(cache: Cache) -> list[int]:
    """Return the ids of the measurements that the view shows."""
    return [number for (number,) in ask(cache, "SELECT DISTINCT measurement_id FROM observations ORDER BY 1")]


def did(report: SyncReport) -> tuple[int, int, int, str | None]:
    """Return what a sync added and dropped, and why it rebuilt."""
    return report.added, report.added_timings, report.dropped, report.rebuilt
