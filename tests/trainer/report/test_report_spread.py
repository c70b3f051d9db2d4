from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from synthetic import examples, learnable

from diode_trainer.card import Calibration
from diode_trainer.data.tensors import pack
from diode_trainer.report.evaluation.spread import Foreseen, foresee, joined
from diode_trainer.scoring import Scorer
from diode_trainer.training.recipe import Recipe
from diode_trainer.training.train import fit
from diode_trainer.uncertainty import Outlook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Members:
    """A scorer whose members predict what they were told to."""

    def __init__(self, *logs: Sequence[float], impossible: int | None = None) -> None:
        self.logs = np.array(logs)
        self.impossible = impossible

    def __call__(self, _problem: Any, _config: Any) -> NDArray[np.float64]:
        """Return what each predicts, shape (E, n)."""
        return self.logs

    def predict_us(self, *_problem: Any) -> NDArray[np.float64]:
        """Return the mean, inf for the impossible config."""
        predicted: NDArray[np.float64] = np.exp(self.logs.mean(0))
        if self.impossible is not None:
            predicted[self.impossible] = math.inf
        return predicted


def losses(scorer: Members, *, vendor: bool = True) -> Any:
    """Return the expected loss on a problem of three configs, the vendor's first."""
    found = foresee(scorer, [examples([3.0, 2.0, 1.0])], vendor=vendor)  # type: ignore[arg-type]
    return found and found.loss


def test_expected_loss_by_hand() -> None:
    """Both members' mean picks the second config; one member would rather have the first, by 0.2."""
    assert losses(Members([0.0, 0.2, 9.0], [1.0, 0.1, 9.0])) == pytest.approx([0.1])


def test_members_of_one_mind_expect_no_loss() -> None:
    """Where all have the same favourite, nothing is expected to be lost."""
    assert losses(Members([0.0, 1.0, 2.0], [0.0, 2.0, 1.0])) == pytest.approx([0.0])


def test_what_is_not_chosen_from_does_not_count() -> None:
    """Neither the vendor's kernel where it does not count nor an impossible config is anybody's favourite."""
    members = [0.0, 0.2, 9.0], [1.0, 0.1, 9.0]
    assert losses(Members(*members), vendor=False) == pytest.approx([0.0])
    assert losses(Members(*members, impossible=0)) == pytest.approx([0.0])


def test_one_member_cannot_disagree() -> None:
    """A model of one member has no spread."""
    assert losses(Members([0.0, 1.0, 2.0])) is None


def test_problems_that_cannot_be_judged_are_left_out() -> None:
    """The losses are those of the judged problems, in their order."""
    both = [examples([1.0, math.inf]), examples([3.0, 2.0, 1.0])]
    found = foresee(Members([0.0, 1.0, 2.0], [0.0, 1.0, 2.0]), both)  # type: ignore[arg-type]
    assert found is not None
    assert found.loss == pytest.approx([0.0])


def test_a_real_network() -> None:
    """A fitted network's members disagree a little on some problem."""
    dataset = learnable(20)
    fitted = fit(pack(dataset), Recipe("deep", hidden_layer_widths=(8,), members=3, epochs=2))
    found = foresee(Scorer(fitted.network), dataset)
    assert found is not None
    assert found.loss.shape == found.within_2pct.shape == (20,)
    assert found.loss.min() >= 0
    assert found.loss.max() > 0
    assert set(found.within_2pct * 3) <= {0.0, 1.0, 2.0, 3.0}
    assert not found.is_calibrated


def test_members_vote_on_what_is_within_2_percent() -> None:
    """Two of three members consider the pick at most 2% behind their own favourite."""
    found = foresee(Members([0.0, 0.1], [0.0, -0.01], [0.5, 0.0]), [examples([2.0, 1.0])])  # type: ignore[arg-type]
    assert found is not None
    assert found.within_2pct == pytest.approx([2 / 3])


def test_a_calibrated_model_says_what_it_says_to_the_hook() -> None:
    """With a calibration it is the outlook on what counts, and wider spreads expect more loss."""
    logs, example = np.array([[0.0, 0.2, 9.0], [1.0, 0.1, 9.0]], dtype=np.float32), examples([3.0, 2.0, 1.0])
    calibrations = [Calibration(spread, spread, 0.5, 0.7, 0.01, 100) for spread in (0.3, 1.0)]
    found = [foresee(Members(*logs), [example], calibration=c) for c in calibrations]  # type: ignore[arg-type]
    outlooks = [Outlook(logs, example.is_vendor, calibration) for calibration in calibrations]
    assert [f and (*f.loss, *f.within_2pct, f.is_calibrated) for f in found] == [
        (outlook.expected_loss, outlook.p_within_2pct, True) for outlook in outlooks
    ]
    assert outlooks[0].expected_loss < outlooks[1].expected_loss


def test_folds_are_joined() -> None:
    """What was foreseen of several folds is one after another, unless a fold knows nothing."""
    one, two = (Foreseen(np.array([n]), np.array([n]), is_calibrated=True) for n in (0.1, 0.2))
    both = joined([one, two])
    assert both is not None
    assert both.is_calibrated
    assert (both.loss.tolist(), both.within_2pct.tolist()) == ([0.1, 0.2], [0.1, 0.2])
    assert joined([one, None]) is None
    assert joined([]) is None
