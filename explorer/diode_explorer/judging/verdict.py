"""Requests to evaluate models, and the results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from diode_trainer.judging.metrics import Report
    from diode_trainer.report.evaluation.content import Content

MOST_CASES = 1_000
"""Maximum number of problems. The first by key are taken: a draw that is the same for all models."""
FEWEST_UNSEEN = 40
"""Number of unseen problems that is enough to leave out the others."""
UNSEEN, ALL = "unseen", "all"


@dataclass(frozen=True)
class Wanted:
    """A request: models, and the problems to evaluate them on."""

    models: tuple[tuple[Path, str], ...]
    """File and SHA-256 of each model."""
    device: str
    environment: str | None = None
    """Key of an environment; None for all."""
    regime: str | None = None
    """Regime as pages call it; None for all."""
    vendor: bool = True
    """True if vendor kernels count."""
    problems: str | None = None
    """``UNSEEN`` or ``ALL``; None for unseen problems alone if there are enough."""


class JudgedProblem(NamedTuple):
    """A model's result on one problem, in one environment and regime."""

    problem_key: str
    hardware: str
    environment_key: str
    regime_name: str
    problem: str
    family: str | None
    regret: float
    """Regret of the first pick."""
    regret_5: float
    """Regret of the best of the first five."""
    picked: str
    picked_us: float
    predicted_us: float | None
    """Predicted time; None if the model considers every config impossible."""
    best: str
    best_us: float
    best_predicted_us: float | None
    vendor_us: float | None
    roofline_us: float
    configs: int
    is_tied: bool
    """True if the first pick is within noise of the best."""

    @property
    def case(self) -> tuple[str, str, str]:
        """Return the key of the problem, environment and regime."""
        return self.problem_key, self.environment_key, self.regime_name


@dataclass(frozen=True)
class Verdict:
    """One model's results."""

    model: str
    """Name of the model among the reports."""
    reports: Mapping[str, Report]
    """Figures by ranking: the model first, then the baselines."""
    parts: Mapping[str, Mapping[str, Report]]
    """Slice → part → the model's figures."""
    judged: tuple[JudgedProblem, ...]
    """Results by problem, the costliest first."""
    learned_from: int
    """Number of these problems that the model was trained on."""
    notes: tuple[str, ...]
    """Warnings, without full stops."""
    left_out: tuple[str, ...]
    """A line for each baseline that was left out."""
    content: Content
    """Contents of the evaluation report."""


@dataclass(frozen=True)
class Verdicts:
    """Results of models on the same problems."""

    models: tuple[Verdict, ...]
    there: int
    """Number of available problems, each counted once per environment and regime."""
    unseen: int
    """Number of them that no model was trained on."""
    is_of_unseen: bool
    """True if only unseen problems were used."""
