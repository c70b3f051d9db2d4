"""How much two timings of one kernel differ, where nobody measured it, and which times one cannot tell apart.

The figures are those of the view ``fastest_configs``; a test holds ``views/base.sql`` to them. They come from 1,141
(problem, config) pairs timed in two sweeps on an H200: the standard deviation of the log ratio of the two times.
"""

from __future__ import annotations

import math

SIGMA_BANDS: tuple[tuple[float, float], ...] = ((10, 0.11), (30, 0.07), (math.inf, 0.017))
"""(below so many microseconds, relative scatter), in ascending order."""
TIE_SIGMAS = 2
"""How many sigmas above the best still tie with it."""


def band_of(runtime_us: float) -> int:
    """Return the index of the band of ``SIGMA_BANDS`` that ``runtime_us`` lies in."""
    return next(i for i, (below, _) in enumerate(SIGMA_BANDS) if runtime_us < below)


def usual_sigma(runtime_us: float) -> float:
    """Return the relative scatter to expect at ``runtime_us``."""
    return SIGMA_BANDS[band_of(runtime_us)][1]


def slowest_tie_us(best_us: float, sigma: float) -> float:
    """Return the time up to which a config cannot be told from one that took ``best_us``."""
    return best_us * (1 + TIE_SIGMAS * sigma)
