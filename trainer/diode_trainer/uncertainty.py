"""Confidence in the first choice, expected gain of timing others, and the choice of candidates to time together.

Ensemble members disagree where they learned little. Each draw adds two deviations to the predictions. A random mixture
of the members' deviations moves configs together. An independent deviation of each config moves them apart, for what no
member knows. A vendor kernel may be slower than predicted by more, since its time depends on a hidden choice of the
vendor library. The sizes of these deviations are fitted to problems outside the training data (``calibration``).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_trainer.card import Calibration

    Floats = NDArray[np.float32]

_DRAWS = 512
_CANDIDATES = 24
"""Limit on the configs that may turn out to be the best, beside the vendor kernel."""
_FAR = 0.5
"""Log ratio to the first choice's predicted time beyond which a template cannot be the best."""
_MOST_KEPT = 12
_USUAL_COMPILE_S = 0.4
"""Compile time of a usual kernel with tensor cores, which costs the price once."""
FEWEST_MEMBERS = 2
"""Fewest members with a spread."""
_TOGETHER_SPREAD = 0.6
"""Deviation of configs that are chosen together, as a share of the members' deviation, since the mean of the members
errs less. An additional deviation of each config would not help, and would make the choice depend on the other
candidates.
"""
MOST_TOGETHER = 10
"""Limit on the configs that are chosen together; further configs follow by predicted time."""
WITHIN = math.log(1.02)
"""Log ratio to the best time up to which a choice counts as good: 2%."""


class Outlook:
    """Distribution of the times of one problem's configs.

    Args:
        member_logs: (E, f) log microseconds predicted by each of at least two members.
        is_vendor: (f,) mask of the vendor kernels; the best of them is always considered.
        calibration: calibration of the model.
    """

    def __init__(self, member_logs: Floats, is_vendor: NDArray[np.bool_], calibration: Calibration) -> None:
        self._calibration = calibration
        mean = _mean_of_members(member_logs)
        self._order, self._vendor = _contenders(mean, is_vendor)
        mean, logs = mean[self._order], member_logs[:, self._order]
        spread = np.float32(calibration.spread)
        apart = (logs - mean) * np.float32(1 / math.sqrt(len(logs) - 1))
        own = np.sqrt(np.add.reduce(apart * apart))
        self._draws = _drawn(apart * spread, mean - mean[0], own * spread)  # (contenders, draws)
        if self._vendor is not None:
            beyond = own[self._vendor] * (np.float32(calibration.vendor_spread) - spread)
            self._draws[self._vendor] += np.maximum(_normal(len(own), 1)[self._vendor], 0) * beyond
        self._losses = self._draws[0] - np.minimum.reduce(self._draws)

    @property
    def expected_loss(self) -> float:
        """Expected log ratio of the first choice's time to the best time."""
        return float(_means(self._losses))

    @property
    def within_odds(self) -> float:
        """Log-odds over the draws that the first choice is within 2% of the best."""
        within = np.count_nonzero(self._losses <= WITHIN)
        return math.log((within + 0.5) / (_DRAWS - within + 0.5))

    @property
    def p_within_2pct(self) -> float:
        """Probability that the first choice is within 2% of the best."""
        odds = self._calibration.within_offset + self._calibration.within_slope * self.within_odds
        return (1 + math.tanh(odds / 2)) / 2

    def worth_timing(
        self, kernel_price: float | None = None, *, alone_is_free: bool = True, compile_s: Floats | None = None
    ) -> list[int]:
        """Return the configs to time against each other, the first choice first; it alone if no other is worth timing.

        Each step adds the config with the largest expected gain beyond its price, as long as all of them together gain
        more than they cost. The vendor kernel is always added first, to bound the cost of a wrong prediction.

        Args:
            kernel_price: relative gain that makes a kernel worth timing; by default the calibration's.
            alone_is_free: True if a config that is kept alone is not timed at all.
            compile_s: (f,) compile times in seconds; the price is for 0.4 s and grows with them.
        """
        kernel_price = self._calibration.kernel_price if kernel_price is None else kernel_price
        prices = np.full(len(self._order), kernel_price)
        if compile_s is not None:
            prices *= np.maximum(compile_s[self._order] / _USUAL_COMPILE_S, 1)
        best_so_far, kept, cost = self._draws[0], [0], float(prices[0])
        alone = mean = float(_means(best_so_far))
        found, most = kept, 0.0 if alone_is_free else -cost
        left = np.arange(1, len(self._order))
        while len(left) and len(kept) < _MOST_KEPT:
            is_forced = self._vendor is not None and self._vendor not in kept
            looked_at = np.array([self._vendor]) if is_forced else left
            best_with = np.minimum(self._draws[looked_at], best_so_far)
            means = _means(best_with)
            gains = mean - means - prices[looked_at]
            place = int(gains.argmax())
            if not is_forced:
                if gains[place] < 0:
                    break
                left = left[gains >= 0]  # gains only shrink as configs are added
            added = int(looked_at[place])
            left = left[left != added]
            best_so_far, mean, kept = best_with[place], float(means[place]), [*kept, added]
            cost += float(prices[added])
            if alone - mean - cost > most:
                found, most = kept, alone - mean - cost
        return [int(self._order[place]) for place in sorted(found)]


def timed_together(member_logs: Floats, count: int, *, first: int, also: NDArray[np.bool_] | None = None) -> list[int]:
    """Choose ``count`` of f configs to time, so that the fastest of them is expected to be fast.

    The selection is greedy. Each step adds the config that most improves the best over the draws, as it is fast when
    the others are slow. So every prefix is the selection for a smaller count. At most ``MOST_TOGETHER`` are chosen.

    Args:
        member_logs: (E, f) log microseconds predicted by each of at least two members.
        count: number of configs, at least 1.
        first: fastest prediction, always chosen.
        also: (f,) configs that may be chosen although 24 others are predicted to be faster; none by default.
    """
    mean = _mean_of_members(member_logs)
    near = np.argsort(mean, kind="stable")
    may_be = np.arange(len(near)) < _CANDIDATES
    near = near[may_be if also is None else may_be | also[near]]
    order = np.concatenate(([first], near[near != first]))
    apart = (member_logs[:, order] - mean[order]) * np.float32(_TOGETHER_SPREAD / math.sqrt(len(member_logs) - 1))
    draws = _drawn(apart, mean[order] - mean[first])  # (contenders, draws)
    best_so_far, chosen = draws[0], [0]
    while len(chosen) < min(count, MOST_TOGETHER, len(order)):
        means = _means(np.minimum(draws, best_so_far))
        means[chosen] = np.inf
        added = int(means.argmin())
        best_so_far, chosen = np.minimum(best_so_far, draws[added]), [*chosen, added]
    return [int(order[place]) for place in chosen]


def tried_in_turn(
    by_rank: NDArray[np.intp],
    scored: NDArray[np.intp],
    member_logs: Floats,
    count: int,
    *,
    also: NDArray[np.bool_] | None = None,
) -> NDArray[np.intp]:
    """Return n configs in the order of timing: ``count`` that are timed together, then the others.

    They keep the predicted order if there is no spread, or if not all members scored the first.

    Args:
        by_rank: (n,) configs, fastest predicted first.
        scored: (f,) configs that all members scored, in any order.
        member_logs: (E, f) log microseconds that each member predicts for these.
        count: number of configs to choose together.
        also: (f,) as in ``timed_together``.
    """
    first = np.flatnonzero(scored == by_rank[:1])
    if len(member_logs) < FEWEST_MEMBERS or not len(first):
        return by_rank
    together = scored[timed_together(member_logs, count, first=int(first[0]), also=also)]
    return np.concatenate((together, by_rank[~np.isin(by_rank, together)]))


def _drawn(apart: Floats, mean: Floats, own: Floats | None = None) -> Floats:
    """Draw the times of f configs, shape (f, draws).

    Args:
        apart: (E, f) deviation of each member from the mean, scaled so that the squares add up to a variance.
        mean: (f,) centers of the draws.
        own: (f,) independent deviation of each config; none by default.
    """
    parts = (apart, mean[None]) if own is None else (apart, mean[None], np.diag(own))
    drawn: Floats = np.concatenate(parts).T @ _normals(len(apart), 0 if own is None else len(own))
    return drawn


@lru_cache(maxsize=128)
def _normals(members: int, configs: int) -> Floats:
    """Return stacked draws: a row for each member, a row of ones, and a row for each config."""
    ones = np.ones((1, _DRAWS), dtype=np.float32)
    return np.concatenate((_normal(members, 0), ones, _normal(configs, 1)))


def _contenders(mean: Floats, is_vendor: NDArray[np.bool_]) -> tuple[NDArray[np.intp], int | None]:
    """Return the configs that may be the best, fastest first, and the position of the vendor kernel in them, if any."""
    order = mean.argsort(kind="stable")
    ordered, is_vendor = mean[order], is_vendor[order]
    usual = (~is_vendor & (ordered <= ordered[0] + _FAR)).nonzero()[0][:_CANDIDATES]
    vendor = int(is_vendor.argmax())
    if not is_vendor[vendor]:
        return order[usual], None
    place = int(usual.searchsorted(vendor))
    return order[np.concatenate((usual[:place], [vendor], usual[place:]))], place


def _mean_of_members(member_logs: Floats) -> Floats:
    """Return the mean over members, shape (f,), of (E, f)."""
    mean: Floats = np.add.reduce(member_logs) / np.float32(len(member_logs))
    return mean


def _means(draws: Floats) -> Floats:
    """Return means over draws, the last axis; for few numbers this is faster than ``mean``."""
    means: Floats = np.add.reduce(draws, -1) / np.float32(_DRAWS)
    return means


@lru_cache(maxsize=128)
def _normal(rows: int, seed: int) -> Floats:
    """Return reproducible draws from the normal distribution, shape (rows, draws).

    The second half mirrors the first, so that their mean is 0.
    """
    half = np.random.default_rng(seed).standard_normal((rows, _DRAWS // 2), dtype=np.float32)
    draws = np.concatenate((half, -half), 1)
    draws.flags.writeable = False
    return draws
