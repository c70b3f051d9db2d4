"""Times that cannot be true are shown with a reason and count nowhere else."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from view_warehouse import VENDOR, A, B, C, Warehouse

import samples
from diode_store.devices.descriptor import describe
from diode_store.records import Hardware, Problem, TensorSpec, Timing
from diode_store.timing.plausible import Bound, bound_of, implausible
from diode_store.timing.roofline import roofline

if TYPE_CHECKING:
    from conftest import MakeMeasurement

LARGE = samples.matmul(4096, 4096, 4096)
"""It takes an H200 141 us at its peaks."""
UNKNOWN = Hardware("acme", "Acme 1", "acme_1", 7)
RANKED = {
    "fastest_configs": "config_id",
    "fastest_configs AS ties": "unnest(tie_config_ids)",
    "fastest_by_template": "config_id",
    "config_rank": "config_id",
    "best_times": "config_id",
    "vendor_gap": "triton_config_id",
    "rooflines": "config_id",
    "training_examples": "config_id",
    "disagreements": "config_id",
    "regressions": "config_id_after",
}
"""Every view that ranks or teaches, and its column with configs."""
KNOWN = " UNION ".join(
    f"SELECT '{view}' AS place, {column} AS config_id FROM {view}"  # noqa: S608 - ours
    for view, column in RANKED.items()
)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("hardware", "problem", "timing", "reason"),
    [
        (samples.H200, LARGE, Timing(A, 5e-324), "4.94e-324 us is under a tenth of the roofline, 141 us"),
        (samples.H200, LARGE, Timing(A, 1e-300), "1e-300 us is under a tenth of the roofline, 141 us"),
        (
            samples.H200,
            LARGE,
            Timing(A, 0.2),
            "0.2 us is under a tenth of the roofline, 141 us; it may be in milliseconds",
        ),
        (
            samples.H200,
            LARGE,
            Timing(A, 2e-4),
            "0.0002 us is under a tenth of the roofline, 141 us; it may be in seconds",
        ),
        (
            samples.H200,
            LARGE,
            Timing(A, 14.0),
            "14 us is under a tenth of the roofline, 141 us; it may be in milliseconds",
        ),
        (
            UNKNOWN,
            LARGE,
            Timing(A, 0.008),
            "0.008 us is under 0.3 us, the shortest believable time; it may be in milliseconds",
        ),
        (samples.H200, LARGE, Timing(A, 150.0, p10_us=99.0, p90_us=1.0), "p10 of 99 us is above p90 of 1 us"),
        (samples.H200, LARGE, Timing(A, 15.0), None),
        (samples.H200, LARGE, Timing(A, 150.0, p10_us=140.0, p90_us=140.0), None),
        (UNKNOWN, LARGE, Timing(A, 0.31), None),
    ],
)
def test_an_impossible_time_counts_nowhere(
    views: Warehouse, hardware: Hardware, problem: Problem, timing: Timing, reason: str | None
) -> None:
    """Whatever makes it impossible, and the good timings beside it count as before."""
    views.measure({A: timing, B: 200.0, C: 300.0, VENDOR: 400.0}, hardware=hardware, problem=problem)
    views.measure({A: timing, B: 200.0, C: 390.0, VENDOR: 400.0}, hardware=hardware, problem=problem)
    later = replace(samples.ENVIRONMENT, torch="2.12.0")
    views.measure({A: timing, B: 150.0, C: 390.0}, hardware=hardware, problem=problem, environment=later)
    assert views.ask("SELECT DISTINCT implausible FROM observations WHERE block_m = 64") == [{"implausible": reason}]
    assert implausible(timing.runtime_us, timing.p10_us, timing.p90_us, bound_of(problem, hardware)) == reason
    known: dict[str, set[str]] = defaultdict(set)
    for row in views.ask(KNOWN):
        known[row["place"]].add(row["config_id"])
    if reason is None:
        assert known["training_examples"] == {"A", "B", "C", "vendor"}
    else:
        assert {name for name, configs in known.items() if "A" in configs} == set()
        assert known["fastest_configs"] == {"B"}
        assert known["training_examples"] == {"B", "C", "vendor"}


def test_a_shared_matrix_may_stay_in_the_cache(views: Warehouse) -> None:
    """A stride of 0 repeats a matrix, so that its traffic is no bound; that of the result is."""
    shared = TensorSpec("bfloat16", (512, 4096, 64), (0, 64, 1))
    problem = Problem.create("bmm", (TensorSpec("bfloat16", (512, 1, 4096), (4096, 4096, 1)), shared))
    views.measure({A: 5.0}, problem=problem)
    assert views.one("SELECT implausible FROM observations") == {"implausible": None}
    whole = roofline(problem.shape, describe(samples.H200)).us
    assert (bound_of(problem, samples.H200).least_us, whole > 50) == (0.3, True)


def test_a_bias_repeats_no_matrix() -> None:
    """The bias of an addmm is broadcast, which says nothing of its matrices."""
    bias = TensorSpec("bfloat16", (4096,), (1,))
    problem = Problem.create("addmm", (bias, *LARGE.inputs))
    assert bound_of(problem, samples.H200) == bound_of(LARGE, samples.H200)


@pytest.mark.parametrize("year", [1969, 2199])
def test_a_clock_that_is_far_off_dates_nothing(views: Warehouse, make_measurement: MakeMeasurement, year: int) -> None:
    """Its times count, and what it said is kept beside."""
    moment = datetime(year, 1, 2, tzinfo=UTC)
    views.measure({A: 5.0}, measured_at=moment)
    views.measure({A: 5.0}, measured_at=moment, environment=replace(samples.ENVIRONMENT, torch="2.12.0"))
    row = views.ask("SELECT measured_at, wrong_measured_at, implausible FROM observations")[0]
    assert row == {"measured_at": None, "wrong_measured_at": moment.replace(tzinfo=None), "implausible": None}
    assert [each["last_measured_at"] for each in views.ask("SELECT last_measured_at FROM best_times")] == [None, None]


def test_a_clock_may_be_a_little_ahead(views: Warehouse) -> None:
    """An hour is a time zone that somebody forgot, not a clock that is off."""
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    views.measure({A: 5.0}, measured_at=moment)
    row = views.one("SELECT measured_at, wrong_measured_at FROM observations")
    assert row == {"measured_at": moment.replace(tzinfo=None), "wrong_measured_at": None}


def test_the_bound_without_peaks() -> None:
    """Only the floor is known of a device that nobody described."""
    assert bound_of(LARGE, UNKNOWN) == Bound(0.3, None)


def test_the_share_of_the_roofline(views: Warehouse) -> None:
    """Worked out by hand: 2 x 4096^3 operations in 200 us, of a peak of 7.49 TFLOP/s times 132."""
    views.measure({A: 200.0}, problem=LARGE)
    row = views.one("SELECT * FROM rooflines")
    expected: dict[str, Any] = {
        "tflops": 2 * 4096**3 / 200e-6 / 1e12,
        "peak_tflops": 7.49 * 132,
        "gb_per_s": 3 * 2 * 4096**2 / 200e-6 / 1e9,
        "peak_gb_per_s": 4800.0,
        "roofline_us": 1e6 * 2 * 4096**3 / (7.49e12 * 132) + 2,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["limited_by"] == "compute"
    assert row["roofline_share"] == pytest.approx(expected["roofline_us"] / 200)


def test_devices_have_their_peaks(views: Warehouse) -> None:
    """The table of devices has them; an unknown device has none."""
    views.measure({A: 200.0})
    views.measure({A: 200.0}, hardware=UNKNOWN)
    peaks = "peak_half_tflops, peak_tf32_tflops, peak_fp32_tflops, peak_gb_per_s"
    rows = [tuple(row.values()) for row in views.ask(f"SELECT {peaks} FROM hardware ORDER BY id")]  # noqa: S608 - ours
    assert rows[0] == pytest.approx((7.49 * 132, 3.74 * 132, 0.51 * 132, 4800.0))
    assert rows[1] == (None,) * 4
