"""What the members of a model, where they disagree, say that its first pick may lose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diode_trainer.features import config_features, problem_features
from diode_trainer.metrics import eligible, judgeable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from diode_trainer.data.dataset import Examples
    from diode_trainer.scoring import Scorer

    Floats = NDArray[np.float64]


def expected_losses(scorer: Scorer, examples: Iterable[Examples], *, vendor: bool = True) -> Floats | None:
    """Return the expected regret of the first pick on each problem that can be judged, shape (m,), as natural logs.

    Each member says how far the pick of all is behind its own; the mean over them is what is expected.

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
        picked = some[:, some.mean(0).argmin()]
        losses.append(float((picked - some.min(1)).mean()))
    return np.array(losses)
