"""Fits a calibration to what a recipe predicted for problems that it had not seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from diode_trainer.card import Calibration
from diode_trainer.judging.metrics import judgeable
from diode_trainer.uncertainty import WITHIN, Outlook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from diode_trainer.card import Domain
    from diode_trainer.data.dataset import Examples
    from diode_trainer.scoring import Prediction

_FEWEST_PROBLEMS = 40
"""Below this many problems a calibration says nothing."""
_FEWEST_OF_A_KIND = 20
"""Below this many first choices of a kind (the vendor's, templates), their spread is left as it starts."""
_START = Calibration(1.0, 1.0, 0.0, 1.0, 0.01, 0)
_SPREADS = (0.125, 8.0)
_PRICES = (1e-5, 1.0)
_HALVINGS = 8
_RIDGE = 1.0
"""Pulls the log-odds towards those drawn, as strongly as one problem."""


@dataclass(frozen=True, eq=False)
class Case:
    """One problem that a model had not seen: what it predicted, and what was measured."""

    member_logs: NDArray[np.float32]
    """(E, f) log(microseconds)."""
    is_vendor: NDArray[np.bool_]
    """(f,)"""
    measured: NDArray[np.float64]
    """(f,) log of the ratio to the fastest config that was measured."""

    @property
    def first(self) -> int:
        """The config that is predicted to be fastest."""
        return int(self.member_logs.mean(0).argmin())

    @property
    def loss(self) -> float:
        """How much longer it took than the fastest, as a logarithm of the ratio."""
        return float(self.measured[self.first])


def make_cases(
    examples: Sequence[Examples], predictions: Sequence[Prediction], domain: Domain | None = None
) -> list[Case]:
    """Pair predictions with measurements, where a choice was to be made inside ``domain`` (None: anywhere)."""
    cases = []
    for example, prediction in zip(examples, predictions, strict=True):
        distinct = prediction.without_repeats(example.ran)
        ran = example.ran[distinct.finalists]
        known = domain is None or not any(domain.misses(example.shape, example.hardware))
        if known and judgeable(example) and ran.sum() > 1 and len(distinct.member_logs) > 1:
            chosen = distinct.finalists[ran]
            measured = np.log(example.runtime_us[chosen] / example.runtime_us[example.ran].min())
            cases.append(Case(distinct.member_logs[:, ran], example.is_vendor[chosen], measured))
    return cases


def calibrate(cases: Sequence[Case]) -> Calibration | None:
    """Fit the spreads, the probability of being within 2% and the price of a kernel; None from too few problems.

    The spreads are such that first choices are expected to lose what they lost, those that are the vendor's and those
    that are templates alike. The price is such that one kernel a problem is timed.
    """
    if len(cases) < _FEWEST_PROBLEMS:
        return None
    # How slow a vendor's kernel may be matters little where a template comes first, so the two are fitted in turn.
    templates, vendors = ([c for c in cases if c.is_vendor[c.first] == kind] for kind in (False, True))
    found = _fit_spread(replace(_START, problems=len(cases)), templates, lambda c, s: replace(c, spread=s))
    found = _fit_spread(found, vendors, lambda c, s: replace(c, vendor_spread=s))
    outlooks = [_outlook(case, found) for case in cases]
    within = np.array([case.loss <= WITHIN for case in cases])
    offset, slope = _fit_odds(np.array([outlook.within_odds for outlook in outlooks]), within)
    price = _falls_to(1.0, _PRICES, lambda price: mean_timed([o.worth_timing(price) for o in outlooks]), 2 * _HALVINGS)
    return replace(found, within_offset=offset, within_slope=slope, kernel_price=price)


def calibrate_by_others(parts: Sequence[Sequence[Case]]) -> list[Calibration | None]:
    """Return for each part a calibration that is fitted to the others, so that the part can be judged by it."""
    return [calibrate([case for part in (*parts[:i], *parts[i + 1 :]) for case in part]) for i in range(len(parts))]


def mean_timed(kept: Sequence[Sequence[int]]) -> float:
    """Return how many kernels are timed in the mean; a config that is kept alone is not timed."""
    return float(np.mean([len(indices) if len(indices) > 1 else 0 for indices in kept]))


def _outlook(case: Case, calibration: Calibration) -> Outlook:
    return Outlook(case.member_logs, case.is_vendor, calibration)


def _fit_spread(
    start: Calibration, cases: Sequence[Case], change: Callable[[Calibration, float], Calibration]
) -> Calibration:
    """Return ``start`` with the spread that ``change`` sets so that ``cases`` are expected to lose what they lost."""
    if len(cases) < _FEWEST_OF_A_KIND:
        return start
    lost = float(np.mean([case.loss for case in cases]))

    def too_little(spread: float) -> float:
        calibration = change(start, spread)
        return lost - float(np.mean([_outlook(case, calibration).expected_loss for case in cases]))

    return change(start, _falls_to(0.0, _SPREADS, too_little, _HALVINGS))


def _falls_to(value: float, limits: tuple[float, float], function: Callable[[float], float], halvings: int) -> float:
    """Return where a falling function has ``value``, between positive ``limits``."""
    low, high = (math.log(limit) for limit in limits)
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if function(math.exp(middle)) > value else (low, middle)
    return math.exp((low + high) / 2)


def _fit_odds(drawn: NDArray[np.float64], within: NDArray[np.bool_]) -> tuple[float, float]:
    """Return offset and slope of a logistic regression, by Newton's method (Platt 1999)."""
    rows = np.stack((np.ones_like(drawn), drawn), 1)  # (m, 2)
    prior = np.array([0.0, 1.0])
    found = prior.copy()
    for _ in range(25):
        p = 1 / (1 + np.exp(-(rows @ found)))
        gradient = rows.T @ (p - within) + _RIDGE * (found - prior)
        curvature = rows.T @ (rows * (p * (1 - p))[:, None]) + _RIDGE * np.eye(2)
        found = found - np.linalg.solve(curvature, gradient)
    return float(found[0]), float(found[1])
