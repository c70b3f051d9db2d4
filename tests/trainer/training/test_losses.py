from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from diode_trainer.training import losses
from diode_trainer.training.losses import Ranking

if TYPE_CHECKING:
    from collections.abc import Callable


def rows(*values: float) -> torch.Tensor:
    """Return one problem's configs, (r,)."""
    return torch.tensor(values)


def member(*values: float) -> torch.Tensor:
    """Return one member's predictions of one problem, (1, r)."""
    return torch.tensor([values], requires_grad=True)


def ranked_loss(
    term: Callable[..., torch.Tensor],
    predicted: torch.Tensor,
    target: torch.Tensor,
    counted: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """Return ``term``, a loss that ranks, of each problem, (E, b), from (E, b, c) and (b, c)."""
    return term(predicted, Ranking.measured(target, counted, temperature), temperature)


def listwise(predicted: torch.Tensor, target: torch.Tensor, counted: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the listwise loss of one problem, (E, 1)."""
    return ranked_loss(losses.listwise, predicted[:, None], target[None], counted[None], temperature)


def expected_regret(
    predicted: torch.Tensor, target: torch.Tensor, counted: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return the expected regret of one problem, (E, 1)."""
    return ranked_loss(losses.expected_regret, predicted[:, None], target[None], counted[None], temperature)


def regression(predicted: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, delta: float) -> torch.Tensor:
    """Return the regression loss of one problem, (E, 1)."""
    return losses.regression(predicted[:, None], target[None], losses.weights(weight[None]), delta)


def test_listwise_by_hand() -> None:
    """Two configs, T = 1, target (0, ln 3), prediction (0, 0): 3/4 ln 2 + 1/4 ln 2."""
    loss = listwise(member(0.0, 0.0), rows(0.0, math.log(3)), rows(1, 1).bool(), 1.0)
    assert loss.shape == (1, 1)
    assert loss.item() == pytest.approx(math.log(2))


def test_listwise_is_least_at_the_target() -> None:
    """The gradient vanishes where prediction and target agree."""
    predicted = member(0.1, 0.5, 0.3)
    listwise(predicted, rows(0.1, 0.5, 0.3), rows(1, 1, 1).bool(), 0.08).sum().backward()
    assert predicted.grad is not None
    assert predicted.grad.abs().max().item() < 1e-6


def test_listwise_ignores_a_common_shift() -> None:
    """Only the order and the gaps count, not the level."""
    target, counted = rows(0.0, 0.2, 0.4), rows(1, 1, 1).bool()
    one, other = (listwise(member(*(x + s for x in (0.3, 0.1, 0.0))), target, counted, 0.1) for s in (0.0, 5.0))
    assert one.item() == pytest.approx(other.item(), rel=1e-4)


def test_listwise_ignores_what_does_not_count() -> None:
    """What does not count neither adds to the loss nor gets a gradient."""
    predicted = member(0.0, 0.1, -9.0)
    counted = rows(1, 1, 0).bool()
    loss = listwise(predicted, rows(0.1, 0.0, 7.0), counted, 0.1)
    loss.sum().backward()
    assert predicted.grad is not None
    assert predicted.grad[0, 2].item() == 0.0
    assert loss.item() == pytest.approx(listwise(member(0.0, 0.1), rows(0.1, 0.0), rows(1, 1).bool(), 0.1).item())


def test_listwise_pulls_the_fastest_down() -> None:
    """The loss falls when the fastest config is predicted faster."""
    predicted = member(0.0, 0.0)
    listwise(predicted, rows(0.0, 1.0), rows(1, 1).bool(), 0.1).sum().backward()
    assert predicted.grad is not None
    assert predicted.grad[0, 0].item() > 0 > predicted.grad[0, 1].item()


def test_listwise_of_a_problem_without_configs_is_finite() -> None:
    """A problem that has no Triton choice adds nothing."""
    assert listwise(member(0.3, 0.4), rows(0.0, 0.0), rows(0, 0).bool(), 0.08).item() == 0.0


def test_expected_regret_by_hand() -> None:
    """T = 0.5, prediction (0, ln 3 / 2): shares 3/4 and 1/4; the second is 0.4 behind the first, as measured."""
    loss = expected_regret(member(0.0, math.log(3) / 2), rows(1.2, 1.6), rows(1, 1).bool(), 0.5)
    assert loss.shape == (1, 1)
    assert loss.item() == pytest.approx(0.4 / 4)


def test_expected_regret_has_a_most() -> None:
    """A config that is e times slower loses 1, and one that is e^9 times slower no more."""
    target, counted = rows(0.0, 1.0, 9.0), rows(1, 1, 1).bool()
    assert expected_regret(member(0.0, 0.0, 0.0), target, counted, 0.05).item() == pytest.approx(2 / 3)


def test_expected_regret_of_a_right_pick_is_zero() -> None:
    """Who is sure of the fastest config loses nothing, however far off the times of the others."""
    assert expected_regret(member(0.0, 9.0, 4.0), rows(0.3, 0.4, 0.9), rows(1, 1, 1).bool(), 0.05).item() < 1e-6


def test_expected_regret_ignores_a_common_shift() -> None:
    """Only gaps count, not the level of what is predicted or measured."""
    counted = rows(1, 1, 1).bool()
    one, other = (
        expected_regret(member(*(x + s for x in (0.3, 0.1, 0.0))), rows(0.0, 0.2, 0.4) - s, counted, 0.1)
        for s in (0.0, 5.0)
    )
    assert one.item() == pytest.approx(other.item(), rel=1e-4)


def test_expected_regret_ignores_what_does_not_count() -> None:
    """What does not count is neither picked nor the fastest, and gets no gradient."""
    predicted = member(0.0, 0.1, -9.0, 0.2)
    loss = expected_regret(predicted, rows(0.1, 0.0, -7.0, math.inf), rows(1, 1, 0, 0).bool(), 0.1)
    loss.sum().backward()
    assert predicted.grad is not None
    assert predicted.grad[0, 2:].tolist() == [0.0, 0.0]
    alone = expected_regret(member(0.0, 0.1), rows(0.1, 0.0), rows(1, 1).bool(), 0.1)
    assert loss.item() == pytest.approx(alone.item())


def test_expected_regret_moves_share_to_the_fastest() -> None:
    """The loss falls when faster configs are predicted faster; the most for the fastest, and slow ones rise."""
    predicted = member(0.0, 0.0, 0.0)
    expected_regret(predicted, rows(0.0, 0.1, 0.9), rows(1, 1, 1).bool(), 0.1).sum().backward()
    assert predicted.grad is not None
    fastest, middle, slowest = predicted.grad[0].tolist()
    assert fastest > middle > 0 > slowest


def test_expected_regret_of_a_problem_without_configs_is_zero() -> None:
    """A problem that has no Triton choice adds nothing, and no NaN to the gradient."""
    predicted = member(0.3, 0.4)
    loss = expected_regret(predicted, rows(0.0, 0.5), rows(0, 0).bool(), 0.05)
    loss.sum().backward()
    assert predicted.grad is not None
    assert (loss.item(), predicted.grad.tolist()) == (0.0, [[0.0, 0.0]])


def test_regression_by_hand() -> None:
    """Errors 0.1 (quadratic) and 1.0 (linear) at delta 0.2: (0.1^2/2 + 0.2 (1 - 0.1)) / 2 / 0.2."""
    loss = regression(member(0.1, 1.0), rows(0.0, 0.0), rows(1.0, 1.0), 0.2)
    assert loss.item() == pytest.approx((0.005 + 0.18) / 2 / 0.2)


def test_regression_weighs() -> None:
    """An estimate at weight 0.2 counts a fifth of a median; weight 0 counts nothing."""
    target = rows(0.0, 0.0, 0.0)
    loss = regression(member(1.0, 0.0, 5.0), target, rows(0.2, 1.0, 0.0), 0.2)
    assert loss.item() == pytest.approx(0.2 * 0.18 / 1.2 / 0.2)


def test_regression_without_weight_is_zero() -> None:
    """A problem whose configs all failed adds nothing, and no NaN."""
    assert regression(member(1.0, 2.0), rows(0.0, 0.0), rows(0.0, 0.0), 0.2).item() == 0.0


def test_members_are_independent() -> None:
    """Each member has its own loss, which no other one's prediction enters."""
    predicted = torch.tensor([[0.0, 0.5], [0.3, 0.1]])
    target, counted = rows(0.0, 0.5), rows(1, 1).bool()
    for term in (listwise, expected_regret):
        both = term(predicted, target, counted, 0.1)
        assert both.shape == (2, 1)
        assert both[1].item() == pytest.approx(term(predicted[1:], target, counted, 0.1).item())


def test_problems_are_independent() -> None:
    """Problems of different lengths in one rectangle have the losses that each has alone; one without configs none."""
    counted = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    predicted = torch.tensor(
        [[[0.1, 0.0, 9.0], [0.0, 0.0, 0.0], [0.2, 0.5, 9.0]], [[0.3, 0.2, 0.0], [0, 0, 0], [0, 0.1, 9]]]
    )
    target = torch.tensor([[0.0, 0.3, 7.0], [0.0, 0.0, 0.0], [0.1, 0.0, 5.0]])
    weight = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.2, 5.0, 0.0]])
    ranked = ranked_loss(losses.listwise, predicted, target, counted, 0.1)
    lost = ranked_loss(losses.expected_regret, predicted, target, counted, 0.1)
    fitted = losses.regression(predicted, target, losses.weights(weight), 0.2)
    assert ranked.shape == lost.shape == fitted.shape == (2, 3)
    for problem, at in ((0, slice(2)), (2, slice(3))):
        there = predicted[:, problem, at], target[problem, at], counted[problem, at]
        torch.testing.assert_close(ranked[:, problem : problem + 1], listwise(*there, 0.1))
        torch.testing.assert_close(lost[:, problem : problem + 1], expected_regret(*there, 0.1))
        alone = regression(there[0], there[1], weight[problem, at], 0.2)
        torch.testing.assert_close(fitted[:, problem : problem + 1], alone)
    assert [term[:, 1].tolist() for term in (ranked, lost, fitted)] == [[0.0, 0.0]] * 3
