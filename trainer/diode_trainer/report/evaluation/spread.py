"""Expected loss of a model's first picks, from the disagreement of its ensemble members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diode_store.candidates.operands import has_whole_rows
from diode_trainer.feature_kinds import config_features, problem_features
from diode_trainer.judging.metrics import eligible, judgeable
from diode_trainer.uncertainty import WITHIN, Outlook

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from diode_trainer.card import Calibration
    from diode_trainer.data.dataset import Examples
    from diode_trainer.scoring import Scorer

    Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Foreseen:
    """A model's expectations of its first pick on each of m problems; arrays have shape (m,)."""

    loss: Floats
    """Natural logarithm of the expected regret."""
    within_2pct: Floats
    """Probability that the pick is within 2% of the best."""
    is_calibrated: bool = False
    """True if a calibration made the expectations; otherwise the raw members did."""


def foresee(
    scorer: Scorer, examples: Iterable[Examples], *, vendor: bool = True, calibration: Calibration | None = None
) -> Foreseen | None:
    """Return a model's expectations of its first pick on each problem that can be judged.

    Without a calibration, each member says how far the ensemble's pick is behind the member's own favorite. The mean is
    the expected loss. The probability is the share of members that say at most 2%.

    Args:
        scorer: the model.
        examples: the problems.
        vendor: True if vendor kernels count.
        calibration: calibration of the members' disagreement, fitted to other problems.

    Returns:
        None for a model of one member, which cannot disagree.
    """
    said = []
    for example in examples:
        if not judgeable(example, vendor=vendor):
            continue
        problem = example.shape, example.hardware
        logs = scorer(problem_features(*problem), config_features(*problem, example.columns))  # (E, n)
        if len(logs) == 1:
            return None
        counted = eligible(example, vendor=vendor)
        known = counted & np.isfinite(scorer.predict_us(*problem, example.columns))
        some = known if known.any() else counted
        if calibration is None:
            said.append(_by_members(logs[:, some].astype(np.float64)))
        else:
            fitted = calibration.at(is_odd=not has_whole_rows(example.shape), length=int(some.sum()))
            outlook = Outlook(logs[:, some], example.is_vendor[some], fitted)
            said.append((outlook.expected_loss, outlook.p_within_2pct))
    loss, within_2pct = np.array(said).T
    return Foreseen(loss, within_2pct, is_calibrated=calibration is not None)


def _by_members(logs: Floats) -> tuple[float, float]:
    """Return the expected loss and the probability of at most 2%, from predictions of shape (E, n)."""
    losses = logs[:, logs.mean(0).argmin()] - logs.min(1)
    return float(losses.mean()), float((losses <= WITHIN).mean())


def joined(parts: Sequence[Foreseen | None]) -> Foreseen | None:
    """Return the expectations of several sets of problems in sequence; None if one set has none."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return Foreseen(
        np.concatenate([part.loss for part in known]),
        np.concatenate([part.within_2pct for part in known]),
        is_calibrated=all(part.is_calibrated for part in known),
    )
