"""What a fit minimises: errors of predicted runtimes, of ranking the fastest configs, and what picking one loses.

Shapes: E members, b problems, r rows, one for each config of each problem. ``problem_of`` (r,) says whose a row is.
Each loss is given row by row; the loss of a problem is the sum of its rows. What depends on the measured times alone
(``Goals``) is computed once for a fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_FAR = -1e4
"""A logit that softmax turns into nothing."""
_MOST_REGRET = 1.0
"""In log runtime: a pick that is e times slower than the best, or more, is as bad as any."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """What is to be learned of the order of those configs that count."""

    counted: Tensor
    """(r,) which configs count."""
    share: Tensor
    """(r,) how likely a config is the fastest, by ``goal_shares``."""
    regret: Tensor
    """(r,) how much slower than the fastest, by ``regrets``."""

    def take(self, rows: Tensor) -> Ranking:
        """Return that of ``rows``."""
        return Ranking(self.counted[rows], self.share[rows], self.regret[rows])


@dataclass(frozen=True, eq=False)
class Goals:
    """What is to be learned from the measured times of whole problems."""

    weight: Tensor
    """(r,) share of a row in the regression of its problem, by ``weights``."""
    rankings: tuple[Ranking, ...]

    def take(self, rows: Tensor) -> Goals:
        """Return those of ``rows``, which are all of some problems."""
        return Goals(self.weight[rows], tuple(ranking.take(rows) for ranking in self.rankings))


def goal_shares(target: Tensor, counted: Tensor, problem_of: Tensor, problems: int, temperature: float) -> Tensor:
    """Return how likely each config is the fastest of its problem, (r,); 0 for those that do not count.

    Softmin: it falls by e for every ``temperature`` of log runtime that a config is behind.
    """
    return torch.exp(_log_shares(target[None], counted, problem_of, problems, temperature))[0] * counted


def regrets(target: Tensor, counted: Tensor, problem_of: Tensor, problems: int) -> Tensor:
    """Return how much slower than the fastest that counts each config was measured, in log runtime, at most 1.

    (r,); 0 for those that do not count.
    """
    least = target.new_full((problems,), math.inf)
    least = least.scatter_reduce(0, problem_of, target.masked_fill(~counted, math.inf), "amin")
    return (target - least[problem_of]).clamp(0, _MOST_REGRET).masked_fill(~counted, 0)


def weights(weight: Tensor, problem_of: Tensor, problems: int) -> Tensor:
    """Return the share of each row's ``weight`` in its problem, (r,)."""
    return weight / row_sums(weight[None], problem_of, problems)[0].clamp(min=1e-12)[problem_of]


def listwise(predicted: Tensor, goal: Ranking, problem_of: Tensor, problems: int, temperature: float) -> Tensor:
    """Return the cross entropy of which config is fastest, in units of log runtime.

    ListNet (Cao et al., "Learning to Rank", 2007) on softmin: the prediction gives each config a probability as
    ``goal_shares`` gives one to what was measured.

    Args:
        predicted: (E, r) log(runtime / roofline).
        goal: what was measured.
        problem_of: (r,) from 0 to ``problems`` - 1.
        problems: b.
        temperature: how far behind still counts, in log runtime.

    Returns:
        (E, r); 0 for a problem of which no config counts.
    """
    return _log_shares(predicted, goal.counted, problem_of, problems, temperature) * (goal.share * -temperature)


def expected_regret(predicted: Tensor, goal: Ranking, problem_of: Tensor, problems: int, temperature: float) -> Tensor:
    """Return what a pick by the prediction is expected to lose, in units of log runtime.

    The pick is drawn by softmin: ``sum(share * regret)`` over the configs that count, where ``share`` is
    ``softmax(-predicted / temperature)``.

    Args:
        predicted: (E, r) log(runtime / roofline).
        goal: what was measured.
        problem_of: (r,) from 0 to ``problems`` - 1.
        problems: b.
        temperature: how far behind may still be picked, in log runtime.

    Returns:
        (E, r); 0 for a problem of which no config counts.
    """
    return torch.exp(_log_shares(predicted, goal.counted, problem_of, problems, temperature)) * goal.regret


def regression(predicted: Tensor, target: Tensor, weight: Tensor, delta: float) -> Tensor:
    """Return the weighted mean Huber loss of log runtimes, in units of log runtime.

    Args:
        predicted: (E, r) log(runtime / roofline).
        target: (r,) likewise, measured.
        weight: (r,) by ``weights``; little for estimates.
        delta: from what error on, in log runtime, the loss grows linearly.

    Returns:
        (E, r)
    """
    loss = torch.nn.functional.huber_loss(predicted, target.expand_as(predicted), reduction="none", delta=delta)
    return loss * (weight / delta)


def row_sums(values: Tensor, problem_of: Tensor, problems: int) -> Tensor:
    """Return the sum of each problem's rows: (E, r) to (E, b)."""
    start = values.new_zeros(len(values), problems)
    return start.scatter_add(1, problem_of.expand_as(values), values)


def _log_shares(times: Tensor, counted: Tensor, problem_of: Tensor, problems: int, temperature: float) -> Tensor:
    """Return the logarithm of the softmin over each problem's rows that count: (E, r)."""
    logit = (times / -temperature).masked_fill(~counted, _FAR)
    index = problem_of.expand_as(logit)
    most = logit.new_full((len(logit), problems), _FAR).scatter_reduce(1, index, logit.detach(), "amax")
    behind = logit - most.gather(1, index)
    total = row_sums(torch.exp(behind), problem_of, problems)
    return behind - torch.log(total.clamp(min=1e-30)).gather(1, index)
