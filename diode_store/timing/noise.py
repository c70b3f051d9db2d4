"""Scatter between two timings of one kernel, and times that are within noise of each other.

The scatter depends on how the times were taken: ``SIGMAS`` has a row for each known method. Each figure is the standard
deviation of log(t1 / t2), of two times of one kernel and problem in two sweeps on an H200. A sweep does not
time kernels of less than 30 us in ``read_flush``; these bands repeat the figures of ``write_flush``. The views
(``diode_store/views/noise_sql.py``) and ``diode-collect agreement`` use the same table.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diode_store.records import TimingMethod

if TYPE_CHECKING:
    from collections.abc import Iterable

BANDS_US = (10.0, 30.0, math.inf)
"""Upper ends of the bands of runtimes, in microseconds, ascending; each band begins at the end of the one before."""
SIGMAS: tuple[tuple[TimingMethod, tuple[float, ...]], ...] = (
    (TimingMethod(launch_hidden=True, regime="graph"), (0.006, 0.014, 0.009)),
    (TimingMethod(launch_hidden=True, regime="read_flush"), (0.017, 0.010, 0.015)),
    (TimingMethod(launch_hidden=True), (0.017, 0.010, 0.016)),
)
"""Method → relative scatter in each band. A field that is None matches any value; the first row that matches counts, so
a row that says more stands before one that says less."""
OTHER_SIGMAS = (0.11, 0.07, 0.017)
"""Scatter of times that include launches, or of unknown origin."""
TIE_SIGMAS = 2
"""Number of standard deviations above the best time that still tie with it."""


def band_of(runtime_us: float) -> int:
    """Return the index of the band of ``BANDS_US`` that ``runtime_us`` lies in."""
    return next(i for i, below in enumerate(BANDS_US) if runtime_us < below)


def sigmas_of(method: TimingMethod) -> tuple[float, ...]:
    """Return the relative scatter of a method in each band."""
    return next((sigmas for known, sigmas in SIGMAS if _matches(known, method)), OTHER_SIGMAS)


def usual_sigma(runtime_us: float, methods: Iterable[TimingMethod]) -> float:
    """Return the relative scatter to expect at ``runtime_us``; of several methods that of the noisiest."""
    return noisiest(methods)[band_of(runtime_us)]


def noisiest(methods: Iterable[TimingMethod]) -> tuple[float, ...]:
    """Return the relative scatter in each band of times that were taken by several methods: that of the noisiest."""
    return tuple(max(band) for band in zip(*map(sigmas_of, methods), strict=True))


def slowest_tie_us(best_us: float, sigma: float) -> float:
    """Return the time up to which a config is within noise of one that took ``best_us``."""
    return best_us * (1 + TIE_SIGMAS * sigma)


def _matches(known: TimingMethod, method: TimingMethod) -> bool:
    return all(value is None or value == getattr(method, name) for name, value in vars(known).items())
