from __future__ import annotations

import math

import pytest
import torch

from diode_trainer.training import losses


def rows(*values: float) -> torch.Tensor:
    """Return one problem's configs, (r,)."""
    return torch.tensor(values)


def member(*values: float) -> torch.Tensor:
    """Return one member's predictions of one problem, (1, r)."""
    return torch.tensor([values], requires_grad=True)


def listwise(predicted: torch.Tensor, target: torch.Tensor, counted: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the listwise loss of one problem, (E, 1)."""
    return losses.listwise(predicted, target, counted, torch.zeros(len(target), dtype=torch.int64), 1, temperature)


def regression(predicted: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, delta: float) -> torch.Tensor:
    """Return the regression loss of one problem, (E, 1)."""
    return losses.regression(predicted, target, weight, torch.zeros(len(target), dtype=torch.int64), 1, delta)


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
    both = listwise(predicted, target, counted, 0.1)
    assert both.shape == (2, 1)
    assert both[1].item() == pytest.approx(listwise(predicted[1:], target, counted, 0.1).item())


def test_problems_are_independent() -> None:
    """Problems of different lengths, mixed, have the losses that each has alone; one without a config has none."""
    problem_of, counted = torch.tensor([0, 2, 0, 2, 2]), rows(1, 1, 1, 1, 0).bool()
    predicted = torch.tensor([[0.1, 0.2, 0.0, 0.5, 9.0], [0.3, 0.0, 0.2, 0.1, 9.0]])
    target, weight = rows(0.0, 0.1, 0.3, 0.0, 5.0), rows(1.0, 0.2, 1.0, 5.0, 0.0)
    ranked = losses.listwise(predicted, target, counted, problem_of, 3, 0.1)
    fitted = losses.regression(predicted, target, weight, problem_of, 3, 0.2)
    assert ranked.shape == fitted.shape == (2, 3)
    for problem, at in ((0, [0, 2]), (2, [1, 3, 4])):
        alone = listwise(predicted[:, at], target[at], counted[at], 0.1)
        torch.testing.assert_close(ranked[:, problem : problem + 1], alone)
        alone = regression(predicted[:, at], target[at], weight[at], 0.2)
        torch.testing.assert_close(fitted[:, problem : problem + 1], alone)
    assert (ranked[:, 1].tolist(), fitted[:, 1].tolist()) == ([0.0, 0.0], [0.0, 0.0])
