"""A value that its column cannot hold: SQLite stores anything anywhere, and one row must not stop every query."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from diode_store.cache import change, facts, worker
from diode_store.cache.cache import Cache
from diode_store.cache.opening import open_source
from diode_store.cache.source import wrong_values
from diode_store.cache.sync import sync
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
@pytest.mark.parametrize("how", ["recent", "base", "workers"])
def test_a_wrong_value_is_named_and_left_out(
    store: Store, database_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, how: str
) -> None:
    """The sync goes on, whoever copies, says which row it is, and `diode db check` does too."""
    store.write([measurement(number) for number in range(5)])
    sql(database_path, statement)
    monkeypatch.setattr(worker, "WORTH_A_PROCESS", 1 if how == "workers" else 1_000)
    monkeypatch.setattr(change, "MOST_RECENT", 1_000 if how == "recent" else 1)
    monkeypatch.setattr(facts, "TIMINGS_AT_ONCE", 7)
    cache = Cache(database_path.with_suffix(".other-cache"))
    line, counts = WRONG[statement]
    assert sync(str(database_path), cache).left_out == (line,)
    query = "SELECT count(DISTINCT measurement_id), count(*) FROM observations"
    with closing(analytics.open_cache(cache)) as connection:
        assert connection.execute(query).fetchall() == [counts]
    with open_source(str(database_path)) as source:
        assert wrong_values(source) == [line]


def test_a_corrected_value_arrives(store: Store, database_path: Path) -> None:
    """A problem that was left out has its summary once its row is right."""
    store.write([measurement(number) for number in range(3)])
    sql(database_path, "UPDATE problems SET m = 'many' WHERE id = 2")
    cache = Cache(database_path.with_suffix(".other-cache"))
    sync(str(database_path), cache)
    count = "SELECT (SELECT count(*) FROM fastest_configs), (SELECT sum(timings) FROM coverage)"
    counts = []
    for statement in ("SELECT 1", "UPDATE problems SET m = 64, extra = '{}' WHERE id = 2"):
        sql(database_path, statement)
        sync(str(database_path), cache)
        with closing(analytics.open_cache(cache)) as connection:
            counts += connection.execute(count).fetchall()
    assert counts == [(2, 6), (3, 9)]
