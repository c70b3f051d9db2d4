"""The views that compare kernels, measurements and environments, over rows whose answer was worked out by hand."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from view_warehouse import TMA, VENDOR, A, B, C, Warehouse, estimate

from diode_store.records import Environment, Outcome, Problem, TensorSpec

if TYPE_CHECKING:
    from conftest import MakeMeasurement

OLDER = Environment(torch="2.11.0", triton="3.6.0")
NEWER = Environment(torch="2.13.0", triton="3.7.0")


def rows(views: Warehouse, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query as tuples."""
    return [tuple(row.values()) for row in views.ask(sql)]


def distrusted(views: Warehouse, us: float) -> None:
    """Measure what no view may believe: a replay, a flagged and a superseded measurement, and an estimate."""
    views.measure({A: us, B: us}, is_replay=True)
    views.measure({A: us, B: us}, flags=("throttled",))
    views.measure({A: us, B: us}, superseded_by=bytes(16))
    views.measure({A: estimate(A, us), B: Outcome.TIMEOUT})


FAMILIES = (
    "SELECT template, config_id, runtime_us, repeats, configs, rank, slowdown, is_tie, is_vendor "
    "FROM fastest_by_template"
)


def test_the_best_of_each_family(views: Warehouse) -> None:
    """Of A's 40 and 60 the median is 50, Triton's best and 25% over the vendor's 40; TMA is twice as slow as that."""
    views.measure({A: 40.0, B: 52.0, C: 55.0, VENDOR: 40.0, TMA: 80.0})
    views.measure({A: 60.0})
    distrusted(views, 1.0)
    # A's 40 and 60: the mean is 50, the variance 200, so sigma is 0.2828 and ties reach 40 x 1.5657 = 62.6.
    assert rows(views, FAMILIES) == [
        ("aten::mm", "vendor", 40.0, 1, 1, 1, 1.0, True, True),
        ("triton::mm", "A", 50.0, 2, 3, 2, 1.25, True, False),
        ("triton::mm_persistent_tma", "tma", 80.0, 1, 1, 3, 2.0, False, False),
    ]


def test_families_of_each_problem_by_themselves(views: Warehouse, make_measurement: MakeMeasurement) -> None:
    """Ranks begin anew with each problem, and problems come in the order of their ids."""
    views.measure({A: 50.0, VENDOR: 60.0})
    views.measure({A: 90.0, VENDOR: 60.0}, problem=make_measurement(3).problem)
    assert rows(views, "SELECT problem_id, rank, template FROM fastest_by_template") == [
        (1, 1, "triton::mm"),
        (1, 2, "aten::mm"),
        (2, 1, "aten::mm"),
        (2, 2, "triton::mm"),
    ]


RANKS = "SELECT config_id, runtime_us, repeats, rank, configs, slowdown, is_tie FROM config_rank"


def test_every_config_has_a_place(views: Warehouse) -> None:
    """From the fastest to the slowest; at 50 us ties reach 3.4% over the best; equal times come by id."""
    views.measure({C: 100.0, A: 50.0, VENDOR: 51.5, B: 51.5, TMA: Outcome.OUT_OF_RESOURCES})
    distrusted(views, 1.0)
    found = rows(views, RANKS)
    assert found[0] == ("A", 50.0, 1, 1, 4, 1.0, True)
    assert {row[0] for row in found[1:3]} == {"vendor", "B"}
    assert [row[1:] for row in found[1:3]] == [(51.5, 1, 2, 4, 1.03, True), (51.5, 1, 3, 4, 1.03, True)]
    assert found[3:] == [("C", 100.0, 1, 4, 4, 2.0, False)]
    ids = views.ask("SELECT config_id AS id FROM config_rank WHERE runtime_us = 51.5")
    assert ids == sorted(ids, key=lambda row: row["id"])


def test_ranks_on_one_device(views: Warehouse, make_measurement: MakeMeasurement) -> None:
    """A condition on the device by name or by id leaves the others out and changes nothing else."""
    from dataclasses import replace

    other = replace(make_measurement(0).hardware, name="NVIDIA H100")
    views.measure({A: 50.0, B: 60.0})
    views.measure({A: 70.0, B: 40.0}, hardware=other)
    expected = [("B", 40.0, 1, 1, 2, 1.0, True), ("A", 70.0, 1, 2, 2, 1.75, False)]
    assert rows(views, f"{RANKS} WHERE hardware = 'NVIDIA H100'") == expected
    assert rows(views, f"{RANKS} WHERE hardware_id = 2") == expected
    assert rows(views, f"{RANKS} WHERE hardware = 'NVIDIA H20'") == []


DISAGREEMENTS = (
    "SELECT config_id, measurements, runtime_us, lowest_us, highest_us, lowest_measurement_id, "
    "highest_measurement_id, ratio, sigma, sigmas FROM disagreements"
)


def test_measurements_that_disagree(views: Warehouse) -> None:
    """At 100 us 3.4% may be chance: A's 3% are, B's 10% and C's 51% are not; the most surprising is first."""
    views.measure({A: 100.0, B: 110.0, C: 100.0, TMA: 100.0})
    views.measure({A: 103.0, B: 100.0, C: 151.0})
    views.measure({C: 100.0, B: 105.0})
    distrusted(views, 1.0)
    assert rows(views, DISAGREEMENTS) == [
        ("C", 3, 100.0, 100.0, 151.0, 1, 2, 1.51, 0.017, pytest.approx(30.0)),
        ("B", 3, 105.0, 100.0, 110.0, 2, 1, 1.1, 0.017, pytest.approx(0.1 / 0.017)),
    ]


@pytest.mark.parametrize(("lowest", "within", "beyond"), [(5.0, 6.09, 6.11), (20.0, 22.79, 22.81), (50.0, 51.6, 51.8)])
def test_short_kernels_may_differ_more(views: Warehouse, lowest: float, within: float, beyond: float) -> None:
    """22% under 10 us, 14% under 30 us, 3.4% above."""
    views.measure({A: lowest, B: lowest})
    views.measure({A: within, B: beyond})
    assert rows(views, "SELECT config_id, highest_us FROM disagreements") == [("B", beyond)]


def test_other_environments_may_differ(views: Warehouse) -> None:
    """Times are compared where they are comparable, and nowhere else."""
    views.measure({A: 50.0})
    views.measure({A: 90.0}, environment=NEWER)
    assert views.ask("FROM disagreements") == []


REGRESSIONS = (
    "SELECT scope, torch_before, torch_after, config_id_before, config_id_after, runtime_us_before, "
    "runtime_us_after, ratio, verdict, sigma, sigmas FROM regressions"
)


def test_what_a_newer_environment_changed(views: Warehouse) -> None:
    """A became half again as slow and C twice as fast, B's 2% are noise, and so the best went from A's 100 to B's."""
    views.measure({A: 100.0, B: 120.0, C: 300.0, TMA: 500.0})
    views.measure({A: 150.0, B: 122.4, C: 150.0, VENDOR: 500.0}, environment=NEWER)
    versions = ("2.11.0+cu130", "2.13.0")
    assert rows(views, REGRESSIONS) == [
        ("best", *versions, "A", "B", 100.0, 122.4, 1.224, "slower", 0.017, pytest.approx(0.224 / 0.017)),
        ("config", *versions, "A", "A", 100.0, 150.0, 1.5, "slower", 0.017, pytest.approx(0.5 / 0.017)),
        ("config", *versions, "C", "C", 300.0, 150.0, 0.5, "faster", 0.017, pytest.approx(1 / 0.017)),
    ]


def test_a_noisy_problem_needs_a_larger_change(views: Warehouse) -> None:
    """A's 90 and 110 before make sigma 0.1414: B must become 28% slower to count, and 20% are not enough."""
    views.measure({A: 90.0, B: 200.0})
    views.measure({A: 110.0})
    views.measure({A: 100.0, B: 240.0}, environment=NEWER)
    assert views.ask("FROM regressions") == []
    views.measure({C: 50.0, B: 280.0}, environment=Environment(torch="2.14.0"))
    found = views.ask(
        "SELECT environment_id_before AS before, environment_id_after AS after, sigma FROM regressions "
        "WHERE scope = 'config'"
    )
    assert found == [
        {"before": 1, "after": 3, "sigma": pytest.approx(math.sqrt(0.02))},
        {"before": 2, "after": 3, "sigma": pytest.approx(0.017)},
    ]


def test_before_is_what_was_measured_first(views: Warehouse) -> None:
    """Whatever was stored first; where no time says so, the order of arrival does."""
    day = datetime(2026, 11, 1, tzinfo=UTC)
    views.measure({A: 10.0}, environment=NEWER, measured_at=day + timedelta(days=1))
    views.measure({A: 20.0}, environment=OLDER, measured_at=day)
    told = "SELECT torch_before, torch_after, verdict FROM regressions WHERE scope = 'config'"
    assert rows(views, told) == [(OLDER.torch, NEWER.torch, "faster")]


def test_repeats_that_are_equal_by_chance_say_nothing_of_noise(views: Warehouse) -> None:
    """Then the usual scatter holds: 1.7% from 30 us on."""
    views.measure({A: 50.0, B: 50.01})
    views.measure({A: 50.0})
    assert views.ask("SELECT tie_config_ids, sigma FROM fastest_configs") == [
        {"tie_config_ids": ["A", "B"], "sigma": 0.017}
    ]


def test_regressions_believe_only_what_they_may(views: Warehouse) -> None:
    """Estimates, failures, replays, flagged and superseded measurements show no regression."""
    views.measure({A: 50.0, B: 60.0})
    views.measure({A: 500.0}, environment=NEWER, is_replay=True)
    views.measure({A: 500.0}, environment=NEWER, flags=("throttled",))
    views.measure({A: 500.0}, environment=NEWER, superseded_by=bytes(16))
    views.measure({A: estimate(A, 500.0), B: Outcome.TIMEOUT}, environment=NEWER)
    assert views.ask("FROM regressions") == []


@pytest.mark.parametrize("view", ["fastest_configs", "fastest_by_template", "config_rank", "vendor_gap"])
def test_tf32_is_told_from_float32(views: Warehouse, view: str) -> None:
    """One product as TF32 and as plain float32 are two problems, and each row says which it is."""
    inputs = tuple(TensorSpec("float32", (64, 64), (64, 1)) for _ in range(2))
    for asked in (True, False):
        views.measure({A: 50.0, VENDOR: 60.0}, problem=Problem.create("mm", inputs, {"ALLOW_TF32": asked}))
    found = {row["tf32"] for row in views.ask(f"SELECT dtype, tf32 FROM {view}")}  # noqa: S608 - our own names
    assert found == {True, False}
