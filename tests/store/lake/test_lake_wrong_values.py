"""A value that its column cannot hold: SQLite stores anything anywhere, and one row must not stop every query."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from diode_store.lake import sync as lake_sync
from diode_store.lake import worker as lake_worker
from diode_store.lake.lake import Lake
from diode_store.lake.opening import open_source
from diode_store.lake.source import wrong_values
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


@pytest.mark.quick(2)
@pytest.mark.parametrize("statement", WRONG)
@pytest.mark.parametrize("workers", [False, True], ids=["one process", "workers"])
def test_a_wrong_value_is_named_and_left_out(
    store: Store, database_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, *, workers: bool
) -> None:
    """The sync goes on, whoever copies, says which row it is, and `diode db check` does too."""
    store.write([measurement(number) for number in range(5)])
    sql(database_path, statement)
    monkeypatch.setattr(lake_worker, "WORTH_A_PROCESS", 1 if workers else 1_000)
    monkeypatch.setattr(lake_sync, "TIMINGS_PER_SEGMENT", 7)
    lake = Lake(database_path.with_suffix(".other-lake"))
    line, counts = WRONG[statement]
    assert lake_sync.sync(str(database_path), lake).left_out == (line,)
    query = "SELECT count(DISTINCT measurement_id), count(*) FROM observations"
    with closing(analytics.open_lake(lake)) as connection:
        assert connection.execute(query).fetchall() == [counts]
    with open_source(str(database_path)) as source:
        assert wrong_values(source) == [line]


def test_the_rest_of_a_segment_is_not_lost(store: Store, database_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of a limited number of timings goes on behind a row that was left out, and behind several."""
    store.write([measurement(number) for number in range(40)])
    sql(database_path, "UPDATE timings SET runtime_us = 'fast' WHERE measurement_id % 5 < 2")
    monkeypatch.setattr(lake_sync, "TIMINGS_PER_SEGMENT", 7)
    lake = Lake(database_path.with_suffix(".other-lake"))
    report = lake_sync.sync(str(database_path), lake)
    assert (report.measurements, report.timings, len(report.left_out)) == (40, 72, 48)
    assert lake_sync.sync(str(database_path), lake).left_out == report.left_out
