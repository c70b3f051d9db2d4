"""What the members of a model, where they disagree, say that its first pick may lose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diode_trainer.features import config_features, problem_features
from diode_trainer.metrics import eligible, judgeable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from diode_trainer.data.dataset import Examples
    from diode_trainer.scoring import Scorer

    Floats = NDArray[np.float64]

_WITHIN = math.log(1.02)


@dataclass(frozen=True, eq=False)
class Foreseen:
    """What members say of the first pick of each of m problems; arrays have shape (m,)."""

    loss: Floats
    """Natural logarithm of the regret that they expect."""
    within_2pct: Floats
    """How likely they consider it to be within 2% of the best."""


def foresee(scorer: Scorer, examples: Iterable[Examples], *, vendor: bool = True) -> Foreseen | None:
    """Return what the members of a model say of its first pick on each problem that can be judged.

    Each member says how far the pick of all is behind its own favourite. The mean over them is the expected loss, the
    share of those for which it is at most 2% how likely that is.

    Returns:
        None for a model of one member, which cannot disagree.
    """
    losses = []
    for example in examples:
        if not judgeable(example, vendor=vendor):
            continue
        problem = example.shape, example.hardware
        logs = scorer(problem_features(*problem), config_features(*problem, example.columns)).astype(
            np.float64
        )  # (E, n)
        if len(logs) == 1:
            return None
        counted = eligible(example, vendor=vendor)
        known = counted & np.isfinite(scorer.predict_us(*problem, example.columns))
        some = logs[:, known if known.any() else counted]
        losses.append(some[:, some.mean(0).argmin()] - some.min(1))
    by_member = np.array(losses)  # (m, E)
    return Foreseen(by_member.mean(1), (by_member <= _WITHIN).mean(1))


def joined(parts: Sequence[Foreseen | None]) -> Foreseen | None:
    """Return what was foreseen of several sets of problems, one after another; None if it is not known of one."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return Foreseen(np.concatenate([p.loss for p in known]), np.concatenate([p.within_2pct for p in known]))
