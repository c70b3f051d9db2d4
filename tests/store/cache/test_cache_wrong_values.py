"""A value that its column cannot hold: SQLite stores anything anywhere, and one row must not stop every query."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from diode_store.cache import sync as cache_sync
from diode_store.cache import worker as cache_worker
from diode_store.cache.cache import Cache
from diode_store.cache.opening import open_source
from diode_store.cache.source import wrong_values
from diode_store.query import analytics
from samples import measurement, sql

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.warehouse.store import Store

WRONG = {
    "UPDATE timings SET runtime_us = 'fast' WHERE measurement_id = 2 AND config_id = 1": (
        "timings row with measurement_id 2 and config_id 1: runtime_us is 'fast', not a number",
        (5, 14),
    ),
    "UPDATE timings SET repeats = 1.5 WHERE measurement_id = 2 AND config_id = 1": (
        "timings row with measurement_id 2 and config_id 1: repeats is 1.5, not a whole number",
        (5, 14),
    ),
    "UPDATE measurements SET measured_at = 'noon' WHERE id = 2": (
        "measurements row with id 2: measured_at is 'noon', not a time",
        (4, 12),
    ),
    "UPDATE problems SET m = 'many' WHERE id = 2": ("problems row with id 2: m is 'many', not a whole number", (4, 12)),
}
"""A statement → how its row is named, and how many measurements and timings a query still sees."""


@pytest.mark.parametrize("statement", WRONG)
@pytest.mark.parametrize("workers", [False, True], ids=["one process", "workers"])
def test_a_wrong_value_is_named_and_left_out(
    store: Store, database_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, *, workers: bool
) -> None:
    """The sync goes on, whoever copies, says which row it is, and `diode db check` does too."""
    store.write([measurement(number) for number in range(5)])
    sql(database_path, statement)
    monkeypatch.setattr(cache_worker, "WORTH_A_PROCESS", 1 if workers else 1_000)
    monkeypatch.setattr(cache_sync, "TIMINGS_PER_SEGMENT", 7)
    cache = Cache(database_path.with_suffix(".other-cache"))
    line, counts = WRONG[statement]
    assert cache_sync.sync(str(database_path), cache).left_out == (line,)
    query = "SELECT count(DISTINCT measurement_id), count(*) FROM observations"
    with closing(analytics.open_cache(cache)) as connection:
        assert connection.execute(query).fetchall() == [counts]
    with open_source(str(database_path)) as source:
        assert wrong_values(source) == [line]


def test_the_rest_of_a_segment_is_not_lost(store: Store, database_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of a limited number of timings goes on behind a row that was left out, and behind several."""
    store.write([measurement(number) for number in range(40)])
    sql(database_path, "UPDATE timings SET runtime_us = 'fast' WHERE measurement_id % 5 < 2")
    monkeypatch.setattr(cache_sync, "TIMINGS_PER_SEGMENT", 7)
    cache = Cache(database_path.with_suffix(".other-cache"))
    report = cache_sync.sync(str(database_path), cache)
    assert (report.measurements, report.timings, len(report.left_out)) == (40, 72, 48)
    assert cache_sync.sync(str(database_path), cache).left_out == report.left_out
