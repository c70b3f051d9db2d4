"""The other views over rows whose answer was worked out by hand."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from view_warehouse import CPP, TMA, VENDOR, WHOLE, A, B, C, Warehouse, estimate

from diode_store.query import analytics
from diode_store.records import Environment, Outcome, Problem, TensorSpec, TimingMethod
from diode_store.views.view_columns import view_text
from diode_store.views.view_files import VIEWS

if TYPE_CHECKING:
    from conftest import MakeMeasurement


def test_observations_show_every_timing(views: Warehouse) -> None:
    """Failures, estimates, replays and flagged ones too; only superseded measurements are left out."""
    views.measure({A: 50.0, B: estimate(B, 200.0), C: Outcome.OUT_OF_RESOURCES})
    views.measure({VENDOR: 40.0}, is_replay=True)
    views.measure({VENDOR: 41.0}, flags=("throttled",))
    views.measure({VENDOR: 42.0}, superseded_by=bytes(16))
    rows = views.ask(
        "SELECT measurement_id, config_id, runtime_us, outcome, is_estimate, is_replay, flags, is_vendor "
        "FROM observations ORDER BY measurement_id, block_m"
    )
    assert [tuple(row.values()) for row in rows] == [
        (1, "A", 50.0, "ok", False, False, None, False),
        (1, "B", 200.0, "ok", True, False, None, False),
        (1, "C", None, "out_of_resources", False, False, None, False),
        (2, "vendor", 40.0, "ok", False, True, None, True),
        (3, "vendor", 41.0, "ok", False, False, "throttled", True),
    ]


def test_best_times_of_a_problem(views: Warehouse) -> None:
    """The best of all, of the vendor's and of Triton's, by medians; what is not trusted does not count."""
    views.measure({A: 10.0, B: 12.5, VENDOR: 11.0, C: estimate(C, 1.0), CPP: 9.0})
    views.measure({A: 14.0, B: Outcome.TIMEOUT, TMA: 13.0})
    views.measure({A: 1.0}, is_replay=True)
    row = views.one("SELECT * FROM best_times")
    names = ("config_id", "best_us", "second_us", "vendor_config_id", "vendor_us", "triton_config_id", "triton_us")
    assert [row[name] for name in names] == ["cpp", 9.0, 11.0, "vendor", 11.0, "A", 12.0]
    assert (row["configs"], row["measurements"]) == (5, 2)
    assert row["tie_us"] >= row["best_us"]
    assert row["first_measured_at"] == row["last_measured_at"]


EXAMPLES = "SELECT config_id, runtime_us, outcome, is_estimate, observations FROM training_examples"


def examples(views: Warehouse) -> dict[str, tuple[Any, ...]]:
    """Return config → (runtime, outcome, is_estimate, observations)."""
    return {row["config_id"]: tuple(row.values())[1:] for row in views.ask(EXAMPLES)}


def test_training_examples_take_the_best_knowledge(views: Warehouse) -> None:
    """The median of real timings, else of estimates, else how it failed."""
    views.measure({A: 10.0, B: estimate(B, 90.0), C: Outcome.FAILED_UNSPECIFIED, TMA: estimate(TMA, 7.0)})
    views.measure({A: 30.0, B: estimate(B, 110.0), C: Outcome.OUT_OF_RESOURCES, TMA: 12.5})
    views.measure({A: 20.0, B: Outcome.TIMEOUT, C: Outcome.FAILED_UNSPECIFIED})
    views.measure({A: estimate(A, 1000.0), VENDOR: Outcome.FAILED_UNSPECIFIED})
    assert examples(views) == {
        "A": (20.0, "ok", False, 4),
        "B": (100.0, "ok", True, 3),
        "C": (None, "out_of_resources", False, 3),
        "tma": (12.5, "ok", False, 2),
        "vendor": (None, "failed_unspecified", False, 1),
    }


def test_training_examples_leave_out_what_would_bias(views: Warehouse) -> None:
    """Replays, flagged and superseded measurements, and lists that a hook had filtered."""
    views.measure({A: 50.0})
    views.measure({A: 1.0, B: 1.0}, is_replay=True)
    views.measure({A: 2.0, B: 2.0}, flags=("throttled",))
    views.measure({A: 3.0, B: 3.0}, superseded_by=bytes(16))
    views.measure({A: 4.0, B: 4.0}, choice_policy="hook:abc")
    assert examples(views) == {"A": (50.0, "ok", False, 1)}


def test_training_examples_come_in_a_stable_order(views: Warehouse, make_measurement: MakeMeasurement) -> None:
    """By hardware, environment, problem and config, so that a seed gives the same split every time."""
    for number in (3, 1, 2):
        problem = make_measurement(number).problem
        views.measure({C: 3.0, A: 1.0, B: 2.0}, problem=problem, environment=Environment(torch=str(number % 2)))
    rows = views.ask("SELECT hardware_id, environment_id, problem_id, block_m FROM training_examples")
    ids = [tuple(row.values())[:3] for row in rows]
    assert len(ids) == 9
    assert ids == sorted(ids)
    ordered = views.ask(
        "SELECT c.block_m FROM configs AS c, environments AS e, problems AS p "
        "WHERE EXISTS (FROM measurements AS m WHERE m.problem_id = p.id AND m.environment_id = e.id) "
        "ORDER BY e.id, p.id, c.id"
    )
    assert [row["block_m"] for row in rows] == [row["block_m"] for row in ordered]


def test_training_examples_describe_device_and_kernel(views: Warehouse, make_measurement: MakeMeasurement) -> None:
    """A row holds every column that features are made of."""
    described = {
        "l2_bytes": 62914560,
        "shared_memory_per_block_bytes": 232448,
        "memory_bytes": 141_000_000_000,
        "memory_bandwidth_bytes_per_s": 4_800_000_000_000,
        "max_clock_mhz": 1980,
    }
    hardware = replace(make_measurement(0).hardware, **described)
    views.measure(
        {WHOLE: 9.5}, hardware=hardware, timing_method=TimingMethod("median", regime="graph"), family="llama3-8b"
    )
    assert views.one("FROM training_examples") == {
        "hardware_id": 1,
        "hardware": "NVIDIA H200",
        "vendor": "nvidia",
        "arch": "sm_90",
        "multiprocessors": 132,
        **described,
        "environment_id": 1,
        "torch": "2.11.0+cu130",
        "regime": "graph",
        "family": "llama3-8b",
        "problem_id": 1,
        "op": "mm",
        "dtype": "bfloat16",
        "b": 1,
        "m": 64,
        "n": 256,
        "k": 128,
        "layout": "nn",
        "dimensions": None,
        "tf32": False,
        "config_id": "whole",
        "template": "triton::mm",
        "block_m": 64,
        "block_n": 32,
        "block_k": 16,
        "group_m": 8,
        "num_stages": 3,
        "num_warps": 4,
        "allow_tf32": True,
        "is_vendor": False,
        "runtime_us": 9.5,
        "outcome": "ok",
        "is_estimate": False,
        "observations": 1,
    }


def test_coverage_counts_everything_once(views: Warehouse, make_measurement: MakeMeasurement) -> None:
    """Per hardware, environment, op and dtype; superseded measurements do not count."""
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 3, 4, 5, tzinfo=UTC)
    half = Problem.create("mm", (TensorSpec("float16", (8, 8), (8, 1)), TensorSpec("float16", (8, 8), (8, 1))))
    views.measure({A: 1.0, B: estimate(B, 9.0), C: Outcome.TIMEOUT}, measured_at=late)
    views.measure({A: 1.5, VENDOR: Outcome.COMPILE_ERROR}, measured_at=early)
    views.measure({A: 2.0}, problem=make_measurement(3).problem, measured_at=None, is_replay=True)
    views.measure({TMA: 2.0}, superseded_by=bytes(16))
    views.measure({A: 3.0}, problem=half, measured_at=None)
    where = {"hardware_id": 1, "hardware": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132, "environment_id": 1}
    software = {"torch": "2.11.0+cu130", "triton": "3.6.0", "compute": "cuda 13.0", "driver": "580.95", "regime": None}
    counts = ("problems", "configs", "measurements", "timings", "failures", "estimates")
    nothing = {"first_measured_at": None, "last_measured_at": None}
    bf16 = {"first_measured_at": early.replace(tzinfo=None), "last_measured_at": late.replace(tzinfo=None)}
    assert views.ask("FROM coverage") == [
        {
            **where,
            **software,
            "op": "mm",
            "dtype": "bfloat16",
            "tf32": False,
            **dict(zip(counts, (2, 4, 3, 6, 2, 1), strict=True)),
            **bf16,
        },
        {
            **where,
            **software,
            "op": "mm",
            "dtype": "float16",
            "tf32": False,
            **dict(zip(counts, (1, 1, 1, 1, 0, 0), strict=True)),
            **nothing,
        },
    ]


GAP = (
    "SELECT vendor_config_id, vendor_template, vendor_us, triton_config_id, block_m, triton_us, speedup FROM vendor_gap"
)


def test_vendor_gap_compares_the_best_of_both(views: Warehouse) -> None:
    """Triton's best against the vendor's best; neither estimates nor other kinds of kernel take part."""
    views.measure({A: 40.0, B: 25.0, TMA: 30.0, VENDOR: 50.0, CPP: 1.0, C: estimate(C, 2.0)})
    views.measure({VENDOR: 60.0})
    assert tuple(views.one(GAP).values()) == ("vendor", "aten::mm", 55.0, "B", 128, 25.0, 2.2)


def test_vendor_gap_needs_both(views: Warehouse, make_measurement: MakeMeasurement) -> None:
    """Where one side failed or was not timed there is nothing to compare."""
    views.measure({A: 40.0, VENDOR: Outcome.RUNTIME_ERROR})
    views.measure({VENDOR: 40.0, CPP: 3.0}, problem=make_measurement(2).problem)
    assert views.ask(GAP) == []


@pytest.mark.quick(4)
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_documented(database_url: str, view: str) -> None:
    """columns.toml has a text for every column of a view, and no text for a column that the view lacks."""
    with closing(analytics.connect(database_url)) as connection:
        columns = [name for (name, *_) in connection.execute(f"DESCRIBE {view}").fetchall()]
    text = view_text(view)
    assert text.columns.keys() - set(columns) == set()
    assert all(text.column(name) for name in columns)
