"""Fit a calibration to a recipe's predictions for unseen problems."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from diode_store.candidates.operands import has_whole_rows
from diode_trainer.card import Calibration, length_in_doublings
from diode_trainer.judging.metrics import judgeable
from diode_trainer.uncertainty import WITHIN, Outlook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from diode_trainer.card import Domain
    from diode_trainer.data.dataset import Examples
    from diode_trainer.scoring import Prediction

KERNEL_PRICE = 0.003
"""Relative gain that makes a kernel worth timing. For smaller gains the number of timed kernels grows faster than the
total gain.
"""
_FEWEST_PROBLEMS = 40
"""Fewest problems to fit a calibration to."""
_FEWEST_OF_A_KIND = 20
"""Fewest problems of a kind (vendor kernel first, odd rows, long lists) to fit its terms to."""
_LONG = 128
"""Length from which a list is long, so that shorter lists are sampled from it."""
_SHORTER = (4, 16)
"""Divisors of the lengths of long lists, to fit the effect of the length."""
_START = Calibration(1.0, 1.0, 0.0, 1.0, KERNEL_PRICE, 0)
_SPREADS = (0.125, 8.0)
_ODD_FACTORS = (0.25, 4.0)
_DOUBLING_FACTORS = (0.8, 1.25)
_HALVINGS = 8
_PRIOR = np.array([0.0, 1.0, 0.0, 0.0])
"""Prior of the regression, which leaves the drawn log-odds as they are: offset, slope, and terms of odd rows and
doublings.
"""
_ROUNDING = 1e-12
_RIDGE = 1.0
"""Weight of the prior: one problem."""


@dataclass(frozen=True, eq=False)
class Case:
    """Predictions and measurements of one unseen problem."""

    member_logs: NDArray[np.float32]
    """(E, f) log microseconds."""
    is_vendor: NDArray[np.bool_]
    """(f,)"""
    measured: NDArray[np.float64]
    """(f,) log ratio to the fastest measured config."""
    is_odd: bool = False
    """True if the rows of an operand are not a multiple of 16 bytes."""

    def outlook(self, calibration: Calibration) -> Outlook:
        """Return the distribution of the times under a calibration."""
        fitted = calibration.at(is_odd=self.is_odd, length=len(self.is_vendor))
        return Outlook(self.member_logs, self.is_vendor, fitted)

    def shorter(self, divisor: int) -> Case:
        """Return the case with a reproducible sample of its templates, a ``divisor``-th of them."""
        templates = np.flatnonzero(~self.is_vendor)
        left = self.is_vendor.copy()
        left[np.random.default_rng(0).choice(templates, len(templates) // divisor, replace=False)] = True
        measured = self.measured[left]
        return Case(self.member_logs[:, left], self.is_vendor[left], measured - measured.min(), self.is_odd)

    @property
    def first(self) -> int:
        """Index of the fastest prediction."""
        return int(self.member_logs.mean(0).argmin())

    @property
    def loss(self) -> float:
        """Log ratio of the first choice's time to the best time."""
        return float(self.measured[self.first])


def make_cases(
    examples: Sequence[Examples], predictions: Sequence[Prediction], domain: Domain | None = None
) -> list[Case]:
    """Pair predictions with measurements for judgeable problems inside ``domain`` (None: anywhere)."""
    cases = []
    for example, prediction in zip(examples, predictions, strict=True):
        distinct = prediction.without_repeats(example.ran)
        ran = example.ran[distinct.finalists]
        known = domain is None or not any(domain.misses(example.shape, example.hardware))
        if known and judgeable(example) and ran.sum() > 1 and len(distinct.member_logs) > 1:
            chosen = distinct.finalists[ran]
            measured = np.log(example.runtime_us[chosen] / example.runtime_us[example.ran].min())
            is_odd = not has_whole_rows(example.shape)
            cases.append(Case(distinct.member_logs[:, ran], example.is_vendor[chosen], measured, is_odd))
    return cases


def calibrate(cases: Sequence[Case]) -> Calibration | None:
    """Fit the spreads and the probability of being within 2%; None from too few problems.

    The spreads make the expected loss of first choices equal to their actual loss. Each kind has its own terms: vendor
    kernels and templates as first choice, whole and odd rows, and long lists and short samples of them.
    """
    if len(cases) < _FEWEST_PROBLEMS:
        return None
    # The spread of vendor kernels matters little if a template comes first, so the two are fitted alternately.
    templates, vendors = ([c for c in cases if c.is_vendor[c.first] == kind] for kind in (False, True))
    odd = [case for case in templates if case.is_odd]
    whole = [case for case in templates if not case.is_odd]
    found = replace(_START, problems=len(cases))
    if len(whole) < _FEWEST_OF_A_KIND:
        whole, odd = templates, []
    found = _fit_spread(found, whole, _SPREADS, lambda c, s: replace(c, spread=s))
    found = _fit_spread(found, odd, _ODD_FACTORS, lambda c, s: replace(c, odd_spread=math.log(s)))
    found = _fit_spread(found, vendors, _SPREADS, lambda c, s: replace(c, vendor_spread=s))
    long = [case for case in cases if len(case.is_vendor) >= _LONG]
    if len(long) < _FEWEST_OF_A_KIND:
        return _fit_odds(found, cases, np.ones(len(cases)), of_odd=bool(odd), of_length=False)
    pairs = [case for of in long for case in (of, *map(of.shorter, _SHORTER))]
    found = _fit_length(found, pairs)
    # Each problem counts once, however many lists it yields.
    some = [case for case in cases if len(case.is_vendor) < _LONG]
    weights = np.repeat((1.0, len(long) / len(pairs)), (len(some), len(pairs)))
    return _fit_odds(found, [*some, *pairs], weights, of_odd=bool(odd), of_length=True)


def calibrate_by_others(parts: Sequence[Sequence[Case]]) -> list[Calibration | None]:
    """Return for each part a calibration fitted to the other parts, so that the part can judge it."""
    return [calibrate([case for part in (*parts[:i], *parts[i + 1 :]) for case in part]) for i in range(len(parts))]


def _fit_spread(
    start: Calibration,
    cases: Sequence[Case],
    limits: tuple[float, float],
    change: Callable[[Calibration, float], Calibration],
) -> Calibration:
    """Return ``start``, changed so that the expected loss of ``cases`` equals their actual loss."""
    if len(cases) < _FEWEST_OF_A_KIND:
        return start
    lost = float(np.mean([case.loss for case in cases]))

    def too_little(factor: float) -> float:
        calibration = change(start, factor)
        return lost - float(np.mean([case.outlook(calibration).expected_loss for case in cases]))

    return change(start, _falls_to(0.0, limits, too_little, _HALVINGS))


def _fit_length(start: Calibration, cases: Sequence[Case]) -> Calibration:
    """Return ``start`` with the factor per doubling that leaves no trend over the lengths of these lists."""
    doublings = np.array([length_in_doublings(len(case.is_vendor)) for case in cases])
    doublings -= doublings.mean()
    lost = np.array([case.loss for case in cases])

    def trend(factor: float) -> float:
        calibration = replace(start, length_spread=math.log(factor))
        expected = np.array([case.outlook(calibration).expected_loss for case in cases])
        return float((lost - expected) @ doublings)

    return replace(start, length_spread=math.log(_falls_to(0.0, _DOUBLING_FACTORS, trend, _HALVINGS)))


def _falls_to(value: float, limits: tuple[float, float], function: Callable[[float], float], halvings: int) -> float:
    """Return the argument between positive ``limits`` at which a falling function has ``value``."""
    low, high = (math.log(limit) for limit in limits)
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if function(math.exp(middle)) > value else (low, middle)
    return math.exp((low + high) / 2)


def _fit_odds(
    start: Calibration, cases: Sequence[Case], weights: NDArray[np.float64], *, of_odd: bool, of_length: bool
) -> Calibration:
    """Return ``start`` with a logistic regression on the drawn log-odds, by Newton's method (Platt 1999).

    With few informative cases a full step may diverge, so each step is halved until the fit improves.
    """
    within = np.array([case.loss <= WITHIN for case in cases])
    drawn = [case.outlook(start).within_odds for case in cases]
    rows = np.stack(
        (
            np.ones(len(cases)),
            np.array(drawn),
            np.array([of_odd and case.is_odd for case in cases]),
            np.array([of_length * length_in_doublings(len(case.is_vendor)) for case in cases]),
        ),
        axis=1,
    )

    def loss(found: NDArray[np.float64]) -> float:
        odds, away = rows @ found, found - _PRIOR
        return float(weights @ (np.logaddexp(0, odds) - within * odds) + _RIDGE / 2 * (away @ away))

    found = _PRIOR.copy()
    for _ in range(25):
        p = np.exp(-np.logaddexp(0, -(rows @ found)))
        gradient = rows.T @ (weights * (p - within)) + _RIDGE * (found - _PRIOR)
        curvature = rows.T @ (rows * (weights * p * (1 - p))[:, None]) + _RIDGE * np.eye(len(found))
        step = np.linalg.solve(curvature, gradient)
        most = loss(found) * (1 + _ROUNDING)
        while loss(found - step) > most:
            step /= 2
        found = found - step
    offset, slope, odd, doubling = found.tolist()
    return replace(start, within_offset=offset, within_slope=slope, odd_offset=odd, length_offset=doubling)
