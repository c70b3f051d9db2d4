"""How far members disagree says how sure a choice is, and what timing others would gain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from diode_trainer.card import Calibration
from diode_trainer.uncertainty import MOST_TOGETHER, Outlook, timed_together

if TYPE_CHECKING:
    from collections.abc import Sequence

CALIBRATION = Calibration(
    spread=1.0, vendor_spread=1.0, within_offset=0.0, within_slope=1.0, kernel_price=0.01, problems=100
)
CONFIGS = 30
VENDOR = 4


def outlook(
    disagreement: float, *, lead: float = 0.0, vendors: tuple[int, ...] = (VENDOR,), **calibration: float
) -> Outlook:
    """Return the outlook of 30 configs, each predicted 1% slower than the one before it, the first by ``lead`` faster.

    Six members disagree by ``disagreement``.
    """
    logs = np.arange(CONFIGS) * 0.01
    logs[0] -= lead
    apart = np.random.default_rng(3).normal(0, 1, (6, CONFIGS))
    apart = (apart - apart.mean(0)) / apart.std(0, ddof=1) * disagreement
    is_vendor = np.isin(np.arange(CONFIGS), vendors)
    return Outlook((logs + apart).astype(np.float32), is_vendor, replace(CALIBRATION, **calibration))


def test_members_that_agree_are_sure() -> None:
    """Without any disagreement the first choice is the best, and nothing is worth timing."""
    sure = outlook(0.0)
    assert sure.expected_loss == 0.0
    assert sure.p_within_2pct > 0.99
    assert sure.worth_timing(1e-6) == [0]


def test_loss_grows_with_the_disagreement_and_its_scale() -> None:
    """More disagreement, or one that counts for more, makes a loss more likely and larger."""
    few, many = outlook(0.02), outlook(0.1)
    assert 0 < few.expected_loss < many.expected_loss
    assert few.p_within_2pct > many.p_within_2pct
    assert few.expected_loss < outlook(0.02, spread=2.0).expected_loss


def test_a_clear_lead_is_worth_no_timing() -> None:
    """A first choice that leads by more than the members disagree is left alone."""
    assert outlook(0.02, lead=0.2).worth_timing(0.001) == [0]


def test_vendor_is_timed_beside_whatever_is() -> None:
    """If anything is timed, the vendor's kernel is, however slow it is predicted to be."""
    kept = outlook(0.1, vendors=(CONFIGS - 1,)).worth_timing(0.01)
    assert kept[0] == 0
    assert CONFIGS - 1 in kept
    assert len(kept) > 2


def test_only_the_best_of_a_vendors_variants_is_timed() -> None:
    """Of two kernels of the vendor the one that is predicted to be slower is no candidate."""
    kept = outlook(0.3, vendors=(2, 3)).worth_timing(0.0001)
    assert 2 in kept
    assert 3 not in kept


def test_without_a_vendors_kernel_templates_are_timed() -> None:
    """A list without the vendor's kernel is treated alike."""
    kept = outlook(0.1, vendors=()).worth_timing(0.01)
    assert len(kept) > 1
    assert kept == sorted(kept)


def test_fewer_are_worth_a_higher_price() -> None:
    """How many are timed falls with the price, from many to one."""
    counts = [len(outlook(0.1).worth_timing(price)) for price in (0.0005, 0.003, 0.01, 0.03, 0.5)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 4
    assert counts[-1] == 1


def test_what_is_kept_alone_costs_nothing() -> None:
    """Where even a single one has to be timed, a second is worth it earlier."""
    price = next(price for price in np.geomspace(0.2, 0.0001, 100) if len(outlook(0.1).worth_timing(price)) > 1)
    assert len(outlook(0.1).worth_timing(price * 1.2)) == 1
    assert len(outlook(0.1).worth_timing(price * 1.2, alone_is_free=False)) > 1


def test_vendor_may_be_slower_than_predicted_by_more() -> None:
    """A vendor's kernel that comes first is less sure the more its own spread counts; one that does not is no surer."""
    first = [outlook(0.05, vendors=(0,), vendor_spread=spread).expected_loss for spread in (1.0, 3.0)]
    last = [outlook(0.05, vendors=(CONFIGS - 1,), vendor_spread=spread).expected_loss for spread in (1.0, 3.0)]
    assert first[1] > 1.2 * first[0]
    assert last[1] == pytest.approx(last[0], rel=0.05)


def test_probability_is_a_calibrated_one() -> None:
    """Offset and slope turn the odds that are drawn into those that were observed."""
    plain = outlook(0.05)
    assert plain.p_within_2pct == pytest.approx(1 / (1 + np.exp(-plain.within_odds)))
    shifted = outlook(0.05, within_offset=1.0, within_slope=0.5)
    assert shifted.p_within_2pct == pytest.approx(1 / (1 + np.exp(-1.0 - 0.5 * plain.within_odds)))


def test_asking_twice_gives_the_same() -> None:
    """Draws are the same every time, so a choice can be repeated and cached."""
    first, second = outlook(0.1), outlook(0.1)
    assert first.worth_timing(0.003) == second.worth_timing(0.003)
    assert first.expected_loss == second.expected_loss


def test_a_single_candidate_is_the_best() -> None:
    """Of one config there is nothing to choose."""
    one = Outlook(np.array([[1.0], [1.2]], dtype=np.float32), np.array([True]), CALIBRATION)
    assert (one.worth_timing(1e-6, alone_is_free=False), one.expected_loss) == ([0], 0.0)


def logs_of(means: Sequence[float], apart: Sequence[float]) -> np.ndarray:
    """Return what two members predict: ``apart`` above the mean and below it."""
    return np.array([means, means]) + np.array([[1.0], [-1.0]]) * np.array(apart)


def test_what_errs_otherwise_is_timed_beside_the_first() -> None:
    """The second errs as the first does, so where that is slow it is too; the third is fast just then."""
    logs = logs_of([0.0, 0.01, 0.05], [0.1, 0.1, -0.1])
    assert timed_together(logs, 1, first=0) == [0]
    assert timed_together(logs, 2, first=0) == [0, 2]
    assert timed_together(logs, 3, first=0) == [0, 2, 1]


def test_members_that_agree_leave_the_predicted_order() -> None:
    """Nothing is expected to be faster than the first, so the next are taken as predicted, from the fastest on."""
    assert timed_together(logs_of([0.3, 0.1, 0.2, 0.4], [0.0] * 4), 3, first=1) == [1, 2, 0]


def test_the_first_is_timed_in_any_case() -> None:
    """By the last digit of a mean another may look as fast."""
    assert timed_together(logs_of([0.1, 0.1, 0.2], [0.0] * 3), 2, first=1) == [1, 0]


def test_what_is_timed_together_is_so_among_itself() -> None:
    """Fewer are the first of more, and those that are chosen are chosen again where only they are left."""
    logs = np.random.default_rng(5).normal(0, 0.1, (6, 40)) + np.arange(40) * 0.005
    first = int(logs.mean(0).argmin())
    five = timed_together(logs, 5, first=first)
    assert five != np.argsort(logs.mean(0)).tolist()[:5]
    for count in (1, 2, 3, 4):
        assert timed_together(logs, count, first=first) == five[:count]
    left = sorted(five)
    assert [left[place] for place in timed_together(logs[:, left], 5, first=left.index(first))] == five


def test_what_is_late_is_chosen_only_if_it_may_be() -> None:
    """Behind thirty that err alike comes one that errs otherwise, as a vendor's kernel does."""
    logs = logs_of([*(np.arange(30) * 0.001), 0.04], [0.2] * 30 + [-0.2])
    late = np.arange(31) == 30
    assert timed_together(logs, 2, first=0) == [0, 1]
    assert timed_together(logs, 2, first=0, also=late) == [0, 30]


@pytest.mark.parametrize(("configs", "expected"), [(4, 4), (40, MOST_TOGETHER)])
def test_no_more_are_timed_together_than_there_are(configs: int, expected: int) -> None:
    """Each is there once, and of many no more than are worth choosing so."""
    found = timed_together(np.random.default_rng(6).normal(0, 0.1, (3, configs)), 100, first=0)
    assert len(found) == len(set(found)) == expected
