"""Weigh measured times of a few kernels against the model's predictions.

The model decides between kernels that the clock cannot tell apart. Let m_i be the measured log time of kernel i, with
variance v_i, and p_i its prediction, with variance s_i², up to an offset c that all predictions share. The posterior
mean of the log time is (m_i / v_i + (c + p_i) / s_i²) / (1 / v_i + 1 / s_i²). The offset c is the mean of m - p
weighted by 1 / (v + s²). The model errs by several percent and the clock by less than one, so a prediction shifts a
time by little more than noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diode_store.timing.noise import usual_sigma

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_integration.decide.ranking import Ranking
    from diode_store.records import TimingMethod

_SPREAD_IF_UNKNOWN = 0.1
"""Standard deviation of a predicted log time without a calibration."""
_LEAST_SPREAD = 0.02
"""Least standard deviation, whatever the members agree on; no model predicts better."""


@dataclass(frozen=True)
class Expected:
    """The model's expectation of one kernel."""

    us: float
    """Predicted time of the kernel alone in microseconds; not finite if there is none."""
    spread: float
    """Standard deviation of the logarithm of the time about the prediction."""


NOTHING_EXPECTED = Expected(math.nan, _SPREAD_IF_UNKNOWN)


def expected_of(ranking: Ranking, index: int) -> Expected:
    """Return the expectation of one of a ranking's candidates."""
    us, spread = float(ranking.kernels_us[index]), ranking.spread
    if spread is None or spread.calibration is None or index not in spread.indices:
        return Expected(us, _SPREAD_IF_UNKNOWN)
    factor = spread.calibration.vendor_spread if ranking.is_vendor[index] else spread.calibration.spread
    members = spread.member_logs[:, spread.indices == index]
    return Expected(us, max(float(members.std(0, ddof=1)[0]) * factor, _LEAST_SPREAD))


def repeat_error(us: float, method: TimingMethod) -> float:
    """Return the standard deviation of a log time from one run of the clock to the next.

    ``diode_store.timing.noise`` has the standard deviation of the ratio of two times.
    """
    return usual_sigma(us, [method]) / math.sqrt(2)


def posterior(
    logs: NDArray[np.float64],
    errors: NDArray[np.float64],
    predicted: NDArray[np.float64],
    spreads: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the posterior mean of each log time, shape (n,).

    Args:
        logs: measured log times, shape (n,).
        errors: their standard errors above 0, shape (n,).
        predicted: predicted log times, shape (n,); NaN without a prediction, which leaves the measured time.
        spreads: standard deviations of the predictions, shape (n,).
    """
    known = np.isfinite(predicted)
    if known.sum() < 2:  # noqa: PLR2004 - the offset takes one
        return logs
    of_clock, of_model = errors**2, spreads**2
    weights = np.where(known, 1 / (of_clock + of_model), 0.0)
    offset = np.sum(weights * np.where(known, logs - predicted, 0.0)) / weights.sum()
    mixed: NDArray[np.float64] = (logs * of_model + (offset + predicted) * of_clock) / (of_clock + of_model)
    return np.where(known, mixed, logs)
