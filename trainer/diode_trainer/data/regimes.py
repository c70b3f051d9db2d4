"""Conversion of times between regimes: every model learns and predicts the deployed time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from diode_store.records import WRITE_FLUSH

if TYPE_CHECKING:
    from numpy.typing import NDArray

WRITE_FLUSH_US = 4.0
"""Microseconds that a write flush adds to the reading of a kernel (docs/results/timing-regimes.md)."""
IN_WRITE_FLUSH = f"predictions are for the regime {WRITE_FLUSH}: deployed ones, and {WRITE_FLUSH_US:g} us for the flush"
_FEWEST_SHARE = 0.25
"""Smallest share of a time behind a write flush that is taken for the kernel."""

_Time = TypeVar("_Time", float, "NDArray[np.float64]")


def in_regime(deployed_us: _Time, regime: str | None) -> _Time:
    """Convert predicted deployed times to the times in a regime, in microseconds."""
    return deployed_us + WRITE_FLUSH_US if regime == WRITE_FLUSH else deployed_us


def as_deployed(measured_us: NDArray[np.float64], regime: str | None) -> NDArray[np.float64]:
    """Convert measured times, shape (n,), to deployed times, in microseconds."""
    if regime != WRITE_FLUSH:
        return measured_us
    return np.maximum(measured_us - WRITE_FLUSH_US, _FEWEST_SHARE * measured_us)
