"""Losses of a fit: error of predicted runtimes, error of the ranking, and regret of a pick.

Shapes: E members, b problems, c configs of the longest list. Shorter lists are padded, and padding counts nowhere.
Each loss has the shape (E, b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from diode_trainer.training.batches import PAD

if TYPE_CHECKING:
    from torch import Tensor

    from diode_trainer.data.tensors import Packed
    from diode_trainer.training.recipe import Recipe

_FAR = -1e4
"""Logit whose softmax is zero."""
_MOST_REGRET = 1.0
"""Largest regret, in log runtime: slower picks count as if they were e times slower than the best."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Target order of the configs that count."""

    counted: Tensor
    """(b, c) bool: configs that count."""
    share: Tensor
    """(b, c) probability of being the fastest, by ``goal_shares``."""
    regret: Tensor
    """(b, c) distance to the fastest config, by ``regrets``."""

    @classmethod
    def measured(cls, target: Tensor, counted: Tensor, temperature: float) -> Ranking:
        """Return the order of measured times ``target``, (b, c) log(runtime / roofline)."""
        return cls(counted, goal_shares(target, counted, temperature), regrets(target, counted))

    def take(self, problems: Tensor) -> Ranking:
        """Return the order of some of the problems."""
        return Ranking(self.counted[problems], self.share[problems], self.regret[problems])


@dataclass(frozen=True, eq=False)
class Goals:
    """Measured times of b problems, and their target orders."""

    target: Tensor
    """(b, c) log(runtime / roofline)."""
    weight: Tensor
    """(b, c) by ``weights``."""
    rankings: tuple[Ranking, ...]
    """Orders of all configs, and of the configs that are not vendor kernels."""

    @classmethod
    def of_table(cls, packed: Packed, table: Tensor, recipe: Recipe) -> Goals:
        """Return the goals of ``table``, (b, c) rows of ``packed`` as ``ConfigLists`` draws them."""
        there, rows = table != PAD, table.clamp(min=0)
        vendor = packed.vendor[rows]
        weight = torch.where(packed.estimate[rows], recipe.estimate_weight, 1.0)
        weight = weight * torch.where(vendor, recipe.vendor_weight, 1.0) * there
        target = packed.target[rows] * there
        counted = (there, there & ~vendor)
        return cls(
            target,
            weights(weight),
            tuple(Ranking.measured(target, some, recipe.temperature) for some in counted),
        )

    def take(self, problems: Tensor) -> Goals:
        """Return the goals of some of the problems."""
        return Goals(
            self.target[problems], self.weight[problems], tuple(ranking.take(problems) for ranking in self.rankings)
        )


def loss_of(predicted: Tensor, goals: Goals, recipe: Recipe) -> Tensor:
    """Return the loss of predictions (E, b, c) by member and problem, (E, b)."""
    loss = regression(predicted, goals.target, goals.weight, recipe.huber_delta)
    importances = (recipe.listwise_weight, recipe.triton_listwise_weight)
    for importance, goal in zip(importances, goals.rankings, strict=True):
        if importance:
            loss = loss + importance * listwise(predicted, goal, recipe.temperature)
        if recipe.regret_weight:
            loss = loss + recipe.regret_weight * expected_regret(predicted, goal, recipe.regret_temperature)
    return loss


def goal_shares(target: Tensor, counted: Tensor, temperature: float) -> Tensor:
    """Return the probability that each config is the fastest of its problem, (b, c); 0 if it does not count.

    Softmin: the probability falls by a factor e for each ``temperature`` of additional log runtime.
    """
    return _log_shares(target, counted, temperature).exp() * counted


def regrets(target: Tensor, counted: Tensor) -> Tensor:
    """Return the distance of each config to the fastest that counts, (b, c), in log runtime and at most 1."""
    least = target.masked_fill(~counted, math.inf).amin(1, keepdim=True)
    return (target - least).masked_fill(~counted, 0).clamp(0, _MOST_REGRET)


def weights(weight: Tensor) -> Tensor:
    """Normalize the weights of each problem's configs to sum 1, (b, c)."""
    return weight / weight.sum(1, keepdim=True).clamp(min=1e-12)


def listwise(predicted: Tensor, goal: Ranking, temperature: float) -> Tensor:
    """Return the cross entropy between predicted and measured probabilities to be the fastest, in log runtime.

    ListNet (Cao et al., "Learning to Rank", 2007) on softmin, with the probabilities of ``goal_shares``.

    Args:
        predicted: (E, b, c) log(runtime / roofline).
        goal: measured order.
        temperature: log runtime behind the fastest that still counts.

    Returns:
        (E, b); 0 for a problem without a config that counts.
    """
    return (_log_shares(predicted, goal.counted, temperature) * (goal.share * -temperature)).sum(2)


def expected_regret(predicted: Tensor, goal: Ranking, temperature: float) -> Tensor:
    """Return the expected regret of a pick by the prediction, in log runtime.

    A pick is drawn by softmin: the result is ``sum(share * regret)`` over the configs that count, where ``share`` is
    ``softmax(-predicted / temperature)``.

    Args:
        predicted: (E, b, c) log(runtime / roofline).
        goal: measured order.
        temperature: log runtime behind the fastest that may still be picked.

    Returns:
        (E, b); 0 for a problem without a config that counts.
    """
    return (_log_shares(predicted, goal.counted, temperature).exp() * goal.regret).sum(2)


def regression(predicted: Tensor, target: Tensor, weight: Tensor, delta: float) -> Tensor:
    """Return the weighted mean Huber loss of log runtimes, in log runtime.

    Args:
        predicted: (E, b, c) log(runtime / roofline).
        target: (b, c) measured log(runtime / roofline).
        weight: (b, c) by ``weights``; small for estimates, 0 for padding.
        delta: error in log runtime from which the loss grows linearly.

    Returns:
        (E, b)
    """
    loss = torch.nn.functional.huber_loss(predicted, target.expand_as(predicted), reduction="none", delta=delta)
    return (loss * (weight / delta)).sum(2)


def _log_shares(times: Tensor, counted: Tensor, temperature: float) -> Tensor:
    """Return the logarithm of the softmin over the configs that count, along the last dimension."""
    return torch.log_softmax((times / -temperature).masked_fill(~counted, _FAR), -1)
