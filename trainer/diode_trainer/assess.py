"""One model evaluated on one dataset: what `diode evaluate` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.errors import DatasetError
from diode_trainer.baselines import compare
from diode_trainer.data.dataset import Fold, folds
from diode_trainer.metrics import eligible, evaluate, judgeable
from diode_trainer.workflow import HOLD_OUT, Standing, predict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_store.records import ProblemShape
    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import Examples, ExampleSet


@dataclass(frozen=True)
class WorstChoice:
    """A problem on which the config that the model ranked first is far from the best."""

    shape: ProblemShape
    regret: float
    chosen: str
    chosen_us: float
    predicted_us: float
    best: str
    best_us: float


@dataclass(frozen=True)
class Assessment:
    """How a model does on a dataset."""

    problems: int
    """Judged ones."""
    seen: int
    """How many of them it was trained on."""
    standing: Standing
    worst: tuple[WorstChoice, ...] = ()
    outside: int = 0
    """How many of them are outside its card's domain; the hook would not use it for these."""
    outside_reasons: tuple[str, ...] = ()
    """In what respect, such as ``dtype float32``."""

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it: the figures of ``Report``, ``baselines`` of the same shape, and what is worst."""
        plain = {**self.standing.to_plain(), "seen_in_training": self.seen, "outside_domain": self.outside}
        if self.worst:
            plain["worst"] = [asdict(choice) for choice in self.worst]
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
    predicted = predict(model, dataset.examples)
    distinct = len({example.shape for example in dataset})
    everything = np.arange(len(dataset))
    splits = folds(dataset, HOLD_OUT) if distinct >= HOLD_OUT else (Fold(everything[:0], everything),)
    outside = [misses for e in dataset if (misses := [*model.card.domain.misses(e.shape, e.hardware)])]
    standing = Standing(evaluate(dataset.examples, predicted, vendor=vendor), compare(dataset, splits, vendor=vendor))
    return Assessment(
        problems=len(dataset),
        seen=sum(model.was_trained_on(example.shape) for example in dataset),
        standing=standing,
        worst=_worst(dataset.examples, predicted, worst, vendor=vendor),
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


def _worst(
    examples: Sequence[Examples], predicted: Sequence[NDArray[np.float64]], count: int, *, vendor: bool
) -> tuple[WorstChoice, ...]:
    choices = (_choice(example, times, vendor=vendor) for example, times in zip(examples, predicted, strict=True))
    return tuple(sorted(choices, key=lambda choice: -choice.regret)[:count])


def _choice(example: Examples, predicted: NDArray[np.float64], *, vendor: bool) -> WorstChoice:
    counted = np.flatnonzero(eligible(example, vendor=vendor))
    chosen = int(counted[np.argmin(predicted[counted])])
    best = int(counted[np.argmin(example.runtime_us[counted])])
    runtime = example.runtime_us
    return WorstChoice(
        shape=example.shape,
        regret=float(runtime[chosen] / runtime[best]),
        chosen=example.columns.config(chosen).describe(),
        chosen_us=float(runtime[chosen]),
        predicted_us=float(predicted[chosen]),
        best=example.columns.config(best).describe(),
        best_us=float(runtime[best]),
    )
