"""The view `fastest_configs` over rows whose answer was worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from view_warehouse import TMA, VENDOR, A, B, C, Warehouse, estimate

from diode_store.records import Environment, Outcome, TimingMethod

if TYPE_CHECKING:
    from conftest import MakeMeasurement

FASTEST = """
SELECT config_id, runtime_us, runner_up_config_id, runner_up_us, tie_config_ids, sigma, repeats, configs
FROM fastest_configs
"""
HIDDEN = TimingMethod("median", flush_l2=True, launch_hidden=True)


def fastest(
    config: str, us: float, runner_up: str | None, its_us: float | None, ties: list[str], sigma: float, **counts: int
) -> dict[str, Any]:
    """Return a row of ``FASTEST``."""
    return {
        "config_id": config,
        "runtime_us": us,
        "runner_up_config_id": runner_up,
        "runner_up_us": its_us,
        "tie_config_ids": ties,
        "sigma": sigma,
        "repeats": 1,
        "configs": 1,
        **counts,
    }


def test_fastest_is_the_lowest_median(views: Warehouse) -> None:
    """A single lucky run does not win: A's median of 99 is behind B's 95, though A once took 80."""
    views.measure({A: 99.0, B: 95.0, VENDOR: 300.0})
    views.measure({A: 80.0})
    views.measure({A: 140.0})
    row = views.one(FASTEST)
    assert (row["config_id"], row["runtime_us"], row["repeats"]) == ("B", 95.0, 1)
    assert (row["runner_up_config_id"], row["runner_up_us"], row["configs"]) == ("A", 99.0, 3)


def test_sigma_comes_from_repeats(views: Warehouse) -> None:
    """Of A's 90 and 110 the mean is 100 and the variance 200, so sigma is sqrt(0.02) and ties reach 1.2828 x 98."""
    views.measure({A: 90.0, B: 98.0, C: 125.5, TMA: 126.0})
    views.measure({A: 110.0})
    sigma = math.sqrt(0.02)
    assert 98 * (1 + 2 * sigma) == pytest.approx(125.72, abs=0.01)
    expected = fastest("B", 98.0, "A", 100.0, ["B", "A", "C"], pytest.approx(sigma), configs=4)
    assert views.one(FASTEST) == expected


def test_sigma_pools_what_was_repeated(views: Warehouse) -> None:
    """A was timed 3 times (relative variance 0.01, 2 degrees of freedom), B twice (0.0002, 1): together 0.0067333."""
    for a, b in ((90.0, 198.0), (100.0, 202.0)):
        views.measure({A: a, B: b})
    views.measure({A: 110.0, C: 500.0})
    row = views.one(FASTEST)
    assert row["sigma"] == pytest.approx(math.sqrt((2 * 0.01 + 0.0002) / 3))
    assert (row["config_id"], row["runtime_us"], row["repeats"], row["configs"]) == ("A", 100.0, 3, 3)
    assert row["tie_config_ids"] == ["A"]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("best", "inside", "outside", "sigma"),
    [
        (5.0, 6.09, 6.11, 0.11),
        (9.99, 12.18, 12.19, 0.11),
        (10.0, 11.39, 11.41, 0.07),
        (29.0, 33.05, 33.07, 0.07),
        (30.0, 31.01, 31.03, 0.017),
        (1000.0, 1033.0, 1035.0, 0.017),
    ],
)
def test_sigma_without_repeats(views: Warehouse, best: float, inside: float, outside: float, sigma: float) -> None:
    """With launches timed, short kernels scatter more: 11% under 10 us, 7% under 30, 1.7% above; ties reach two."""
    views.measure({C: outside, A: best, B: inside})
    assert views.one(FASTEST) == fastest("A", best, "B", inside, ["A", "B"], sigma, configs=3)


@pytest.mark.parametrize(
    ("best", "inside", "outside", "sigma"),
    [
        (5.0, 5.16, 5.18, 0.017),
        (10.0, 10.19, 10.21, 0.010),
        (29.0, 29.57, 29.59, 0.010),
        (30.0, 30.95, 30.97, 0.016),
    ],
)
def test_sigma_with_hidden_launches(views: Warehouse, best: float, inside: float, outside: float, sigma: float) -> None:
    """Where launches were hidden, ties are those of what `diode-collect agreement` measured: 1.7%, 1.0% and 1.6%."""
    views.measure({C: outside, A: best, B: inside}, timing_method=HIDDEN)
    assert views.one(FASTEST) == fastest("A", best, "B", inside, ["A", "B"], sigma, configs=3)


def test_sigma_of_several_methods(views: Warehouse) -> None:
    """Where only some times were taken with hidden launches, the larger scatter counts."""
    views.measure({A: 5.0}, timing_method=HIDDEN)
    views.measure({B: 6.0})
    assert views.one(FASTEST) == fastest("A", 5.0, "B", 6.0, ["A", "B"], 0.11, configs=2)


def test_equal_times_give_a_stable_order(views: Warehouse) -> None:
    """Among equals the lowest config id is first, and the rest follow by id."""
    views.measure({C: 50.0, A: 50.0, VENDOR: 50.0, B: 50.0})
    ids = [row["config_id"] for row in views.ask("SELECT id AS config_id FROM configs ORDER BY id")]
    assert views.one(FASTEST) == fastest(ids[0], 50.0, ids[1], 50.0, ids, 0.017, configs=4)


def test_a_single_config_has_no_runner_up(views: Warehouse) -> None:
    """What was not measured is NULL."""
    views.measure({A: 50.0})
    assert views.one(FASTEST) == fastest("A", 50.0, None, None, ["A"], 0.017)


def test_fastest_believes_only_what_it_may(views: Warehouse) -> None:
    """Estimates, failures, replays, flagged and superseded measurements never win."""
    views.measure({A: 50.0, B: estimate(B, 1.0), C: Outcome.TIMEOUT})
    views.measure({B: 2.0}, is_replay=True)
    views.measure({B: 3.0}, flags=("throttled",))
    views.measure({B: 4.0}, superseded_by=bytes(16))
    assert views.one(FASTEST) == fastest("A", 50.0, None, None, ["A"], 0.017)


def test_fastest_counts_what_a_hook_left_over(views: Warehouse) -> None:
    """A time counts whichever policy listed the choices."""
    views.measure({A: 50.0}, choice_policy="hook:abc")
    assert views.one(FASTEST)["config_id"] == "A"


def test_a_problem_without_a_good_timing_has_no_fastest(views: Warehouse) -> None:
    """Failures and estimates make no row."""
    views.measure({A: estimate(A, 9.0), B: Outcome.COMPILE_ERROR})
    assert views.ask(FASTEST) == []


def test_each_hardware_environment_and_problem_by_itself(views: Warehouse, make_measurement: MakeMeasurement) -> None:
    """Times are compared where they are comparable, and nowhere else."""
    base = make_measurement(0)
    views.measure({A: 50.0, B: 60.0})
    views.measure({A: 90.0, B: 60.0}, environment=Environment(torch="2.13.0"))
    views.measure({A: 30.5, B: 31.0}, hardware=replace(base.hardware, name="NVIDIA H100"))
    views.measure({C: 70.0}, problem=make_measurement(5).problem)
    rows = views.ask("SELECT hardware, torch, m, config_id, runtime_us FROM fastest_configs ORDER BY ALL")
    assert [tuple(row.values()) for row in rows] == [
        ("NVIDIA H100", "2.11.0+cu130", 64, "A", 30.5),
        ("NVIDIA H200", "2.11.0+cu130", 64, "A", 50.0),
        ("NVIDIA H200", "2.11.0+cu130", 69, "C", 70.0),
        ("NVIDIA H200", "2.13.0", 64, "B", 60.0),
    ]


def test_fastest_shows_the_problem_and_the_kernel(views: Warehouse) -> None:
    """Everything needed to read a row, or to run its kernel, is in it."""
    views.measure({TMA: 50.0})
    row = views.one(
        "SELECT vendor, arch, multiprocessors, op, dtype, b, m, n, k, layout, inputs, scalars, template, block_m, "
        "block_n, num_stages, num_warps, kwargs, is_vendor FROM fastest_configs"
    )
    inputs = '[["bfloat16", [64, 128], [128, 1]], ["bfloat16", [128, 256], [256, 1]]]'
    assert tuple(row.values()) == (
        *("nvidia", "sm_90", 132, "mm", "bfloat16", 1, 64, 256, 128, "nn", inputs, "[]"),
        *("triton::mm_persistent_tma", 512, None, 3, 8, "[]", False),
    )
