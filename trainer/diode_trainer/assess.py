"""One model evaluated on one dataset: what `diode evaluate` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.errors import DatasetError
from diode_trainer.data.dataset import Fold, folds
from diode_trainer.metrics import judgeable
from diode_trainer.workflow import HOLD_OUT, Standing, predict, standing

if TYPE_CHECKING:
    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.judgement import ProblemJudgement


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
    model: TimingModel, dataset: ExampleSet, *, vendor: bool = True, worst: int = 0, unseen: bool = False
) -> Assessment:
    """Judge ``model`` by ``dataset``; rankings that must learn do so from four fifths of it for the other fifth.

    Args:
        model: what to judge.
        dataset: what to judge by.
        vendor: whether the vendor's kernels count.
        worst: how many of the costliest choices to list.
        unseen: leave out problems that the model was trained on.

    Raises:
        DatasetError: no problem is left that can be judged.
    """
    dataset = dataset.subset([i for i, e in enumerate(dataset) if judgeable(e, vendor=vendor)])
    if not len(dataset):
        raise DatasetError("no problem has two configs that ran, so there is nothing to judge by")
    if unseen:
        dataset = _without_seen(model, dataset)
    distinct = len({example.shape for example in dataset})
    everything = np.arange(len(dataset))
    splits = folds(dataset, HOLD_OUT) if distinct >= HOLD_OUT else (Fold(everything[:0], everything),)
    outside = [misses for e in dataset if (misses := [*model.card.domain.misses(e.shape, e.hardware)])]
    tested = [dataset.examples[i] for split in splits for i in split.test]
    judged = standing(dataset, splits, predict(model, tested), vendor=vendor)
    return Assessment(
        problems=len(dataset),
        seen=sum(model.was_trained_on(example.shape) for example in dataset),
        standing=judged,
        worst=tuple(sorted(judged.judgements, key=lambda judgement: -judgement.regret[1])[:worst]),
        outside=len(outside),
        outside_reasons=tuple(sorted({miss.summary for misses in outside for miss in misses})),
    )


def _without_seen(model: TimingModel, dataset: ExampleSet) -> ExampleSet:
    left = [i for i, e in enumerate(dataset) if not model.was_trained_on(e.shape)]
    if not left:
        raise DatasetError(
            "the model was trained on all of these problems, so --unseen leaves none; leave it out (the figures then"
            " flatter the model) or give --dataset with other measurements"
        )
    return dataset.subset(left)
