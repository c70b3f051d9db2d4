"""What the lake's tests ask of a lake and of a sync."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from diode_store.query import analytics

if TYPE_CHECKING:
    from diode_store.lake.lake import Lake
    from diode_store.lake.sync import SyncReport


def ask(lake: Lake, sql: str) -> list[tuple[Any, ...]]:
    """Query the lake as it is."""
    with closing(analytics.open_lake(lake)) as connection:
        return connection.execute(sql).fetchall()


def measurement_ids(lake: Lake) -> list[int]:
    """Return the ids of the measurements that the view shows."""
    return [number for (number,) in ask(lake, "SELECT DISTINCT measurement_id FROM observations ORDER BY 1")]


def did(report: SyncReport) -> tuple[int, int, int, str | None]:
    """Return what a sync added and dropped, and why it rebuilt."""
    return report.added, report.added_timings, report.dropped, report.rebuilt
