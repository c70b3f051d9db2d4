"""Counts of what an exchange format cannot hold, for an export's note."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diode_store.ops import Problem


def why_not_held(problem: Problem) -> str | None:
    """Return why a format of matrix products, with their sizes alone, cannot hold a problem; None if it can.

    All problems of an op have one reason, so that a note has one line for each op.
    """
    if not problem.is_known:
        return problem.why_no_shape
    if problem.shape.dimensions:
        return f"the format has no field for the dimensions of {problem.op}"
    return None


@dataclass
class NotHeld:
    """Counts of what did not fit into a data set."""

    timings: int = 0
    """Number of timings in the data set."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of timings left out, by reason."""
    measurements_without: Counter[str] = field(default_factory=Counter)
    """Number of written measurements that lost a fact, by fact."""
    timings_without: Counter[str] = field(default_factory=Counter)
    """Number of written timings that lost a fact, by fact."""

    def lines(self) -> list[str]:
        """Return all counts as sentences; none if the data set holds everything."""
        measurements = [f"{n} measurements written without {what}" for what, n in self.measurements_without.items()]
        timings = [f"{n} timings written without {what}" for what, n in self.timings_without.items()]
        return [*self.left_out_lines(), *measurements, *timings]

    def left_out_lines(self) -> list[str]:
        """Return a sentence for each reason to leave timings out."""
        return [f"{n} timings left out: {why}" for why, n in self.left_out.items()]
