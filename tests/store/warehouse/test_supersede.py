"""A newer sweep takes an earlier one's place, where it measured the same, and may give it back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from view_warehouse import A, Warehouse

import samples
from diode_store.records import Source
from diode_store.warehouse import schema

if TYPE_CHECKING:
    from conftest import RunCommand
    from diode_store.records import Measurement
    from diode_store.warehouse.store import Store

OTHER = replace(samples.ENVIRONMENT, torch="2.13.0")


def sweep(name: str, *numbers: int, **overrides: Any) -> list[Measurement]:
    """Return measurements of a sweep: number n times problem n % 10."""
    return [
        samples.measurement(
            n,
            **{"problem": samples.matmul(8 * (n % 10 + 1), 8, 8), "sweep_id": name, "source": Source.SWEEP} | overrides,
        )
        for n in numbers
    ]


def superseded(store: Store) -> dict[int, int]:
    """Return which measurement was superseded by which, by their numbers."""
    columns = schema.measurements.c
    query = sa.select(columns.uid, columns.superseded_by).where(columns.superseded_by.is_not(None))
    with store.engine.connect() as connection:
        return {int.from_bytes(uid): int.from_bytes(by) for uid, by in connection.execute(query)}


def test_what_both_measured(diode: RunCommand, any_store: Store, any_url: str) -> None:
    """The newest trusted repeat takes the place; other hardware, software, problems and doubtful repeats do not."""
    any_store.write(sweep("old", 1, 2, 3, 4, 5))
    any_store.write(sweep("new", 11, 21))
    any_store.write(sweep("new", 12, hardware=samples.H100))
    any_store.write(sweep("new", 13, environment=OTHER))
    any_store.write(sweep("new", 14, flags=("throttled",)))
    any_store.write(sweep("third", 15))
    command = ("db", "supersede", "old", "--by", "new", "--database", any_url)
    said = "1 measurement; 4 that it did not measure again stay"
    assert diode(*command).out == f"would supersede {said}; do it with --yes\n"
    assert superseded(any_store) == {}
    assert diode(*command, "--yes").out == f"superseded {said}\n"
    assert superseded(any_store) == {1: 21}
    assert json.loads(diode(*command, "--yes", "--json").out) == {"dry_run": False, "measurements": 0, "left": 4}
    assert diode("db", "supersede", "old", "--undo", "--database", any_url).out == "1 measurement restored\n"
    assert superseded(any_store) == {}


def test_the_views_follow(views: Warehouse, diode: RunCommand, database_url: str) -> None:
    """The next query takes the newer sweep's time, even a slower one, and after --undo both again."""
    question = "SELECT runtime_us FROM fastest_configs"
    views.measure({A: 10.0}, sweep_id="old")
    views.measure({A: 14.0}, sweep_id="new")
    assert views.one(question) == {"runtime_us": 12.0}
    assert diode("db", "supersede", "old", "--by", "new", "--yes", "--database", database_url).code == 0
    assert views.one(question) == {"runtime_us": 14.0}
    assert diode("db", "supersede", "old", "--undo", "--database", database_url).code == 0
    assert views.one(question) == {"runtime_us": 12.0}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("old", "--by", "old"), 1, "a sweep cannot supersede itself; name two sweeps"),
        (("old", "--by", "none"), 1, "there is no measurement of sweep none; list the sweeps with `diode query"),
        (("none", "--by", "old"), 1, "there is no measurement of sweep none"),
        (("old",), 2, "name the newer sweep with --by, or undo the replacement with --undo"),
        (("old", "--by", "new", "--undo"), 2, "name the newer sweep with --by"),
    ],
)
def test_bad_usage(
    diode: RunCommand, store: Store, database_url: str, args: tuple[str, ...], code: int, said: str
) -> None:
    """Sweeps that are not two of the warehouse's are refused in one line."""
    store.write(sweep("old", 1))
    ended = diode("db", "supersede", *args, "--yes", "--database", database_url)
    assert ended.code == code
    assert said.lower() in " ".join(ended.err.split()).lower()
