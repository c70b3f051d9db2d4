"""The page of decisions: what the hook chose, by whom, what it cost, and what is not known of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import samples
from decided import POLICY, decision
from diode_explorer.feed import Feed
from diode_explorer.judging.models import known_models
from diode_explorer.pages import PAGES
from diode_explorer.pages.decisions.page import DECISIONS
from diode_explorer.rendering import linked, shown
from diode_explorer.visit import Visit
from diode_store.candidates.names import kernel_config
from diode_store.query.results import run_query
from diode_store.warehouse.store import Store
from diode_trainer.report.parts import Command, Facts, Note, Picture, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_explorer.rendering import Shown

VENDOR = kernel_config("mm", {})
SLOW, FAST, NEVER = (samples.triton_config(block) for block in (16, 32, 64))
SHIPPED = next(model.card.sha256 for model in known_models() if model.card)
OTHER = "b" * 64
RUNTIMES = (10.0, 15.0, 8.0)
"""Of the vendor's kernel, of the slow one and of the fast one."""


def measured(number: int, **fields: Any) -> Any:
    """Return a measurement of three kernels."""
    times = dict(zip((VENDOR, SLOW, FAST), RUNTIMES, strict=True))
    return samples.measurement(number, timings=samples.timings_of(times), **fields)


def picked(number: int, config: Any, **fields: Any) -> Any:
    """Return a decision for one kernel, by the shipped model on one machine unless told otherwise."""
    problem = fields.pop("of", number)
    usual = {"model_sha256": SHIPPED, "host": "gpu-1", "seconds": 0.01, "p_within_2pct": 0.9, "candidates": 900}
    return decision(number, (config, 9.0), **{"problem": samples.measurement(problem).problem, **usual, **fields})


@pytest.fixture
def database(database_url: str) -> str:
    """Return a warehouse of three measured problems, on which was decided, and one that was not measured."""
    abstained = {"kept": (), "candidates": 0, "model_sha256": None, "host": "gpu-2"}
    before = samples.MEASURED_AT - timedelta(days=1)
    with Store.open(database_url) as store:
        store.write([measured(1), measured(2), measured(3)])
        store.write(
            [
                picked(11, FAST, of=1),
                picked(12, SLOW, of=2),
                picked(13, FAST, of=2, decided_at=before),  # not its latest one
                picked(14, VENDOR, of=3, model_sha256=OTHER, mode="zero", policy="zero/1", host="gpu-2"),
                picked(15, NEVER, of=3),
                picked(16, FAST, of=9),
                picked(17, FAST, of=1, failure="CompilationError: no room"),
                replace(picked(18, FAST, decided_by="vendor", reason="dtype: unknown; short"), **abstained),
                replace(picked(19, FAST, decided_by="stock", reason="shape: too large"), **abstained),
                replace(picked(20, FAST, decided_by="stock", reason="shape: too small"), **abstained),
                replace(picked(21, FAST, decided_by="stock", reason="shape: too small"), **abstained),
            ]
        )
    return database_url


def page(feed: Feed, **filters: str) -> dict[str, Shown]:
    """Return the parts of the page by their names."""
    visit = Visit(feed.state, DECISIONS.parse([*filters.items()]))
    return {each.part.name: each for each in shown(DECISIONS.parts(visit), visit)}


def facts(found: Mapping[str, Shown]) -> dict[str, str]:
    """Return the facts: label → value."""
    part = found["summary"].part
    assert isinstance(part, Facts)
    return {fact.label: fact.value for fact in part.facts}


def rows(found: Mapping[str, Shown], name: str) -> list[dict[str, Any]]:
    """Return the rows of a part."""
    answer = found[name].answer
    assert answer is not None
    return answer.dicts()


def test_what_was_decided_and_what_it_cost(database: str) -> None:
    """Of the latest picks those that were measured have a regret: 8 of 8, 15 of 8 and 10 of 8 us."""
    with Feed(database) as feed:
        found = page(feed)
    assert facts(found) == {
        "decisions": "11",
        "by a model": "63.6%",
        "by a picks file": "0.0%",
        "by neither": "36.4%",
        "regret": f"{(15 / 8 * 10 / 8) ** (1 / 3):.4f}",
        "within 2%": "33.3%",
        "worst": "1.88",
        "relative to the vendor": f"{(0.8 * 1.5) ** (1 / 3):.3f}",
        "not measured yet": "2 picks",
        "not compiled": "1",
        "the hook took": "10.0 ms",
    }
    worst = rows(found, "worst")
    assert [(row["regret"], row["pick"]) for row in worst] == [
        (1.875, "triton::mm 16x64x32 s3 w4"),
        (1.25, "aten::mm"),
        (1.0, "triton::mm 32x64x32 s3 w4"),
    ]
    assert [row["model"] for row in worst] == ["v4_model", OTHER[:12], "v4_model"]
    assert [row["decisions"] for row in worst] == [2, 1, 1]
    policies = {(row["decided_by"], row["model"], row["policy"]): row for row in rows(found, "policies")}
    assert {key: row["decisions"] for key, row in policies.items()} == {
        ("model", "v4_model", POLICY): 6,
        ("stock", None, POLICY): 3,
        ("vendor", None, POLICY): 1,
        ("model", OTHER[:12], "zero/1"): 1,
    }
    assert policies["model", "v4_model", POLICY]["regret"] == pytest.approx((15 / 8) ** 0.5)
    assert policies["model", "v4_model", POLICY]["measured"] == 2


def test_the_costliest_lead_to_their_problem(database: str) -> None:
    """So do the points of the picture; a problem that was never measured has no page."""
    with Feed(database) as feed:
        asked = Visit(feed.state, {})
        found = page(feed)
    part = found["worst"].part
    assert isinstance(part, Table)
    link = part.columns[0].link
    assert link is not None
    address = f"/problem?problem={samples.measurement(2).problem.key.hex()}&device=NVIDIA+H200"
    to = linked(link, rows(found, "worst")[0], DECISIONS, asked, PAGES)
    assert (to or "").startswith(address)
    spec = found["predicted"].spec
    assert spec is not None
    points = spec["layer"][-1]["data"]["values"]
    assert points[-1]["address"] == to
    assert [point["loss_pct"] for point in points] == [0.0, 25.0, 87.5]
    unmeasured = {row["problem_key"]: linked(link, row, DECISIONS, asked, PAGES) for row in rows(found, "unmeasured")}
    assert unmeasured[samples.measurement(9).problem.key.hex()] is None
    assert unmeasured[samples.measurement(3).problem.key.hex()] is not None


def test_what_measures_the_rest(database: str) -> None:
    """The problems of which the pick was never timed, as options of `diode-collect`."""
    with Feed(database) as feed:
        part = page(feed)["measure"].part
    assert isinstance(part, Command)
    shapes = "--shape mm:67x256x128/nn/bf16 --shape mm:73x256x128/nn/bf16"
    assert part.command == f"diode-collect {shapes} --search-space EXHAUSTIVE"
    assert part.text.startswith("Run this on a machine with NVIDIA H200, then `diode-ingest --once`.")


def test_why_no_model_decided(database: str) -> None:
    """By the reason's first word and who chose instead, with the most common reason; failures are beside."""
    with Feed(database) as feed:
        found = page(feed)
    assert [
        (row["why"], row["decided_by"], row["decisions"], row["example"]) for row in rows(found, "abstentions")
    ] == [("shape", "stock", 3, "shape: too small"), ("dtype", "vendor", 1, "dtype: unknown; short")]
    assert [(row["failure"], row["decisions"]) for row in rows(found, "failures")] == [("CompilationError: no room", 1)]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("filters", "decisions", "measured_picks"),
    [
        ({"model": OTHER}, "1", 1),
        ({"mode": "zero"}, "1", 1),
        ({"policy": POLICY}, "10", 2),
        ({"decided_by": "stock"}, "3", 0),
        ({"machine": "gpu-2"}, "5", 1),
        ({"machine": "gpu-1"}, "6", 2),
        ({"op": "mm", "dtype": "bfloat16", "device": "NVIDIA H200"}, "11", 3),
        ({"dtype": "float16"}, "0", 0),
    ],
)
def test_filters(database: str, filters: dict[str, str], decisions: str, measured_picks: int) -> None:
    """Each narrows the decisions and their picks alike."""
    with Feed(database) as feed:
        found = page(feed, **filters)
    assert (facts(found)["decisions"], len(rows(found, "worst"))) == (decisions, measured_picks)


def test_its_sql_runs_as_it_is(database: str) -> None:
    """Every query of the page, in a connection where nothing was worked out before, gives the same rows."""
    from diode_store.query.analytics import connect

    with Feed(database) as feed, connect(database) as connection:
        found = page(feed, machine="gpu-1")
        for each in found.values():
            if isinstance(each.part, Table | Picture) and each.sql is not None and each.answer is not None:
                answered = list(run_query(connection, each.sql))
                assert answered[: len(each.answer.rows)] == list(each.answer.rows), each.part.name


def test_the_shares_of_the_picture(database: str) -> None:
    """Half of the shipped model's measured picks lose nothing, all lose at most 87.5%."""
    with Feed(database) as feed:
        spec = page(feed)["regret"].spec
    assert spec is not None
    curves = [(row["ranking"], row["loss_pct"], row["share_pct"]) for row in spec["data"]["values"]]
    assert curves == [("v4_model", 0.0, 50), ("v4_model", 87.5, 100), (OTHER[:12], 25.0, 100)]


def test_without_decisions(database_url: str) -> None:
    """It says how they come here."""
    with Feed(database_url) as feed:
        (part,) = DECISIONS.parts(Visit(feed.state, {}))
    assert isinstance(part, Note)
    assert "`DIODE_SPOOL`" in part.text
