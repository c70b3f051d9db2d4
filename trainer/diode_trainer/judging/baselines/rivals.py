"""Models that a new one is compared with, each on the problems that it has not learned from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diode_store.render import counted
from diode_trainer.judging.baselines.contest import LeftOutError
from diode_trainer.scoring import Prediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import Examples


def label(rival: TimingModel) -> str:
    """Return the name of a rival among the baselines."""
    return f"model:{rival.path.stem}"


def rivals_predictions(rival: TimingModel, examples: Sequence[Examples]) -> list[Prediction]:
    """Return what a rival predicts for each problem's configs.

    NaN for a problem that it has learned from on this device, or that is outside what it knows. That the whole device
    is does not count: then it is asked as if the device were its own.

    Raises:
        LeftOutError: that is so of every problem.
    """
    seen = [_has_learned_from(rival, example) for example in examples]
    known = [not learned and _knows(rival, example) for learned, example in zip(seen, examples, strict=True)]
    if not any(known):
        those = f"it was trained on {sum(seen):,} of these {counted(len(examples), 'problem')}"
        raise LeftOutError(those if all(seen) else f"{those}, and knows none of the others")
    return [
        rival.predict(each.shape, each.hardware, each.columns, exact=True)
        if asked
        else Prediction.without_members(np.full(len(each), np.nan))
        for each, asked in zip(examples, known, strict=True)
    ]


def _has_learned_from(rival: TimingModel, example: Examples) -> bool:
    return rival.card.domain.covers(example.hardware) and rival.was_trained_on(example.shape)


def _knows(rival: TimingModel, example: Examples) -> bool:
    misses = rival.card.domain.misses(example.shape, example.hardware)
    return rival.can_rank(example.shape) and all(miss.reason == "hardware" for miss in misses)
