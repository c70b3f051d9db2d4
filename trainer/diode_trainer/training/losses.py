"""What a fit minimises: errors of predicted runtimes, of ranking the fastest configs, and what picking one loses.

Shapes: E members, b problems, r rows, one for each config of each problem. ``problem_of`` (r,) says whose a row is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_FAR = -1e4
"""A logit that softmax turns into nothing."""
_MOST_REGRET = 1.0
"""In log runtime: a pick that is e times slower than the best, or more, is as bad as any."""


def listwise(
    predicted: Tensor, target: Tensor, counted: Tensor, problem_of: Tensor, problems: int, temperature: float
) -> Tensor:
    """Return the cross entropy of which config is fastest, in units of log runtime.

    ListNet (Cao et al., "Learning to Rank", 2007) on softmin: the target gives each config a probability that
    falls by e for every ``temperature`` of log runtime it is behind, and so does the prediction.

    Args:
        predicted: (E, r) log(runtime / roofline).
        target: (r,) likewise, measured.
        counted: (r,) which configs count.
        problem_of: (r,) from 0 to ``problems`` - 1.
        problems: b.
        temperature: how far behind still counts, in log runtime.

    Returns:
        (E, b); 0 for a problem of which no config counts.
    """
    logit = (-predicted / temperature).masked_fill(~counted, _FAR)
    goal = (-target / temperature).masked_fill(~counted, _FAR)
    share = _shares(goal[None], problem_of, problems)[0] * counted
    has_any = _sums(counted[None].to(share.dtype), problem_of, problems) > 0
    entropy = _log_sum_exp(logit, problem_of, problems) - _sums(logit * share, problem_of, problems)
    return entropy.masked_fill(~has_any, 0) * temperature


def expected_regret(
    predicted: Tensor, target: Tensor, counted: Tensor, problem_of: Tensor, problems: int, temperature: float
) -> Tensor:
    """Return what a pick by the prediction is expected to lose, in units of log runtime.

    The pick is drawn by softmin: ``sum(share * regret)`` over the configs that count, where ``share`` is
    ``softmax(-predicted / temperature)`` and ``regret`` how much slower than the fastest of them a config was
    measured, ``target - min(target)``, at most 1.

    Args:
        predicted: (E, r) log(runtime / roofline).
        target: (r,) likewise, measured.
        counted: (r,) which configs count.
        problem_of: (r,) from 0 to ``problems`` - 1.
        problems: b.
        temperature: how far behind may still be picked, in log runtime.

    Returns:
        (E, b); 0 for a problem of which no config counts.
    """
    logit = (-predicted / temperature).masked_fill(~counted, _FAR)
    share = _shares(logit, problem_of, problems) * counted
    least = target.new_full((problems,), math.inf)
    least = least.scatter_reduce(0, problem_of, target.masked_fill(~counted, math.inf), "amin")
    regret = (target - least[problem_of]).clamp(0, _MOST_REGRET)
    return _sums(share * regret, problem_of, problems)


def regression(
    predicted: Tensor, target: Tensor, weight: Tensor, problem_of: Tensor, problems: int, delta: float
) -> Tensor:
    """Return the weighted mean Huber loss of log runtimes, in units of log runtime.

    Args:
        predicted: (E, r) log(runtime / roofline).
        target: (r,) likewise, measured.
        weight: (r,) how much each config counts; little for estimates.
        problem_of: (r,) from 0 to ``problems`` - 1.
        problems: b.
        delta: from what error on, in log runtime, the loss grows linearly.

    Returns:
        (E, b)
    """
    loss = torch.nn.functional.huber_loss(predicted, target.expand_as(predicted), reduction="none", delta=delta)
    total = _sums(weight[None], problem_of, problems)[0].clamp(min=1e-12)
    return _sums(loss * (weight / total[problem_of]), problem_of, problems) / delta


def _sums(values: Tensor, problem_of: Tensor, problems: int) -> Tensor:
    """Return the sum of each problem's rows: (E, r) to (E, b)."""
    start = values.new_zeros(len(values), problems)
    return start.scatter_add(1, problem_of.expand_as(values), values)


def _shares(logit: Tensor, problem_of: Tensor, problems: int) -> Tensor:
    """Return the softmax over each problem's rows: (E, r)."""
    total = _log_sum_exp(logit, problem_of, problems)
    return torch.exp(logit - total.gather(1, problem_of.expand_as(logit)))


def _log_sum_exp(logit: Tensor, problem_of: Tensor, problems: int) -> Tensor:
    """Return the logarithm of each problem's sum of exponentials: (E, r) to (E, b)."""
    index = problem_of.expand_as(logit)
    most = logit.new_full((len(logit), problems), _FAR).scatter_reduce(1, index, logit.detach(), "amax")
    total = _sums(torch.exp(logit - most.gather(1, index)), problem_of, problems)
    return most + torch.log(total.clamp(min=1e-30))
