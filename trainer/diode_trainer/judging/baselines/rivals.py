"""Other models as baselines, each on the problems outside its training data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diode_store.command_line.render import counted
from diode_trainer.judging.as_compiled import predict_as_compiled
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
    """Return a rival's predictions for each problem's configs.

    Problems in its training data on this device, and problems outside its domain, get NaN. A device outside its domain
    does not count: the rival is then asked as if it knew the device.

    Raises:
        LeftOutError: every problem would get NaN.
    """
    seen = [_has_learned_from(rival, example) for example in examples]
    known = [not learned and _knows(rival, example) for learned, example in zip(seen, examples, strict=True)]
    if not any(known):
        those = f"it was trained on {sum(seen):,} of these {counted(len(examples), 'problem')}"
        raise LeftOutError(those if all(seen) else f"{those}, and knows none of the others")
    return [
        predict_as_compiled(rival, each, exact=True)
        if asked
        else Prediction.without_members(np.full(len(each), np.nan))
        for each, asked in zip(examples, known, strict=True)
    ]


def _has_learned_from(rival: TimingModel, example: Examples) -> bool:
    return rival.card.domain.learned_from(example.hardware) and rival.was_trained_on(example.shape)


def _knows(rival: TimingModel, example: Examples) -> bool:
    misses = rival.card.domain.misses(example.shape, example.hardware)
    return rival.can_rank(example.shape) and all(miss.reason == "hardware" for miss in misses)
