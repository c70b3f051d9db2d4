"""Two sweeps compared, with figures worked out by hand and with the view's own tie sets."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import samples
from diode_collectors.sweep.agreement import LeftOut, OtherRegimes, agreement_of, print_agreement
from diode_store.errors import DatasetError
from diode_store.query import analytics
from diode_store.records import Environment, Outcome, Timing, TimingMethod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_store.records import Measurement
    from diode_store.warehouse.store import Store

HIDDEN = TimingMethod("median", flush_l2=True, launch_hidden=True)
A, B, C, D = (samples.triton_config(block) for block in (16, 32, 64, 128))


def measured(
    uid: int, times: Mapping[Any, float | Outcome | Timing], problem: int = 0, **overrides: Any
) -> Measurement:
    """Return a measurement of a numbered problem: config → microseconds, how it failed, or a whole timing."""
    base = samples.measurement(problem)
    return replace(base, uid=uid.to_bytes(16), timings=samples.timings_of(times), **overrides)


def estimate(config: Any, us: float) -> Timing:
    """Return a timing that was given up early."""
    return Timing(config, us, is_estimate=True)


def test_one_problem() -> None:
    """At 100 us ties reach 3.4%: the first's winner took 103 in the second, whose winner took 104 in the first."""
    first = [measured(1, {A: 100.0, B: 104.0, C: 300.0})]
    second = [measured(2, {A: 103.0, B: 101.0, C: 290.0})]
    agreement = agreement_of(first, second)
    (problem,) = agreement.problems
    assert (problem.hardware, problem.problem.m, problem.configs) == ("NVIDIA H200", 64, 3)
    assert (problem.first_us, problem.second_us, problem.ratio) == (100.0, 101.0, pytest.approx(1.01))
    assert (problem.first_winner, problem.second_winner) == (A.describe(), B.describe())
    assert (problem.first_ties, problem.second_ties) == (1, 2)
    assert (problem.first_in_second, problem.second_in_first, problem.same_winner) == (True, False, False)
    assert (agreement.first_in_second_share, agreement.second_in_first_share) == (1.0, 0.0)
    assert agreement.same_winner_share == 0.0


def test_best_times_of_many_problems() -> None:
    """The spread is of |log ratio|, the bias of the ratio; p95 lies between the two largest."""
    ratios = [1.0, 1.02, 0.99, 1.01, 0.95]
    first = [measured(i, {A: 100.0}, problem=i) for i in range(5)]
    second = [measured(10 + i, {A: 100.0 * ratio}, problem=i) for i, ratio in enumerate(ratios)]
    agreement = agreement_of(first, second)
    sizes = sorted(abs(math.log(ratio)) for ratio in ratios)
    assert agreement.best.median_ratio == pytest.approx(1.0)
    assert agreement.best.median == pytest.approx(sizes[2])
    assert agreement.best.p95 == pytest.approx(sizes[3] + 0.8 * (sizes[4] - sizes[3]))
    assert agreement.best.maximum == pytest.approx(sizes[4])
    assert [problem.ratio for problem in agreement.problems] == pytest.approx([0.95, 1.02, 0.99, 1.01, 1.0])
    assert agreement.same_winner_share == 1.0


def test_pairs_by_band() -> None:
    """A pair belongs to the band of the geometric mean of its two times."""
    first = [measured(1, {A: 8.0, B: 9.9, C: 20.0, D: 50.0})]
    second = [measured(2, {A: 10.0, B: 10.2, C: 22.0, D: 50.5})]
    bands = agreement_of(first, second).bands
    assert [band.band for band in bands] == ["under 10 us", "10 to 30 us", "from 30 us"]
    assert [band.pairs for band in bands] == [1, 2, 1]  # sqrt(8 x 10) is below 10, sqrt(9.9 x 10.2) is not
    assert bands[0].median_ratio == pytest.approx(1.25)
    logs = [math.log(10.2 / 9.9), math.log(1.1)]
    assert bands[1].median_ratio == pytest.approx(math.exp(sum(logs) / 2))
    assert bands[1].log_ratio_std == pytest.approx(abs(logs[1] - logs[0]) / math.sqrt(2))
    assert (bands[0].log_ratio_std, bands[2].log_ratio_std) == (None, None)


def test_what_is_left_out() -> None:
    """Estimates, failures, flagged, replayed and superseded measurements, and what only one sweep holds."""
    fast = {A: 1.0, B: 1.0}
    first = [
        measured(1, {A: 100.0, B: estimate(B, 350.0), C: Outcome.OUT_OF_RESOURCES, D: 90.0}),
        measured(2, fast, flags=("throttled",)),
        measured(3, fast, is_replay=True),
        measured(4, fast, superseded_by=bytes(16)),
        measured(5, {A: 50.0}, problem=1),
        measured(6, {A: Outcome.RUNTIME_ERROR}, problem=2),
    ]
    second = [measured(7, {A: 101.0, B: 340.0, C: 200.0}), measured(8, {A: 50.0}, problem=2)]
    agreement = agreement_of([*first, first[0]], second)
    (problem,) = agreement.problems
    assert (problem.configs, problem.first_us, problem.second_us) == (3, 100.0, 101.0)
    assert sum(band.pairs for band in agreement.bands) == 1
    assert agreement.left_out == LeftOut(
        estimates=1,
        failures=2,
        flagged=1,
        replays=1,
        superseded=1,
        problems_in_one=1,
        configs_in_one=1,
        without_times=1,
    )


def test_a_winner_that_the_other_gave_up_is_no_tie() -> None:
    """It was tried there, so the two disagree."""
    agreement = agreement_of([measured(1, {A: 100.0, B: 120.0})], [measured(2, {A: estimate(A, 500.0), B: 119.0})])
    (problem,) = agreement.problems
    assert (problem.first_in_second, problem.second_in_first, problem.ratio) == (False, False, pytest.approx(1.19))


def test_repeats_give_the_scatter() -> None:
    """A config measured several times counts by its median, and widens the tie set by its own scatter."""
    first = [measured(1, {A: 90.0, B: 120.0}), measured(2, {A: 110.0})]
    second = [measured(3, {A: 101.0, B: 100.0})]
    (problem,) = agreement_of(first, second).problems
    assert (problem.first_us, problem.first_ties) == (100.0, 2)  # sigma is sqrt(0.02), so ties reach 128.3
    assert (problem.second_in_first, problem.first_in_second) == (True, True)


def in_regime(regime: str | None) -> TimingMethod:
    """Return how a sweep times in a regime."""
    return replace(HIDDEN, regime=regime)


def test_sweeps_in_different_regimes(capsys: pytest.CaptureFixture[str]) -> None:
    """They are compared, and what their ratios mean is said, for people and for scripts."""
    first = [measured(1, {A: 100.0}, timing_method=in_regime("write_flush"))]
    second = [measured(2, {A: 50.0}, timing_method=in_regime("graph"))]
    agreement = agreement_of(first, second)
    assert agreement.problems[0].ratio == 0.5
    assert agreement.other_regimes == (OtherRegimes("write_flush", "graph", 1),)
    print_agreement(agreement, as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["other_regimes"] == [{"first": "write_flush", "second": "graph", "problems": 1}]
    assert printed.err == (
        "1 problem timed in regime write_flush by the first and regime graph by the second: ratios show that as well, "
        "so judge by winners and ties\n"
    )


def test_a_regime_of_both_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a problem timed in several regimes that one counts which both sweeps have; nothing need be said then."""
    first = [
        measured(1, {A: 100.0}, timing_method=in_regime("write_flush")),
        measured(2, {A: 40.0}, timing_method=in_regime("graph")),
    ]
    second = [measured(3, {A: 101.0}, timing_method=in_regime("write_flush"))]
    agreement = agreement_of(first, second)
    assert agreement.problems[0].ratio == pytest.approx(1.01)
    assert agreement.other_regimes == ()
    print_agreement(agreement)
    assert capsys.readouterr().err == ""


def test_an_unknown_regime_is_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Records of older collectors do not say theirs."""
    first = [measured(1, {A: 100.0}, timing_method=in_regime(None))]
    second = [measured(2, {A: 100.0}, timing_method=in_regime("graph"))]
    print_agreement(agreement_of(first, second))
    assert "1 problem timed in an unknown regime by the first and regime graph by" in capsys.readouterr().err


def test_ties_are_those_of_the_view(store: Store, database_url: str) -> None:
    """On random times the winner and the number of ties are what `fastest_configs` says."""
    rng = random.Random(5)  # noqa: S311 - no secret
    configs = [samples.triton_config(16 * (1 + i)) for i in range(12)]
    sweep = [
        measured(
            n,
            {c: rng.choice([6.0, 20.0, 80.0]) * rng.uniform(1, 1.2) for c in configs},
            problem=n % 20,
            timing_method=rng.choice([HIDDEN, TimingMethod()]),
        )
        for n in range(30)
    ]
    store.write(sweep)
    with analytics.connect(database_url) as connection:
        query = "SELECT m, runtime_us, len(tie_config_ids) FROM fastest_configs ORDER BY m"
        expected = connection.execute(query).fetchall()
    found = sorted((p.problem.m, p.first_us, p.first_ties) for p in agreement_of(sweep, sweep).problems)
    assert len(expected) == 20
    assert [(m, ties) for m, _, ties in found] == [(m, ties) for m, _, ties in expected]
    assert [us for _, us, _ in found] == pytest.approx([us for _, us, _ in expected])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([measured(1, {A: 1.0})], [], "the two have no problem in common (one has 1, the other 0); compare"),
        ([measured(1, {A: 1.0})], [measured(2, {A: 1.0}, environment=Environment(torch="2.13"))], "the two have no"),
        ([measured(1, {A: 1.0})], [measured(2, {A: Outcome.TIMEOUT})], "no config of a common problem has a time in"),
    ],
)
def test_nothing_to_compare(first: Sequence[Measurement], second: Sequence[Measurement], message: str) -> None:
    """One line says why there is no agreement to report."""
    with pytest.raises(DatasetError) as raised:
        agreement_of(first, second)
    assert str(raised.value).startswith(message)


@pytest.mark.long
def test_the_bundled_data_agree_with_themselves(bundled: Sequence[Measurement]) -> None:
    """Every problem, every winner, every pair; 1,247 problems in one environment."""
    agreement = agreement_of(bundled, bundled)
    assert len(agreement.problems) == 1_247
    assert (agreement.best.maximum, agreement.same_winner_share) == (0.0, 1.0)
    assert {band.median_ratio for band in agreement.bands} == {1.0}
    assert sum(band.pairs for band in agreement.bands) > 60_000


def test_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything, by the names of the fields."""
    agreement = agreement_of([measured(1, {A: 100.0})], [measured(2, {A: 101.0})])
    print_agreement(agreement, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == list(vars(agreement))
    assert printed["problems"][0]["problem"]["n"] == 256
    assert printed["problems"][0]["ratio"] == pytest.approx(1.01)
    assert printed["bands"][0] == {"band": "under 10 us", "pairs": 0, "median_ratio": None, "log_ratio_std": None}


def test_printed_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """The overview, the bands and the problems that differ most."""
    first = [measured(i, {A: 100.0}, problem=i) for i in range(3)]
    second = [measured(10 + i, {A: 100.0 + i}, problem=i) for i in range(3)]
    print_agreement(agreement_of(first, second), most=2)
    overview, bands, problems = capsys.readouterr().out.split("\n\n")
    assert overview.splitlines()[0].split() == ["problems", "3"]
    assert "first's winner in second's ties  100.0%" in overview
    assert bands.splitlines()[3].split() == ["from", "30", "us", "3", "1.010", "0.009901"]
    assert [line.split()[3] for line in problems.splitlines()[1:3]] == ["66", "65"]
    assert problems.endswith("and 1 more that differ less\n")
