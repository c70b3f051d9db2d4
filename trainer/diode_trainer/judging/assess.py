"""One model evaluated on one dataset: what `diode evaluate` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.errors import DatasetError
from diode_trainer.data.splits import HOLD_OUT, Fold, folds, holding_out
from diode_trainer.judging.baselines.compare import NOT_FITTED, STEPS_A_FOLD, forecast
from diode_trainer.judging.metrics import NOTHING_TO_JUDGE, judgeable
from diode_trainer.judging.standing import Standing, predict, standing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.judging.judgement import ProblemJudgement

ASSESSING_STEPS = HOLD_OUT * STEPS_A_FOLD
"""How often ``assess`` reports a step, at most."""


@dataclass(frozen=True)
class Assessment:
    """How a model does on a dataset."""

    problems: int
    """Judged ones."""
    seen: int
    """How many of them it was trained on."""
    standing: Standing
    worst: tuple[ProblemJudgement, ...] = ()
    outside: int = 0
    """How many of them are outside its card's domain; the hook would not use it for these."""
    outside_reasons: tuple[str, ...] = ()
    """In what respect, such as ``dtype float32``."""

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it: the figures of ``Report``, ``baselines`` of the same shape, and what is worst."""
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

    Baselines that must learn do so from the problems that are not judged: those of other families, or those that the
    model was trained on. Where all are judged, they learn from four fifths for the other fifth.

    Args:
        model: what to judge.
        dataset: what to judge by.
        vendor: whether the vendor's kernels count.
        worst: how many of the costliest choices to list.
        unseen: leave out problems that the model was trained on.
        families: judge by the problems of these families alone; all without any.
        fits: whether baselines are judged that must be fitted, which takes far longer than all else.
        on_step: called as the baselines are judged, ``ASSESSING_STEPS`` times at most.

    Raises:
        DatasetError: no problem is left that can be judged.
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
    """Return what to judge by, and what baselines learn from."""
    everything = np.arange(len(dataset))
    seen = np.array([unseen and model.was_trained_on(example.shape) for example in dataset])
    fold = holding_out(dataset, families) if families else Fold(np.flatnonzero(seen), everything)
    test = fold.test[~seen[fold.test]]
    if not len(test):
        raise DatasetError(
            "the model was trained on all of these problems, so --unseen leaves none; leave it out (the figures then"
            " flatter the model) or give --dataset with other measurements"
        )
    enough = len({dataset.examples[i].shape for i in test}) >= HOLD_OUT
    return (Fold(fold.train, test),) if families or seen.any() or not enough else folds(dataset, HOLD_OUT)
