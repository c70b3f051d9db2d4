"""The view of what the hook's picks cost, over rows whose answer was worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from view_warehouse import TMA, VENDOR, A, B, C, Warehouse

import samples
from diode_store.records import Environment, Outcome, TimingMethod

if TYPE_CHECKING:
    from conftest import MakeMeasurement

EARLIER, LATER = (datetime(2026, 11, day, tzinfo=UTC) for day in (20, 21))
GRAPH = TimingMethod("median", flush_l2=True, launch_hidden=True, regime="graph")
TIMES = "config_id, picked_us, best_config_id, best_us, regret, is_tie"


def rows(views: Warehouse, columns: str, rest: str = "") -> list[tuple[Any, ...]]:
    """Return the rows of the view as tuples."""
    return [tuple(row.values()) for row in views.ask(f"SELECT {columns} FROM regret {rest}")]  # noqa: S608 - ours


def test_a_pick_against_the_best(views: Warehouse) -> None:
    """The pick took 50 us where 40 would do: a quarter more, which is beyond noise; everything known is beside it."""
    views.measure({A: 50.0, B: 40.0, C: 60.0, VENDOR: 45.0, TMA: Outcome.TIMEOUT})
    views.decide(
        (A, 38.0), (VENDOR, 44.0), (TMA, 50.0), candidates=1401, predicted_vendor_us=44.0, p_within_2pct=0.5,
        model_sha256="a" * 64, decided_at=EARLIER,
    )  # fmt: skip
    [row] = views.ask("FROM regret")
    shown = ("problem_id", "op", "m", "hardware", "torch", "template", "block_m", "is_vendor", "predicted_us", "kept")
    assert [row[name] for name in shown] == [
        *(1, "mm", 64, "NVIDIA H200", "2.11.0+cu130", "triton::mm", 64, False, 38.0, 3)
    ]
    assert [row[name.strip()] for name in TIMES.split(",")] == ["A", 50.0, "B", 40.0, 1.25, False]
    assert (row["best_template"], row["kept_us"], row["vendor_us"]) == ("triton::mm", 45.0, 45.0)
    assert (row["predicted_vendor_us"], row["p_within_2pct"], row["candidates"], row["configs"]) == (44.0, 0.5, 1401, 4)
    assert (row["decided_by"], row["observed"], row["mode"]) == ("model", False, "adaptive")
    assert (row["policy"], row["model_sha256"]) == ("adaptive/3/1.1/model's", "a" * 64)
    assert (row["decided_at"], row["decisions"]) == (EARLIER.replace(tzinfo=None), 1)


def test_what_ties_is_no_loss(views: Warehouse) -> None:
    """Within noise of the best a pick is as good: 40.5 of 40 us."""
    views.measure({A: 40.5, B: 40.0}, timing_method=GRAPH)
    views.decide((A, 38.0))
    assert rows(views, "regret, is_tie, regime") == [(40.5 / 40, True, "graph")]


def test_what_was_never_measured_is_null(views: Warehouse, make_measurement: MakeMeasurement) -> None:
    """A pick that nobody timed has no regret, beside what is known of its problem; nor has a problem nobody timed."""
    views.measure({B: 40.0})
    views.measure({A: 1.0}, is_replay=True)
    views.measure({A: 1.0}, flags=("throttled",))
    views.measure({A: 1.0}, superseded_by=bytes(16))
    views.measure({A: Outcome.RUNTIME_ERROR})
    views.decide((A, 38.0))
    views.decide((C, 1.0), problem=make_measurement(5).problem)
    assert rows(views, TIMES) == [("A", None, "B", 40.0, None, None), ("C", None, None, None, None, None)]
    assert rows(views, "environment_id, regime, configs", "WHERE m = 69") == [(None, None, None)]


def test_the_vendors_kernels_alone_are_no_best(views: Warehouse) -> None:
    """Beside nothing else a pick of the vendor's has no regret; a sample of the same problem tells what it is."""
    views.measure({VENDOR: 50.0}, search_space="VENDOR")
    views.decide((VENDOR, 48.0))
    assert rows(views, TIMES) == [("vendor", None, None, None, None, None)]
    views.measure({VENDOR: 50.0, A: 40.0}, search_space="GUIDED:12")
    assert rows(views, TIMES) == [("vendor", 50.0, "A", 40.0, 1.25, False)]


def test_the_latest_decision_counts(views: Warehouse) -> None:
    """One row a (hardware, problem, model, policy, decided by, observed), whatever the environment."""
    views.measure({A: 50.0, B: 40.0})
    newer = replace(samples.ENVIRONMENT, torch="2.13.0")
    views.decide((B, 1.0), decided_at=LATER, environment=newer)
    views.decide((A, 1.0), decided_at=EARLIER)
    assert rows(views, "config_id, decisions, regret") == [("B", 2, 1.0)]
    views.decide((A, 1.0), decided_at=EARLIER, model_sha256="b" * 64)
    views.decide((A, 1.0), decided_at=EARLIER, policy="zero/3/1.1")
    views.decide((A, 1.0), decided_at=EARLIER, observed=True)
    views.decide((A, 1.0), decided_at=EARLIER, decided_by="picks")
    assert rows(views, "config_id, decisions, regret", "ORDER BY decided_at DESC") == [
        ("B", 2, 1.0),
        *[("A", 1, 1.25)] * 4,
    ]


def test_other_hardware_is_another_problem(views: Warehouse) -> None:
    """Times of another device say nothing of a pick."""
    views.measure({A: 50.0, B: 40.0}, hardware=samples.H100)
    views.decide((A, 1.0))
    assert rows(views, TIMES) == [("A", None, None, None, None, None)]


def test_decisions_without_a_pick_are_left_out(views: Warehouse) -> None:
    """Neither where the model did not decide, nor where the pick could not be compiled, a pick was deployed."""
    views.measure({A: 50.0, B: 40.0})
    views.decide((A, 1.0), failure="CompilationError: no", decided_at=LATER)
    assert rows(views, TIMES) == []
    views.decide((B, 1.0), decided_at=EARLIER)
    assert rows(views, "config_id, decisions") == [("B", 1)]


def test_a_vendors_pick_is_one(views: Warehouse) -> None:
    """Where the model keeps the vendor's kernel, that is the pick."""
    views.measure({A: 50.0, VENDOR: 100.0})
    views.decide((VENDOR, 44.0))
    assert rows(views, "is_vendor, picked_us, vendor_us, regret") == [(True, 100.0, 100.0, 2.0)]


OLD, NEW = Environment(torch="2.11.0"), Environment(torch="2.13.0")


@pytest.mark.quick(1)
@pytest.mark.parametrize("reverse", [False, True])
def test_one_case_is_compared(views: Warehouse, reverse: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """Where the pick was measured; of several in the regime nearest to deployment; then in its own environment."""
    cases: list[tuple[dict[Any, float], dict[str, Any]]] = [
        ({B: 10.0}, {"environment": NEW, "timing_method": GRAPH}),
        ({A: 30.0, B: 20.0}, {"environment": OLD, "timing_method": replace(GRAPH, regime="read_flush")}),
        ({A: 44.0, B: 40.0}, {"environment": NEW, "timing_method": replace(GRAPH, regime="read_flush")}),
        ({A: 90.0, B: 30.0, C: 35.0}, {"environment": NEW}),
    ]
    for times, fields in reversed(cases) if reverse else cases:
        views.measure(times, **fields)
    views.decide((A, 1.0), environment=NEW)
    assert rows(views, "torch, regime, picked_us, best_us") == [("2.13.0", "read_flush", 44.0, 40.0)]
    views.decide((A, 1.0), environment=OLD, decided_at=LATER)
    assert rows(views, "torch, regime, picked_us, best_us") == [("2.11.0", "read_flush", 30.0, 20.0)]
    views.decide((C, 1.0), environment=OLD, model_sha256="c")
    assert rows(views, "torch, regime, picked_us", "WHERE model_sha256 = 'c'") == [("2.13.0", None, 35.0)]
