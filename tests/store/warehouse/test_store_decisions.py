"""Decisions in the warehouse: every field stored, each once, beside measurements and deleted like them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

import samples
from decided import EVERY_FIELD, decision
from diode_store.candidates.names import kernel_config
from diode_store.errors import RecordError
from diode_store.records import Environment
from diode_store.warehouse import schema
from diode_store.warehouse.soundness import broken_facts
from diode_store.warehouse.store import Store, WriteReport

if TYPE_CHECKING:
    from conftest import RunCommand

VENDOR = kernel_config("mm", {})
RARE = samples.triton_config(256, MORE=7)


def rows(store: Store) -> list[dict[str, Any]]:
    """Return the table, in order, with what the numbers stand for in their place."""
    tables = {"hardware": schema.hardware, "environment": schema.environments, "problem": schema.problems}
    with store.engine.connect() as connection:
        keys = {
            name: {row.id: row.key for row in connection.execute(sa.select(table.c.id, table.c.key))}
            for name, table in {**tables, "config": schema.configs}.items()
        }
        found = connection.execute(sa.select(schema.decisions).order_by(schema.decisions.c.id)).mappings().all()
    return [_readable(dict(row), keys) for row in found]


def _readable(row: dict[str, Any], keys: dict[str, dict[int, bytes]]) -> dict[str, Any]:
    for name in ("hardware", "environment", "problem", "config"):
        number = row.pop(f"{name}_id")
        row[name] = None if number is None else bytes(keys[name][number])
    row["kept"] = [(bytes(keys["config"][number]), us) for number, us in row["kept"]]
    row["uid"] = bytes(row["uid"])
    for name in ("decided_at", "ingested_at"):
        row[name] = row[name].replace(tzinfo=row[name].tzinfo or UTC).astimezone(UTC)
    return row


def test_every_field_is_stored(any_store: Store) -> None:
    """What a decision says is in its row, and its configs are in ``configs``."""
    before = datetime.now(UTC)
    whole = decision(1, (RARE, 9.5), (VENDOR, None), **EVERY_FIELD)
    bare = replace(decision(2), kept=(), decided_by="stock", environment=Environment())
    assert any_store.write([whole, bare]) == WriteReport(0, 0, 0, decisions=2)
    first, second = rows(any_store)
    assert before - timedelta(seconds=1) < first.pop("ingested_at") <= datetime.now(UTC)
    assert first == {
        "id": 1,
        "uid": whole.uid,
        "hardware": samples.H200.key,
        "environment": samples.ENVIRONMENT.key,
        "problem": whole.problem.key,
        "config": RARE.key,
        "predicted_us": 9.5,
        "kept": [(RARE.key, 9.5), (VENDOR.key, None)],
        "decided_by": "model",
        "reason": whole.reason,
        "policy": whole.policy,
        "mode": "adaptive",
        "decided_at": samples.MEASURED_AT,
        **EVERY_FIELD,
    }
    assert (second["config"], second["predicted_us"], second["kept"], second["extra"]) == (None, None, [], None)
    assert (second["environment"], second["decided_by"]) == (Environment().key, "stock")
    counts = any_store.counts()
    assert [counts[name] for name in ("environments", "configs", "decisions", "measurements")] == [2, 2, 2, 0]


def test_both_kinds_in_one_batch(any_store: Store) -> None:
    """They share their dimensions and their transaction, and are counted apart."""
    batch = [samples.measurement(1), decision(1), decision(1), samples.measurement(2), decision(2)]
    assert any_store.write(batch) == WriteReport(measurements=2, duplicates=1, timings=6, decisions=2)
    assert any_store.write(batch) == WriteReport(measurements=0, duplicates=5, timings=0, decisions=0)
    assert any_store.known([record.uid for record in batch] + [bytes(16)]) == {record.uid for record in batch}
    assert any_store.counts()["problems"] == 2
    with Store.open(any_store.engine.url.render_as_string(hide_password=False)) as later:
        assert later.write(batch).duplicates == 5


def test_a_value_that_cannot_be_stored_stores_nothing(any_store: Store) -> None:
    """The batch's other records can be written without it."""
    good, bad = decision(1), decision(2, hook_version=2**40, seconds=float("nan"), candidates=2**40)
    bad = replace(bad, extra={"x": object()})
    with pytest.raises(RecordError):
        any_store.write([good, samples.measurement(1), bad])
    assert (any_store.counts()["decisions"], any_store.counts()["measurements"]) == (0, 0)
    assert any_store.write([good]).decisions == 1


def test_writers_of_the_same_decisions(any_url: str) -> None:
    """Two daemons that bring the same store each once."""
    batches = [[decision(number) for number in range(start, start + 60)] for start in (0, 20, 40)]

    def write(batch: list[Any]) -> WriteReport:
        with Store.open(any_url) as store:
            return store.write(reversed(batch) if len(batch) % 2 else batch)

    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(write, batches))
    assert sum(report.decisions for report in reports) == 100
    assert sum(report.duplicates for report in reports) == 80
    with Store.open(any_url) as store:
        assert store.counts()["decisions"] == 100


def age(store: Store, uid: bytes, days: int) -> None:
    """Let a decision have come in so long ago."""
    columns = schema.decisions.c
    with store.engine.begin() as connection:
        then = datetime.now(UTC) - timedelta(days=days)
        connection.execute(sa.update(schema.decisions).where(columns.uid == uid).values(ingested_at=then))


def test_pruning_by_age(diode: RunCommand, any_store: Store) -> None:
    """Old decisions go, measurements stay, and what went does not come back until it is forgotten."""
    url = any_store.engine.url.render_as_string(hide_password=False)
    prune = ("db", "prune", "--decisions", "--older-than", "90d", "--database", url)
    batch = [decision(number) for number in range(3)]
    any_store.write([*batch, samples.measurement(1)])
    assert diode(*prune) == (0, "nothing to delete\n", "")
    for each in batch[:2]:
        age(any_store, each.uid, 100)
    said = diode(*prune)
    day = f"{datetime.now(UTC) - timedelta(days=100):%Y-%m-%d}"
    assert said.out == f"would delete 2 decisions, which came in from {day} to {day}; do it with --yes\n"
    assert json.loads(diode(*prune, "--json").out)["decisions"] == 2
    assert any_store.counts()["decisions"] == 3
    assert diode(*prune, "--yes").out == "deleted 2 decisions\n"
    counts = any_store.counts()
    assert (counts["decisions"], counts["measurements"]) == (1, 1)
    assert any_store.write(batch).duplicates == 3
    [stone] = json.loads(diode("db", "tombstones", "--json", "--database", url).out)
    assert (stone["reason"], stone["measurements"]) == ("prune --decisions --older-than 90d", 2)
    diode("db", "tombstones", "--forget", "--database", url)
    assert any_store.write(batch).decisions == 2


def test_pruning_by_hardware_or_all(diode: RunCommand, store: Store, database_url: str) -> None:
    """Nothing has to stay: --all takes every one, --hardware those for one device."""
    prune = ("db", "prune", "--decisions", "--yes", "--database", database_url)
    store.write([decision(1), decision(2, hardware=samples.H100)])
    said = diode(*prune, "--hardware", "NVIDIA H200", "--json").out
    assert json.loads(said) == {"dry_run": False, "decisions": 1}
    assert diode(*prune, "--all").out == "deleted 1 decision\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "choose the decisions with --older-than, --hardware or --all"),
        (("--replays",), "--decisions takes only --older-than, --hardware and --all"),
        (("--dataset", "d"), "--decisions takes only --older-than, --hardware and --all"),
        (("--keep", "3", "--older-than", "1d"), "--decisions takes only --older-than, --hardware and --all"),
    ],
)
def test_bad_usage(diode: RunCommand, database_url: str, store: Store, options: tuple[str, ...], said: str) -> None:
    """What decisions do not have is refused."""
    ended = diode("db", "prune", "--decisions", *options, "--yes", "--database", database_url)
    assert ended.code == 2
    assert said in " ".join(ended.err.replace("│", " ").split())


def test_the_check_knows_them(any_store: Store, diode: RunCommand) -> None:
    """Configs that JSON names and no constraint guards, and deleted decisions that are there, are found."""
    any_store.write([decision(1), decision(2)])
    assert broken_facts(any_store.engine) == []
    table = schema.decisions
    with any_store.engine.begin() as connection:
        connection.execute(sa.update(table).where(table.c.id == 1).values(kept=[[1, 2.0], [77, 3.0]]))
        stone = {"uid": decision(2).uid, "deleted_at": datetime.now(UTC), "reason": "by hand"}
        connection.execute(sa.insert(schema.tombstones), [stone])
    assert broken_facts(any_store.engine) == [
        "1 decision both there and deleted",
        "1 decision of configs that are not there",
    ]
    url = any_store.engine.url.render_as_string(hide_password=False)
    assert diode("db", "check", "--database", url).code == 1
    assert "decisions 2" in " ".join(diode("db", "stats", "--database", url).out.split())


@pytest.mark.parametrize(
    "changes", [{"reason": "another"}, {"decided_by": "stock"}, {"candidates": 7}, {"problem": samples.matmul(1, 2, 3)}]
)
def test_a_known_uid_with_another_decision_is_returned(any_store: Store, changes: dict[str, Any]) -> None:
    """The first stays, whether it came before or in the same batch."""
    first = decision(1, (RARE, 9.5), **EVERY_FIELD)
    other = replace(first, **changes)
    assert any_store.write([first, other]) == WriteReport(0, 0, 0, decisions=1, contradictions=(other,))
    assert any_store.write([other, first]) == WriteReport(0, 1, 0, contradictions=(other,))


def test_a_uid_of_the_other_kind_is_returned(any_store: Store) -> None:
    """A measurement cannot stand for a decision of its uid, nor a decision for a measurement."""
    first, second = decision(1), samples.measurement(2)
    any_store.write([first, second])
    others = replace(samples.measurement(3), uid=first.uid), replace(decision(4), uid=second.uid)
    assert any_store.write(others) == WriteReport(0, 0, 0, contradictions=others)
