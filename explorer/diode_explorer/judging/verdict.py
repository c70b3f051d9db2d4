"""By what models are judged, and how they do, as it comes back from where that is worked out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from diode_trainer.judging.metrics import Report
    from diode_trainer.report.content import Content

MOST_CASES = 1_000
"""That models are judged by; the first in the order of the problems' keys, which is a draw, and the same for all."""
FEWEST_UNSEEN = 40
"""So many that no model has learned from are enough to judge by those alone."""
UNSEEN, ALL = "unseen", "all"


@dataclass(frozen=True)
class Wanted:
    """Which models are judged, and by what."""

    models: tuple[tuple[Path, str], ...]
    """The file of each, and its SHA-256."""
    device: str
    environment: str | None = None
    """The key of one; None for all."""
    regime: str | None = None
    """As pages call it; None for all."""
    vendor: bool = True
    """Whether the vendor's kernels count."""
    problems: str | None = None
    """``UNSEEN`` or ``ALL``; None for those alone that no model has learned from where these are enough."""


class Judged(NamedTuple):
    """How a model did on one problem, in one environment and regime."""

    problem_key: str
    hardware: str
    environment_key: str
    regime_name: str
    problem: str
    family: str | None
    regret: float
    """By its first pick."""
    regret_5: float
    """By the best of the 5 that are tried first."""
    picked: str
    picked_us: float
    predicted_us: float | None
    """None where it considers every config impossible."""
    best: str
    best_us: float
    best_predicted_us: float | None
    vendor_us: float | None
    roofline_us: float
    configs: int
    is_tied: bool
    """Whether the first pick is within noise of the best."""

    @property
    def case(self) -> tuple[str, str, str]:
        """What tells it from other problems."""
        return self.problem_key, self.environment_key, self.regime_name


@dataclass(frozen=True)
class Verdict:
    """How one model did."""

    model: str
    """Its name among the reports."""
    reports: Mapping[str, Report]
    """The model's first, then those of simpler rankings."""
    parts: Mapping[str, Mapping[str, Report]]
    """By what problems are cut → part → the model's figures there."""
    judged: tuple[Judged, ...]
    """The costliest first."""
    learned_from: int
    """How many of those it was trained on."""
    notes: tuple[str, ...]
    """What a reader must know, each without a full stop."""
    left_out: tuple[str, ...]
    """A line for each simpler ranking that was not judged."""
    content: Content
    """What a report has of it."""


@dataclass(frozen=True)
class Verdicts:
    """How models did on the same problems."""

    models: tuple[Verdict, ...]
    there: int
    """How many problems there are, each once in every environment and regime."""
    unseen: int
    """How many of them no model has learned from."""
    is_of_unseen: bool
    """Whether they were judged by these alone."""
