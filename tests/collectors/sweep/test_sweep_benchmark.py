"""How a sweep times the choices of a problem, with a timer that says what the test wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from scripted_timer import CONFIG, Kernel, ScriptedTimer, candidates_of

from diode_collectors.inductor.finals import FEWEST_ROUNDS, MOST_ROUNDS, MOST_ROUNDS_OF_LONG, Finals, student
from diode_collectors.inductor.graphs import CaptureError
from diode_collectors.sweep.lane.benchmark import (
    ESTIMATE_FACTOR,
    FEWEST_RUNS,
    FIRST_LOOK_RUNS,
    MOST_FINALISTS,
    MOST_RUNS,
    runs_within_budget,
    time_all,
)
from diode_store.records import READ_FLUSH, Outcome, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from diode_collectors.inductor.timer import Sampled
    from diode_collectors.sweep.lane.benchmark import Candidate
    from diode_store.records import TimingMethod


A_ROUND = 6
"""How many samples of a short kernel make a round of the finals."""


def timed(kernels: Iterable[Kernel], seed: int = 0) -> tuple[dict[str, Candidate], ScriptedTimer]:
    """Time the kernels and return their candidates by name, and the timer."""
    candidates, timer = candidates_of(kernels), ScriptedTimer()
    time_all(candidates, timer, seed=seed)
    return {candidate.name: candidate for candidate in candidates}, timer


def test_the_vendor_is_timed_first() -> None:
    """Wherever it stands in the list; the clocks are warmed with it, once."""
    kernels = [Kernel(f"k{i}", 100.0) for i in range(8)]
    _, timer = timed([*kernels[:5], Kernel("vendor", 90.0), *kernels[5:]])
    assert timer.order()[0] == "vendor"
    assert timer.warmed == ["vendor"]


def test_the_others_come_in_an_order_drawn_by_seed() -> None:
    """The same seed gives the same order, another seed another one; everyone is timed."""
    names = [f"k{i}" for i in range(8)]
    orders = [timed([Kernel(name, 100.0) for name in names], seed)[1].order() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert [sorted(order) for order in orders] == [names] * 3
    assert orders[0] != names


@pytest.mark.parametrize(("factor", "most_runs"), [(3.5, FIRST_LOOK_RUNS), (9.0, FIRST_LOOK_RUNS), (50.0, 1)])
def test_a_hopeless_choice_keeps_its_first_look(factor: float, most_runs: int) -> None:
    """Three runs tell at most, one when it is far off; the record says that it is an estimate."""
    found, timer = timed([Kernel("vendor", 10.0), Kernel("slow", 10.0 * factor)])
    slow = found["slow"]
    assert slow.is_estimate
    assert timer.runs("slow") == most_runs
    assert slow.timing(CONFIG) == Timing(
        CONFIG, 10.0 * factor, Outcome.OK, is_estimate=True, repeats=most_runs, p10_us=slow.times_us[0],
        p90_us=slow.times_us[0],
    )  # fmt: skip


def test_a_slow_first_run_alone_does_not_make_a_choice_hopeless() -> None:
    """The first look goes by its median, so that one hiccup does not lose the best kernel."""
    found, _ = timed([Kernel("vendor", 10.0), Kernel("best", 5.0, luck=[8.0])])
    assert not found["best"].is_estimate
    assert found["best"].median_us == 5.0


def test_a_choice_within_reach_gets_a_median_of_its_own() -> None:
    """One that is a little below the limit is timed as often as the budget allows, and no more than that."""
    found, timer = timed([Kernel("vendor", 10.0), Kernel("fair", 10.0 * (ESTIMATE_FACTOR - 0.5))])
    assert not found["fair"].is_estimate
    assert len(found["fair"].times_us) == MOST_RUNS
    assert timer.runs("fair") == FIRST_LOOK_RUNS + MOST_RUNS


@pytest.mark.parametrize(
    ("run_us", "expected"), [(0.5, MOST_RUNS), (200.0, 24), (400.0, 12), (750.0, 7), (5e6, FEWEST_RUNS)]
)
def test_runs_fit_the_budget(run_us: float, expected: int) -> None:
    """So many milliseconds a choice, but neither too few runs for a median nor more than it needs."""
    assert runs_within_budget(run_us) == expected


def test_all_choices_are_looked_at_before_any_gets_a_median() -> None:
    """So that all medians of a problem are taken by one method, which depends on how fast the fastest is."""
    found, timer = timed([Kernel("vendor", 10.0), Kernel("best", 4.0), Kernel("slow", 11.0)])
    assert timer.asked_for == [4.0]
    assert timer.timed[: 2 * 3] == [(name, n) for name in timer.order() for n in (1, FIRST_LOOK_RUNS - 1)]
    assert timer.runs("slow") == FIRST_LOOK_RUNS + MOST_RUNS
    assert found["slow"].timing(CONFIG).repeats == MOST_RUNS


def test_a_choice_that_a_later_one_leaves_far_behind_is_an_estimate_too() -> None:
    """Its look was within reach of the best so far, not of the best of all; a vendor's kernel is timed anyway."""
    kernels = [Kernel("vendor", 10.0), Kernel("second", 9.0), Kernel("best", 2.0)]
    seed = next(s for s in range(9) if timed(kernels, s)[1].order() == ["vendor", "second", "best"])
    found, timer = timed(kernels, seed)
    assert {name for name in found if found[name].is_estimate} == {"second"}
    assert timer.runs("second") == FIRST_LOOK_RUNS
    assert timer.runs("vendor") > FIRST_LOOK_RUNS + MOST_RUNS


def test_what_it_was_timed_by_is_returned() -> None:
    """The timer's method, and how the finals ended."""
    done = time_all(
        candidates_of([Kernel("vendor", 10.0), Kernel("close", 10.5), Kernel("far", 15.0)]), ScriptedTimer()
    )
    assert done.method.regime == READ_FLUSH
    assert done.finals == Finals(finalists=2, rounds=FEWEST_ROUNDS, undecided=0)


def test_nothing_that_ran_has_no_finals() -> None:
    """There is no order to know."""
    assert time_all([], ScriptedTimer()).finals is None


def finals_of(timer: ScriptedTimer, names: set[str]) -> list[tuple[str, int]]:
    """Return what was timed once the last of ``names`` had a median."""
    looks_and_medians = [i for i, (name, n) in enumerate(timer.timed) if n == MOST_RUNS]
    return [(name, n) for name, n in timer.timed[looks_and_medians[-1] + 1 :] if name in names]


def test_finalists_take_turns() -> None:
    """All within a tenth of the best, one after the other in each round so that a drift hits all alike."""
    _, timer = timed([Kernel("vendor", 10.0), Kernel("close", 10.5), Kernel("far", 15.0)])
    again = finals_of(timer, {"vendor", "close", "far"})
    rounds = [{name for name, _ in again[i : i + 2]} for i in range(0, len(again), 2)]
    assert rounds == [{"vendor", "close"}] * FEWEST_ROUNDS
    assert timer.runs("far") == FIRST_LOOK_RUNS + MOST_RUNS


def test_a_lucky_choice_does_not_win() -> None:
    """One that was a fifth too fast at first ends behind the truly best, once there are as many runs in the finals."""
    lucky = Kernel("lucky", 10.4, luck=[0.9] * (FIRST_LOOK_RUNS + 10))
    found, _ = timed([Kernel("vendor", 12.0), Kernel("best", 10.0), lucky])
    assert found["lucky"].median_us == 10.4
    assert found["best"].median_us == 10.0


def test_finals_go_on_while_the_order_is_not_told_from_noise() -> None:
    """Two kernels that are the faster one in turn get all the rounds there are, and are said to be undecided."""
    slow, fast = [1.1] * A_ROUND, [0.9] * A_ROUND
    before = [1.0] * (FIRST_LOOK_RUNS + MOST_RUNS)
    kernels = [
        Kernel("vendor", 10.0, luck=before + MOST_ROUNDS * [*fast, *slow]),
        Kernel("same", 10.0, luck=before + MOST_ROUNDS * [*slow, *fast]),
    ]
    done = time_all(candidates_of(kernels), ScriptedTimer())
    assert done.finals == Finals(finalists=2, rounds=MOST_ROUNDS, undecided=1)


class FailsAgain(ScriptedTimer):
    """Prepares the samples of the kernel "close" once only."""

    def __init__(self, error: Exception) -> None:
        """Fail with ``error`` from then on."""
        super().__init__()
        self.error = error
        self.prepared: list[str] = []

    def sampled(self, run: Callable[[], object], rotation: object, us: float, method: TimingMethod) -> Sampled:
        """Return the kernel itself, or fail."""
        assert isinstance(run, Kernel)
        self.prepared.append(run.name)
        if run.name == "close" and self.prepared.count("close") > 1:
            raise self.error
        return super().sampled(run, rotation, us, method)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(RuntimeError("out of memory"), Outcome.OUT_OF_RESOURCES), (CaptureError("not again"), Outcome.OK)],
)
def test_what_cannot_be_prepared_for_the_finals_loses_nothing_else(error: Exception, outcome: Outcome) -> None:
    """A failure is its own; one that merely cannot be captured again keeps its median."""
    candidates, timer = candidates_of([Kernel("vendor", 10.0), Kernel("close", 10.5)]), FailsAgain(error)
    done = time_all(candidates, timer)
    assert done.finals == Finals(finalists=1, rounds=FEWEST_ROUNDS, undecided=0)
    vendor, close = candidates
    assert (vendor.median_us, close.outcome) == (10.0, outcome)
    assert close.outcome is not Outcome.OK or close.median_us == 10.5


def test_a_finalist_is_prepared_once() -> None:
    """Also the vendor's best, which is asked for twice where it is among the fastest."""
    timer = FailsAgain(AssertionError())
    time_all(candidates_of([Kernel("vendor", 10.0), Kernel("other", 10.5)]), timer)
    assert sorted(timer.prepared) == ["other", "other", "vendor", "vendor"]


def test_long_kernels_are_compared_in_turn_only() -> None:
    """Under the power cap a run depends on the one before it: what was timed in a row is no longer in the figure."""
    in_a_row = FIRST_LOOK_RUNS + FEWEST_RUNS
    slow_later = Kernel("vendor", 2000.0, luck=[0.97] * in_a_row)
    found, timer = timed([slow_later, Kernel("other", 2050.0, luck=[1.0] * 100)])
    assert found["vendor"].median_us == 2000.0
    assert found["vendor"].timing(CONFIG).repeats == FEWEST_ROUNDS
    assert {n for name, n in timer.timed[-2 * FEWEST_ROUNDS :]} == {1}


def test_long_kernels_get_more_rounds() -> None:
    """There the noise is larger, and a round is one run of each."""
    before = [1.0] * (FIRST_LOOK_RUNS + FEWEST_RUNS)
    kernels = [
        Kernel("vendor", 3000.0, luck=before + MOST_ROUNDS_OF_LONG * [0.9, 1.1]),
        Kernel("same", 3000.0, luck=before + MOST_ROUNDS_OF_LONG * [1.1, 0.9]),
    ]
    done = time_all(candidates_of(kernels), ScriptedTimer())
    assert done.finals == Finals(finalists=2, rounds=MOST_ROUNDS_OF_LONG, undecided=1)


def test_no_more_finalists_than_ten_and_the_vendor() -> None:
    """Of fifty equals ten are measured again, the fastest ones; the best vendor kernel always is, however slow."""
    kernels = [Kernel(f"k{i}", 10.0 + i / 100) for i in range(50)]
    found, timer = timed([*kernels, Kernel("vendor", 28.0)])
    many = {name for name in found if timer.runs(name) > FIRST_LOOK_RUNS + MOST_RUNS}
    assert many == {f"k{i}" for i in range(MOST_FINALISTS)} | {"vendor"}


def test_only_the_best_of_several_vendor_kernels_is_measured_again() -> None:
    """The others are none that anyone would call."""
    kernels = [Kernel("cublas", 20.0), Kernel("other", 25.0), Kernel("best", 10.0)]
    timer = ScriptedTimer()
    time_all(candidates_of(kernels, vendors=("cublas", "other")), timer)
    assert timer.order()[:2] in (["cublas", "other"], ["other", "cublas"])
    assert timer.runs("cublas") > FIRST_LOOK_RUNS + MOST_RUNS
    assert timer.runs("other") == FIRST_LOOK_RUNS + MOST_RUNS


def test_a_vendor_kernel_that_is_an_estimate_is_not_measured_again() -> None:
    """It is three times slower than another vendor kernel."""
    timer = ScriptedTimer()
    candidates = candidates_of([Kernel("a", 10.0), Kernel("b", 90.0)], vendors=("a", "b"))
    time_all(candidates, timer, seed=1)
    assert timer.order() == ["a", "b"]
    assert [candidate.is_estimate for candidate in candidates] == [False, True]


def test_what_is_recorded_is_of_all_runs_but_the_look() -> None:
    """Median, percentiles and the number of runs, of the budgeted ones and the finals' together."""
    noise = np.random.default_rng(0).lognormal(0, 0.05, 200)
    found, timer = timed([Kernel("vendor", 10.0, luck=list(noise))])
    times = found["vendor"].times_us
    timing = found["vendor"].timing(CONFIG)
    assert timing.repeats == len(times) == timer.runs("vendor") - FIRST_LOOK_RUNS > MOST_RUNS
    assert times == [10.0 * factor for factor in noise[FIRST_LOOK_RUNS : FIRST_LOOK_RUNS + len(times)]]
    assert timing.runtime_us == pytest.approx(float(np.median(times)))
    assert (timing.p10_us, timing.p90_us) == pytest.approx(tuple(np.percentile(times, [10, 90])))
    assert timing.p10_us < timing.runtime_us < timing.p90_us  # type: ignore[operator]


def test_a_large_sweep_spends_little_on_the_hopeless() -> None:
    """Of a thousand choices up to a hundred times slower than the best, the best is found; runs stay few."""
    draws = np.random.default_rng(1).lognormal(3.0, 1.5, 1000)
    kernels = [Kernel(f"k{i}", 10.0 + float(us)) for i, us in enumerate(draws)]
    found, timer = timed([Kernel("vendor", 12.0), *kernels])
    best = min(found.values(), key=lambda candidate: candidate.median_us)
    assert best.name == min(kernels, key=lambda kernel: kernel.us).name
    estimates = [candidate for candidate in found.values() if candidate.is_estimate]
    assert len(estimates) > 300
    assert max(timer.runs(candidate.name) for candidate in estimates) <= FIRST_LOOK_RUNS
    assert all(candidate.median_us > ESTIMATE_FACTOR * best.median_us for candidate in estimates)


@pytest.mark.parametrize(
    ("freedom", "half_percent", "two_and_a_half_percent"),
    [(3, 5.841, 3.182), (5, 4.032, 2.571), (9, 3.250, 2.262), (23, 2.807, 2.069)],
)
def test_students_quantiles(freedom: int, half_percent: float, two_and_a_half_percent: float) -> None:
    """As tables have them, to 4%: from a few rounds a difference must be larger to be believed."""
    assert student(2.5758, freedom) == pytest.approx(half_percent, rel=0.04)
    assert student(1.9600, freedom) == pytest.approx(two_and_a_half_percent, rel=0.04)
