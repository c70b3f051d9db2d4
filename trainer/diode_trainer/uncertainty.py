"""How sure a model is of its first choice, what timing some of the others would gain, and which to time together.

The members of a model disagree where they learned little. Each draw adds to what is predicted a random mixture of
their deviations, and to each config, independently, a deviation of its own: the one moves configs together, as members
do, the other apart, as what no member knows does. A vendor's kernel may be slower than predicted by more, since its
time hangs on a choice that the vendor's library does not show. How large these are is fitted to problems that the
model had not seen (``calibration``).
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
"""Most configs that may turn out to be the best, beside the vendor's."""
_FAR = 0.5
"""Log of the ratio to the first choice's predicted time beyond which a template is not one of them."""
_MOST_KEPT = 12
FEWEST_MEMBERS = 2
"""One disagrees with nobody."""
_TOGETHER_SPREAD = 0.6
"""How far configs deviate where they are chosen together, as a share of how far members do: their mean errs less. On
4,120 bundled problems (five folds, six members) three configs lose 0.53% and five 0.23%; with 1.0 they lose 0.54 and
0.25%, and those predicted fastest 0.62 and 0.26%. That each deviates by itself as well would bring nothing (a quarter
as far: 0.56%), and then what is chosen would depend on what else is listed."""
MOST_TOGETHER = 10
"""As many are chosen together; further ones are timed in the order of what is predicted."""
WITHIN = math.log(1.02)
"""How far from the best a choice may be to count as good: 2%."""


class Outlook:
    """How the times of one problem's configs may turn out.

    Args:
        member_logs: (E, f) log of the microseconds that each of at least two members predicts.
        is_vendor: (f,) which configs are a vendor's; the best of them is always considered.
        calibration: of the model.
    """

    def __init__(self, member_logs: Floats, is_vendor: NDArray[np.bool_], calibration: Calibration) -> None:
        self._calibration = calibration
        mean = member_logs.mean(0)
        self._order, self._vendor = _contenders(mean, is_vendor)
        logs = member_logs[:, self._order]
        shared, own = _shared(logs), _normal(len(self._order), 1) * logs.std(0, ddof=1)[:, None]
        self._draws = (shared + own) * np.float32(calibration.spread)  # (contenders, draws)
        if self._vendor is not None:
            slower = np.maximum(own[self._vendor], 0)
            self._draws[self._vendor] += slower * np.float32(calibration.vendor_spread - calibration.spread)
        self._draws += (mean[self._order] - mean[self._order[0]])[:, None]
        self._losses = self._draws[0] - self._draws.min(0)

    @property
    def expected_loss(self) -> float:
        """How much longer the first choice is expected to take than the best, as a logarithm of the ratio."""
        return float(self._losses.mean())

    @property
    def within_odds(self) -> float:
        """The log-odds, as drawn, that the first choice is within 2% of the best."""
        within = int((self._losses <= WITHIN).sum())
        return math.log((within + 0.5) / (_DRAWS - within + 0.5))

    @property
    def p_within_2pct(self) -> float:
        """How likely the first choice is within 2% of the best."""
        calibration = self._calibration
        return 1 / (1 + math.exp(-(calibration.within_offset + calibration.within_slope * self.within_odds)))

    def worth_timing(self, kernel_price: float | None = None, *, alone_is_free: bool = True) -> list[int]:
        """Return which of the f configs to time against each other, the first choice first; it alone when none is.

        One after another is added, each time the one that is expected to gain most, as long as all of them together
        gain more than they cost. The vendor's kernel is always the first that is added, so that it bounds what a
        wrong prediction costs.

        Args:
            kernel_price: the relative gain for which a kernel is worth timing; the calibration's unless given.
            alone_is_free: that a config that is left alone is not timed at all.
        """
        kernel_price = self._calibration.kernel_price if kernel_price is None else kernel_price
        best_so_far, kept = self._draws[0], [0]
        found, gain, most = kept, 0.0, 0.0 if alone_is_free else -kernel_price
        while len(kept) < min(_MOST_KEPT, len(self._order)):
            best_with = np.minimum(self._draws, best_so_far)
            means = best_with.mean(1)
            means[kept] = np.inf
            forced = self._vendor if self._vendor not in kept else None
            added = int(means.argmin()) if forced is None else forced
            gained = float(best_so_far.mean() - means[added])
            if forced is None and gained < kernel_price:
                break
            best_so_far, kept, gain = best_with[added], [*kept, added], gain + gained
            if gain - kernel_price * len(kept) > most:
                found, most = kept, gain - kernel_price * len(kept)
        return [int(self._order[place]) for place in sorted(found)]


def timed_together(member_logs: Floats, count: int, *, first: int, also: NDArray[np.bool_] | None = None) -> list[int]:
    """Return which of f configs to time where ``count`` are, such that the fastest of them is expected to be fast.

    After the first each of the next is the one that brings most to those before it, over draws of how all may turn out:
    one that is fast where they are slow. So the first k are what is chosen for any smaller k, and among themselves as
    well. None is beyond ``MOST_TOGETHER``.

    Args:
        member_logs: (E, f) log of the microseconds that each of at least two members predicts.
        count: how many, at least 1.
        first: the one that is predicted to be fastest, which is timed in any case.
        also: (f,) which may be chosen though 24 others are predicted to be faster; none unless given.
    """
    mean = member_logs.mean(0)
    near = np.argsort(mean, kind="stable")
    may_be = np.arange(len(near)) < _CANDIDATES
    near = near[may_be if also is None else may_be | also[near]]
    order = np.concatenate(([first], near[near != first]))
    draws = _shared(member_logs[:, order]) * np.float32(_TOGETHER_SPREAD)
    draws += (mean[order] - mean[first])[:, None]  # (contenders, draws)
    best_so_far, chosen = draws[0], [0]
    while len(chosen) < min(count, MOST_TOGETHER, len(order)):
        means = np.minimum(draws, best_so_far).mean(1)
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
    """Return n configs in the order in which they are tried: ``count`` that are timed together, then the others.

    They come as predicted where no members disagree, or not all of them scored the first.

    Args:
        by_rank: (n,) the configs, the one predicted fastest first.
        scored: (f,) those of them that all members scored, in any order.
        member_logs: (E, f) log of the microseconds that each member predicts for these.
        count: how many are to go together.
        also: (f,) as in ``timed_together``.
    """
    first = np.flatnonzero(scored == by_rank[:1])
    if len(member_logs) < FEWEST_MEMBERS or not len(first):
        return by_rank
    together = scored[timed_together(member_logs, count, first=int(first[0]), also=also)]
    return np.concatenate((together, by_rank[~np.isin(by_rank, together)]))


def _shared(member_logs: Floats) -> Floats:
    """Return draws of how configs may deviate from what is predicted as members do, shape (f, draws), from (E, f)."""
    members = len(member_logs)
    deviations = (member_logs - member_logs.mean(0)).T
    drawn: Floats = deviations @ _normal(members, 0) / np.float32(math.sqrt(members - 1))
    return drawn


def _contenders(mean: Floats, is_vendor: NDArray[np.bool_]) -> tuple[NDArray[np.intp], int | None]:
    """Return which configs may be the best, fastest first, and which of those is the vendor's, if any."""
    order = np.argsort(mean, kind="stable")
    vendors = order[is_vendor[order]]
    usual = order[~is_vendor[order]][:_CANDIDATES]
    limit = mean[order[0]] + _FAR
    near = np.concatenate((usual[mean[usual] <= limit], vendors[:1]))
    near = near[np.argsort(mean[near], kind="stable")]
    return near, int(np.flatnonzero(is_vendor[near])[0]) if len(vendors) else None


@lru_cache(maxsize=128)
def _normal(rows: int, seed: int) -> Floats:
    """Return draws from the normal distribution, shape (rows, draws), the same every time.

    The second half mirrors the first, so that their mean is 0.
    """
    half = np.random.default_rng(seed).standard_normal((rows, _DRAWS // 2), dtype=np.float32)
    draws = np.concatenate((half, -half), 1)
    draws.flags.writeable = False
    return draws
