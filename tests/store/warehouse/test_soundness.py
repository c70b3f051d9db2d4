"""Facts that refer to nothing are found, although no constraint of the database forbids them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

import samples
from diode_store.warehouse import schema
from diode_store.warehouse.soundness import broken_facts
from diode_store.warehouse.tombstones import bury

if TYPE_CHECKING:
    from conftest import RunCommand
    from diode_store.warehouse.store import Store

BROKEN = {
    "UPDATE timings SET measurement_id = 77 WHERE measurement_id = 2": [
        "3 timings of measurements that are not there",
        "1 measurement without any timing",
    ],
    "DELETE FROM timings WHERE measurement_id = 1": ["1 measurement without any timing"],
    "UPDATE timings SET config_id = 77 WHERE measurement_id = 1 AND outcome <> 'ok'": [
        "1 timing of configs that are not there"
    ],
    "UPDATE metric_values SET config_id = 77 WHERE value = 32": ["1 metric value of timings that are not there"],
    "DELETE FROM metrics WHERE name = 'spills'": ["2 metric values of metrics that are not there"],
}


@pytest.mark.parametrize("change", BROKEN)
def test_broken_facts_are_counted(any_store: Store, change: str) -> None:
    """Each kind of damage by hand is said with its number; before it there is none."""
    any_store.write([samples.measurement(1), samples.measurement(2), samples.measurement(3, **samples.EVERY_FIELD)])
    assert broken_facts(any_store.engine) == []
    with any_store.engine.begin() as connection:
        connection.exec_driver_sql(change)
    assert broken_facts(any_store.engine) == BROKEN[change]


def test_deleted_and_there(any_store: Store) -> None:
    """A measurement that came back in spite of its tombstone is found."""
    any_store.write([samples.measurement(1), samples.measurement(2)])
    with any_store.engine.begin() as connection:
        bury(connection, [1], "prune")
        assert broken_facts(any_store.engine) == []
        change = sa.update(schema.measurements).values(uid=samples.measurement(1).uid)
        connection.execute(change.where(schema.measurements.c.uid == samples.measurement(2).uid))
    assert broken_facts(any_store.engine) == ["1 measurement both there and deleted"]


def test_check_says_so(diode: RunCommand, any_store: Store, any_url: str) -> None:
    """`diode db check` fails with what it found, for people and for scripts."""
    any_store.write([samples.measurement(1)])
    with any_store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM timings")
    ended = diode("db", "check", "--json", "--database", any_url)
    assert ended.code == 1
    assert json.loads(ended.out)["damage"] == ["1 measurement without any timing"]
    assert "is damaged (1 measurement without any timing); restore it from a backup" in ended.err
