"""Evaluate one model on one dataset, for `diode evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.errors import DatasetError
from diode_trainer.data.splits import HOLD_OUT, Fold, folds, holding_out
from diode_trainer.judging.baselines.compare import NOT_FITTED, STEPS_A_FOLD, forecast
from diode_trainer.judging.metrics import NOTHING_TO_JUDGE, judgeable
from diode_trainer.judging.standing import Standing, predict, standing
from diode_trainer.routing import unrouted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.judging.judgement import ProblemJudgement

ASSESSING_STEPS = HOLD_OUT * STEPS_A_FOLD
"""Limit on the steps that ``assess`` reports."""


@dataclass(frozen=True)
class Assessment:
    """Results of a model on a dataset."""

    problems: int
    """Number of judged problems."""
    seen: int
    """Number of judged problems in the training data."""
    standing: Standing
    worst: tuple[ProblemJudgement, ...] = ()
    outside: int = 0
    """Number of judged problems outside the card's domain, for which the hook would not use the model."""
    outside_reasons: tuple[str, ...] = ()
    """Reasons for being outside, such as ``dtype float32``."""

    def to_plain(self) -> dict[str, Any]:
        """Return the results as JSON has them: the figures of ``Report``, ``baselines``, and the worst choices."""
        plain = {**self.standing.to_plain(), "seen_in_training": self.seen, "outside_domain": self.outside}
        if self.worst:
            plain["worst"] = [choice.to_plain() for choice in self.worst]
        return plain


def assess(
    model: TimingModel,
    dataset: ExampleSet,
    *,
    vendor: bool = True,
    worst: int = 0,
    unseen: bool = False,
    families: Collection[str] = (),
    fits: bool = True,
    on_step: Callable[[], None] = lambda: None,
) -> Assessment:
    """Judge ``model`` by ``dataset``, beside baselines.

    Baselines that learn do so from problems that are not judged: those of other families, or those in the model's
    training data. If all problems are judged, these baselines learn from four fifths for the other fifth.

    Args:
        model: model to judge.
        dataset: problems to judge by.
        vendor: True if vendor kernels count.
        worst: number of costliest choices to list.
        unseen: leave out problems in the model's training data.
        families: judge by the problems of these families only; by all if empty.
        fits: True to judge also the baselines that need a fit, which takes far longer than everything else.
        on_step: called as the baselines are judged, at most ``ASSESSING_STEPS`` times.

    Raises:
        DatasetError: no judgeable problem is left.
    """
    dataset = dataset.subset([i for i, e in enumerate(dataset) if judgeable(e, vendor=vendor)])
    if not len(dataset):
        raise DatasetError(NOTHING_TO_JUDGE)
    splits = _splits(model, dataset, families, unseen=unseen)
    tested = [dataset.examples[i] for split in splits for i in split.test]
    predicted = predict(model, tested)
    forecasts = forecast(dataset, splits, on_step=on_step) if fits else NOT_FITTED
    judged = standing(dataset, splits, predicted, forecasts, vendor=vendor, on_step=on_step)
    outside = [misses for e in tested if (misses := [*model.card.domain.misses(e.shape, e.hardware)])]
    return Assessment(
        problems=len(tested),
        seen=sum(model.was_trained_on(example.shape) for example in tested),
        standing=judged,
        worst=tuple(sorted(judged.judgements, key=lambda judgement: -judgement.regret[1])[:worst]),
        outside=len(outside),
        outside_reasons=tuple(sorted({miss.summary for misses in outside for miss in misses})),
    )


def _splits(model: TimingModel, dataset: ExampleSet, families: Collection[str], *, unseen: bool) -> tuple[Fold, ...]:
    """Return the folds: problems to judge by, and problems that baselines learn from."""
    everything = np.arange(len(dataset))
    seen = np.array([unseen and model.was_trained_on(example.shape) for example in dataset])
    fold = holding_out(dataset, families) if families else Fold(np.flatnonzero(seen), everything)
    test = fold.test[~seen[fold.test]]
    if not len(test):
        raise DatasetError(
            "the model was trained on all of these problems, so --unseen leaves none; drop it (the figures then"
            " flatter the model) or give --dataset with other measurements"
        )
    enough = len({unrouted(dataset.examples[i].shape) for i in test}) >= HOLD_OUT
    return (Fold(fold.train, test),) if families or seen.any() or not enough else folds(dataset, HOLD_OUT)
