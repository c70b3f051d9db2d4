"""Clocks that can time the candidates left by the hook."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Clock(StrEnum):
    """A clock."""

    DEPLOYED = "deployed"
    """torch-diode's: launches hidden, operands not in the cache, kernels in turn."""
    INDUCTOR = "inductor"
    """Inductor's own benchmark."""


@dataclass(frozen=True)
class Timed:
    """Outcome of one benchmark by torch-diode's clock."""

    seconds: float
    spent_us: float
    """Estimated device time in microseconds."""
    is_as_predicted: bool
    """True if the kernel with the fastest prediction won."""
    is_by_prior: bool
    """True if the prediction decided: another kernel was faster, within noise."""
