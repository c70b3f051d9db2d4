"""The spread of the members is scaled to what predictions of unseen problems lost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import H200, MM, examples, learnable

from diode_trainer.card import Domain
from diode_trainer.jobs.workflow import fit_and_judge
from diode_trainer.judging.calibration import KERNEL_PRICE, Case, calibrate, calibrate_by_others, make_cases
from diode_trainer.report.evaluation.rows import certainty_groups
from diode_trainer.scoring import Prediction
from diode_trainer.training.recipe import Recipe
from diode_trainer.uncertainty import Outlook

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMBERS = 12


def mean_timed(kept: Sequence[Sequence[int]]) -> float:
    """Return how many kernels are timed in the mean; a config that is kept alone is not timed."""
    return float(np.mean([len(indices) if len(indices) > 1 else 0 for indices in kept]))


def cases(spread: float, vendor_spread: float, count: int = 300, seed: int = 0, configs: int = 12) -> list[Case]:
    """Return problems that turn out as members predict whose disagreement counts for that much.

    How far they disagree differs from problem to problem. The vendor's kernel comes first in half of them.
    """
    generator = np.random.default_rng(seed)
    found = []
    for i in range(count):
        mean = np.sort(generator.uniform(0, 0.3, configs))
        is_vendor = np.arange(configs) == (0 if i % 2 else 6)
        sizes = np.full(configs, 10 ** generator.uniform(-2.5, -0.7))
        apart = generator.normal(0, 1, (MEMBERS, configs)) * sizes
        apart -= apart.mean(0)
        error = generator.normal(0, 1, MEMBERS) @ apart / np.sqrt(MEMBERS - 1) * spread
        own = generator.normal(0, 1, configs) * sizes
        error += own * np.where(is_vendor & (own > 0), vendor_spread, spread)
        truth = mean + error
        found.append(Case((mean + apart).astype(np.float32), is_vendor, truth - truth.min()))
    return found


def test_expected_losses_become_those_that_were_seen() -> None:
    """First choices are expected to lose what they lost, the vendor's and templates alike."""
    seen = cases(0.6, 2.5)
    calibration = calibrate(seen)
    assert calibration is not None
    for vendor in (True, False):
        some = [case for case in seen if case.is_vendor[case.first] == vendor]
        expected = np.mean([Outlook(c.member_logs, c.is_vendor, calibration).expected_loss for c in some])
        assert expected == pytest.approx(np.mean([case.loss for case in some]), rel=0.05)
    assert calibration.problems == len(seen)


def test_calibration_finds_the_spreads_that_made_the_problems() -> None:
    """From enough problems both spreads are found again."""
    calibration = calibrate(cases(0.6, 2.5, 800))
    assert calibration is not None
    assert calibration.spread == pytest.approx(0.6, rel=0.25)
    assert calibration.vendor_spread == pytest.approx(2.5, rel=0.35)


@pytest.mark.parametrize("seed", range(4))
def test_members_that_agree_on_what_is_wrong(seed: int) -> None:
    """How likely a choice is good is then how often one was; the fit does not run away."""
    generator = np.random.default_rng(seed)
    mean = np.linspace(0, 0.3, 12)
    agreed = mean + generator.normal(0, 1e-6, (MEMBERS, 12))
    is_vendor = np.arange(12) == 5
    truths = [np.roll(mean, -shift) for shift in generator.integers(0, 2, 60)]
    seen = [Case(agreed.astype(np.float32), is_vendor, truth - truth.min()) for truth in truths]
    calibration = calibrate(seen)
    assert calibration is not None
    assert max(map(abs, (calibration.within_offset, calibration.within_slope, calibration.odd_offset))) < 10
    share = np.mean([case.loss < 0.01 for case in seen])
    assert Outlook(seen[0].member_logs, is_vendor, calibration).p_within_2pct == pytest.approx(share, abs=0.05)


def test_price_does_not_depend_on_the_model() -> None:
    """What a kernel has to gain is the same whatever a model's members disagree on; so a surer model times fewer."""
    sure, unsure = (calibrate(cases(spread, spread)) for spread in (0.5, 2.0))
    assert sure is not None
    assert unsure is not None
    assert sure.kernel_price == unsure.kernel_price == KERNEL_PRICE
    fresh = cases(1.0, 1.0, seed=1)
    assert mean_timed([c.outlook(sure).worth_timing() for c in fresh]) < mean_timed(
        [c.outlook(unsure).worth_timing() for c in fresh]
    )


def test_odd_rows_have_their_own_spread_and_odds() -> None:
    """Where problems with odd rows lose more than the members say, they are expected to, and the others are not."""
    seen = cases(0.6, 0.6, 400) + [replace(case, is_odd=True) for case in cases(1.5, 1.5, 400, seed=1)]
    calibration = calibrate(seen)
    assert calibration is not None
    assert math.exp(calibration.odd_spread) == pytest.approx(2.5, rel=0.3)
    for is_odd, spread, seed in ((False, 0.6, 2), (True, 1.5, 3)):
        fresh = [replace(case, is_odd=is_odd) for case in cases(spread, spread, 400, seed=seed)]
        outlooks = [case.outlook(calibration) for case in fresh]
        lost = np.mean([case.loss for case in fresh])
        assert np.mean([outlook.expected_loss for outlook in outlooks]) == pytest.approx(lost, rel=0.25)
        seen_within = np.mean([case.loss <= math.log(1.02) for case in fresh])
        assert np.mean([outlook.p_within_2pct for outlook in outlooks]) == pytest.approx(seen_within, abs=0.06)


def test_long_lists_have_their_own_spread() -> None:
    """Where long lists turn out as members predict whose disagreement counts for less, a doubling narrows it."""
    seen = [*cases(1.2, 1.2, 200), *cases(0.5, 0.5, 60, seed=1, configs=256)]
    calibration = calibrate(seen)
    assert calibration is not None
    assert calibration.length_spread < 0
    long = cases(0.5, 0.5, 100, seed=2, configs=256)
    lost = np.mean([case.loss for case in long])
    said = [np.mean([case.outlook(by).expected_loss for case in long]) for by in (calibration, calibrate(seen[:200]))]  # type: ignore[arg-type]
    assert abs(said[0] - lost) < abs(said[1] - lost)


def test_without_odd_rows_or_long_lists_nothing_is_said_of_them() -> None:
    """From samples of problems with whole rows, others are taken to be like these."""
    calibration = calibrate(cases(1.0, 1.0))
    assert calibration is not None
    assert calibration.at(is_odd=True, length=1000) == calibration


def test_a_shorter_case_is_part_of_it() -> None:
    """The vendor's kernel and a share of the templates are left, and times are relative to the best of these."""
    (case,) = cases(1.0, 1.0, 1, configs=256)
    short = case.shorter(4)
    assert (short.is_vendor.sum(), len(short.is_vendor)) == (1, 1 + 255 // 4)
    assert short.measured.min() == 0.0
    assert set(short.member_logs[0]) <= set(case.member_logs[0])


def test_probabilities_are_those_observed_on_other_problems() -> None:
    """Where a choice is said to be good with some probability, about that share of new problems bears it out."""
    calibration = calibrate(cases(1.4, 1.4, 600))
    assert calibration is not None
    fresh = cases(1.4, 1.4, 600, seed=1)
    said = np.array([Outlook(c.member_logs, c.is_vendor, calibration).p_within_2pct for c in fresh])
    groups = certainty_groups(said, np.array([case.loss for case in fresh]), most=4)
    assert len(groups) == 4
    for group in groups:
        assert group.was_pct == pytest.approx(group.said_pct, abs=10)


def test_benchmarking_where_it_pays_beats_benchmarking_alike() -> None:
    """For the kernels timed, the choice of where to time loses less than timing the first two everywhere."""
    calibration = calibrate(cases(1.0, 1.0))
    assert calibration is not None
    fresh = cases(1.0, 1.0, seed=1)
    kept = [Outlook(c.member_logs, c.is_vendor, calibration).worth_timing(0.02) for c in fresh]
    adaptive = np.mean([case.measured[indices].min() for case, indices in zip(fresh, kept, strict=True)])
    alike = np.mean([case.measured[:2].min() for case in fresh])
    assert mean_timed(kept) < 1.5
    assert adaptive < alike < np.mean([case.loss for case in fresh])


def test_too_few_problems_give_no_calibration() -> None:
    """A handful of problems says nothing about the rest."""
    assert calibrate(cases(1.0, 1.0, 39)) is None


def test_no_part_is_judged_by_its_own_calibration() -> None:
    """Each part has the calibration of the others; two parts have each other's, one alone has none."""
    one, two = cases(0.6, 0.6, 60), cases(2.0, 2.0, 60, seed=1)
    assert calibrate_by_others([one, two]) == [calibrate(two), calibrate(one)]
    assert calibrate_by_others([one, two[:30], two[30:]])[0] == calibrate(two)
    assert calibrate_by_others([one]) == [None]


def test_a_model_that_is_never_wrong_is_trusted() -> None:
    """Where nothing was lost, nothing is expected to be, and every number is finite."""
    perfect = [replace(case, measured=np.arange(12) * 0.1) for case in cases(1.0, 1.0, 60)]
    calibration = calibrate([replace(c, member_logs=np.tile(np.arange(12, dtype=np.float32), (3, 1))) for c in perfect])
    assert calibration is not None
    assert np.isfinite(list(vars(calibration).values())).all()


def test_case_is_what_ran() -> None:
    """A case holds the configs that were predicted and ran, relative to the fastest that was measured."""
    example = examples([10.0, np.inf, 20.0, 5.0])
    logs = np.log(np.array([[10.0, 30.0, 20.0]] * 2, dtype=np.float32))
    (case,) = make_cases([example], [Prediction(np.ones(4), np.array([0, 1, 2]), logs)])
    assert np.exp(case.measured).tolist() == pytest.approx([2.0, 4.0])
    assert case.is_vendor.tolist() == [True, False]
    assert case.member_logs.shape == (2, 2)
    assert case.loss == pytest.approx(np.log(2.0))


def test_problems_outside_the_domain_do_not_count() -> None:
    """What the hook would not ask the model about is not what it is calibrated for."""
    example = examples([10.0, 20.0, 5.0])
    prediction = Prediction(np.ones(3), np.arange(3), np.ones((2, 3), dtype=np.float32))
    kept = [make_cases([example], [prediction], Domain(ops=(op,))) for op in (MM.op, "bmm")]
    assert [len(some) for some in kept] == [1, 0]
    assert example.hardware == H200


def test_the_vendors_kernels_alone_give_no_case() -> None:
    """What no template was timed beside is no choice."""
    example = replace(examples([10.0, 20.0, 5.0]), is_vendor=np.ones(3, dtype=bool))
    assert make_cases([example], [Prediction(np.ones(3), np.arange(3), np.ones((2, 3), dtype=np.float32))]) == []


def test_one_member_gives_no_case() -> None:
    """A model of one member has no spread to calibrate."""
    prediction = Prediction(np.ones(3), np.arange(3), np.ones((1, 3), dtype=np.float32))
    assert make_cases([examples([10.0, 20.0, 5.0])], [prediction]) == []


def test_training_with_folds_calibrates() -> None:
    """What the folds predicted calibrates the model; without folds, or with one member, there is nothing to go by."""
    recipe = Recipe(hidden_layer_widths=(8,), members=3, epochs=3)
    dataset = learnable(60)
    found = [
        fit_and_judge(dataset, asked, folds).calibration
        for asked, folds in ((recipe, 2), (recipe, 0), (replace(recipe, members=1), 2))
    ]
    assert [calibration is not None for calibration in found] == [True, False, False]
    assert found[0] is not None
    assert found[0].problems == 60
