"""Decisions in the cache: copied when there are new ones, gone when they were deleted."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import samples
from decided import EVERY_FIELD, decision
from diode_store.query import analytics
from diode_store.warehouse.database import write_transaction
from diode_store.warehouse.tombstones import bury_decisions

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.warehouse.store import Store


def asked(store: Store, cache: Path, sql: str) -> list[tuple[Any, ...]]:
    """Sync, and return the rows of a query."""
    url = store.engine.url.render_as_string(hide_password=False)
    with closing(analytics.connect(url, cache)) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.quick(1)
def test_a_decision_is_seen_at_once(any_store: Store, tmp_path: Path) -> None:
    """Each sync copies new ones, with or without measurements beside them, and drops deleted ones."""
    cache, uids = tmp_path / "cache", "SELECT uid FROM decisions ORDER BY id"
    assert asked(any_store, cache, uids) == []
    any_store.write([decision(1)])
    assert asked(any_store, cache, uids) == [(decision(1).uid,)]
    any_store.write([decision(2), samples.measurement(2)])
    assert asked(any_store, cache, uids) == [(decision(1).uid,), (decision(2).uid,)]
    with write_transaction(any_store.engine) as connection:
        assert bury_decisions(connection, [1, 77], "by hand") == 1
    assert asked(any_store, cache, uids) == [(decision(2).uid,)]


def test_every_column(any_store: Store, tmp_path: Path) -> None:
    """The cache has what the table has; JSON is text, times are in UTC and without a zone."""
    any_store.write([decision(1, **EVERY_FIELD)])
    names = [name for name in EVERY_FIELD if name != "extra"]
    [row] = asked(any_store, tmp_path / "cache", f"SELECT {', '.join(names)}, kept, decided_at FROM decisions")  # noqa: S608 - ours
    assert row[:-2] == tuple(EVERY_FIELD[name] for name in names)
    assert row[-2].replace(" ", "") == "[[2,9.5],[1,10.25]]"  # configs are numbered by their keys
    assert row[-1] == datetime(2026, 11, 20, 12, 30, tzinfo=UTC).replace(tzinfo=None)
