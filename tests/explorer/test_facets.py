"""What there is to choose on pages about cases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import samples
from diode_explorer.background import Background
from diode_explorer.feed import Feed
from diode_explorer.pages import PAGES
from diode_explorer.pages.cases import facet_sql
from diode_explorer.visit import Visit
from diode_store.records import Problem, TensorSpec, TimingMethod
from diode_store.warehouse.store import Store
from diode_trainer.report.parts import Note
from diode_trainer.report.questions import Question

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDER = replace(samples.ENVIRONMENT, torch="2.9.1")
OTHER = samples.H100
BMM = Problem.create("bmm", (TensorSpec("bfloat16", (4, 64, 64), (4096, 64, 1)),) * 2)


@pytest.fixture
def feed(database_url: str) -> Iterator[Feed]:
    """Return a warehouse of two devices, each measured in an environment of its own."""
    with Store.open(database_url) as store:
        store.write(
            [
                samples.measurement(
                    1, problem=samples.matmul(512, 512, 512), timing_method=TimingMethod(regime="graph"), family="mine"
                )
            ]
        )
        store.write([samples.measurement(2, problem=BMM, hardware=OTHER, environment=OLDER)])
    with Feed(database_url) as feed:
        yield feed


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "filters", "there"),
    [
        ("device", {}, [OTHER.name, samples.H200.name]),
        ("device", {"op": "bmm"}, [OTHER.name]),
        ("device", {"device": samples.H200.name}, [OTHER.name, samples.H200.name]),
        ("op", {"device": samples.H200.name}, ["mm"]),
        ("family", {}, ["mine"]),
        ("family", {"device": OTHER.name}, []),
        ("regime", {"device": OTHER.name}, ["(unknown)"]),
        ("environment", {"device": OTHER.name}, [OLDER.key.hex()]),
        ("environment", {"device": OTHER.name, "op": "mm"}, []),
        ("op", {"m": 512}, ["mm"]),
    ],
)
def test_what_was_measured_together(feed: Feed, name: str, filters: dict[str, str | int], there: list[str]) -> None:
    """A facet offers what has cases with the other choices, and all that it had beside its own."""
    answer = Visit(feed.state, {}).ask(Question(facet_sql(name, filters), filters))
    assert [row[0] for row in answer.rows] == there


@pytest.mark.quick(1)
@pytest.mark.parametrize("page", ["coverage", "model", "problem"])
def test_whatever_is_offered_can_be_chosen(feed: Feed, database_url: str, page: str) -> None:
    """A page shows something with each case that it offers, also where another device is the usual one."""
    names = [each for each in ("device", "environment", "regime", "op", "family") if PAGES[page].parameter(each)]
    with Background(database_url) as background:
        for name in names:
            for value, *_ in Visit(feed.state, {}).ask(Question(facet_sql(name, {}))).rows:
                filters = {**PAGES[page].implied(), name: value}
                parts = list(PAGES[page].parts(Visit(feed.state, filters, background=background)))
                said = [part.text for part in parts if isinstance(part, Note)]
                assert not [text for text in said if "Nothing" in text], (name, value)
