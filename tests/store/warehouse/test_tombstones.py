"""What was deleted stays deleted, whoever delivers it again, until somebody wants it back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import samples
from diode_store.warehouse.store import Store
from diode_store.warehouse.tombstones import bury, forget

if TYPE_CHECKING:
    import pytest

    from conftest import RunCommand


def test_what_was_deleted_does_not_come_back(any_store: Store) -> None:
    """A segment that is delivered again is a duplicate, until its tombstones are forgotten."""
    batch = [samples.measurement(number) for number in (1, 2)]
    any_store.write(batch)
    with any_store.engine.begin() as connection:
        assert bury(connection, [1], "by hand") == (1, 3)
        assert bury(connection, [1, 77], "again") == (0, 0)
    assert any_store.known([batch[0].uid, batch[1].uid, bytes(15) + b"x"]) == {batch[0].uid, batch[1].uid}
    report = any_store.write(batch)
    assert (report.measurements, report.duplicates) == (0, 2)
    with any_store.engine.begin() as connection:
        assert (forget(connection, "another"), forget(connection)) == (0, 1)
    assert any_store.write(batch).measurements == 1


def test_tombstones_are_listed_and_forgotten(diode: RunCommand, store: Store, database_url: str) -> None:
    """What was deleted is listed by what deleted it; forgetting it lets it in again."""
    assert diode("db", "tombstones", "--database", database_url).err == "nothing was deleted\n"
    assert json.loads(diode("db", "tombstones", "--json", "--database", database_url).out) == []
    batch = [samples.measurement(1, dataset="d"), samples.measurement(2, is_replay=True)]
    store.write(batch)
    diode("db", "prune", "--dataset", "d", "--all", "--yes", "--database", database_url)
    diode("db", "prune", "--replays", "--all", "--yes", "--database", database_url)
    rows = json.loads(diode("db", "tombstones", "--json", "--database", database_url).out)
    assert [(row["reason"], row["measurements"]) for row in rows] == [
        ("prune --dataset d --all", 1),
        ("prune --replays --all", 1),
    ]
    assert diode("db", "tombstones", "--reason", "x", "--database", database_url).code == 2
    args = ("db", "tombstones", "--forget", "--reason", "prune --dataset d --all", "--database", database_url)
    assert diode(*args).out == "1 tombstone forgotten\n"
    assert diode(*args).out == "0 tombstones forgotten\n"
    assert store.write(batch).measurements == 1
    assert json.loads(diode("db", "tombstones", "--forget", "--json", "--database", database_url).out) == {
        "forgotten": 1
    }


def test_times_are_printed_in_utc(diode: RunCommand, any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan and what it deleted have their times in UTC, and say so, on either database and wherever it is asked."""
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    with Store.open(any_url) as store:
        store.write([samples.measurement(1, dataset="d")])
    prune = ("db", "prune", "--dataset", "d", "--all", "--database", any_url)
    (share,) = json.loads(diode(*prune, "--json").out)["shares"]
    assert diode(*prune, "--yes").code == 0
    (stone,) = json.loads(diode("db", "tombstones", "--json", "--database", any_url).out)
    now = datetime.now(UTC)
    for text in (share["oldest"], share["newest"], stone["first_deleted_at"], stone["last_deleted_at"]):
        assert text.endswith("+00:00")
        assert timedelta(0) <= now - datetime.fromisoformat(text) < timedelta(minutes=5)
