"""Fits a recipe to a dataset and evaluates it fold by fold."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from diode_trainer.data.held_out import Split
from diode_trainer.data.splits import split_up
from diode_trainer.data.tensors import Packed, pack
from diode_trainer.judging.baselines.compare import STEPS_A_COMPARISON, STEPS_A_FOLD, forecast
from diode_trainer.judging.calibration import calibrate, make_cases
from diode_trainer.judging.metrics import judgeable
from diode_trainer.judging.standing import Standing, predict, standing
from diode_trainer.scoring import Prediction, Scorer
from diode_trainer.training.fit_task import FitTask
from diode_trainer.training.fits import run_fits
from diode_trainer.training.history import fit_name
from diode_trainer.training.train import Beginning, EpochReport, Fit, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from diode_trainer.artifact import TimingModel
    from diode_trainer.card import Calibration
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.data.splits import Fold
    from diode_trainer.training.checkpoints import Checkpoint, Unfinished
    from diode_trainer.training.warm_start import WarmStart


@dataclass(frozen=True)
class Judging:
    """How a recipe is judged."""

    split: Split = Split.PROBLEM
    """What is held out together."""
    rivals: tuple[TimingModel, ...] = ()
    """Models to compare with."""
    on_step: Callable[[], None] = lambda: None
    """Called as the baselines are judged, ``judging_steps(folds)`` times at most."""


@dataclass(frozen=True)
class Evaluation:
    """A model's figures on problems that it was not trained on, pooled over folds."""

    folds: int
    all_choices: Standing
    triton_only: Standing | None
    """None where no problem has two Triton choices."""
    held_out: Split = Split.PROBLEM
    """What was held out together."""
    compared: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """With other models by SHA-256, as on a card."""
    fits: tuple[Fit, ...] = field(default=(), repr=False)
    fit_seconds: tuple[float, ...] = ()
    splits: tuple[Fold, ...] = field(default=(), repr=False)
    """What each of ``fits`` learned from, and the problems that it was judged by."""

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        triton = None if self.triton_only is None else self.triton_only.to_plain()
        return {
            "folds": self.folds,
            "split": self.held_out.value,
            "all_choices": self.all_choices.to_plain(),
            "triton_only": triton,
        }


@dataclass(frozen=True)
class TrainingResult:
    """The fit on all data, and the evaluation of its recipe."""

    fit: Fit
    """On everything."""
    seconds: float
    """Of that fit."""
    evaluation: Evaluation | None
    """None without folds."""
    calibration: Calibration | None = None
    """None without folds, or from too few problems."""


def fit_and_judge(  # noqa: PLR0913 - all that a training depends on
    dataset: ExampleSet,
    recipe: Recipe,
    count: int,
    *,
    seed: int = 42,
    device: str = "cpu",
    judging: Judging = Judging(),
    on_epoch: Callable[[str, EpochReport], None] = lambda _fit, _report: None,
    unfinished: Unfinished | None = None,
    start: WarmStart | None = None,
) -> TrainingResult:
    """Fit on the whole dataset and, to judge the recipe, on all folds but one for each of ``count`` folds.

    Args:
        dataset: the examples.
        recipe: what to fit.
        count: 0: judge nothing; 1: hold out one part in ``HOLD_OUT``; else the number of folds.
        seed: of every fit; the folds themselves are always the same.
        device: where to fit. On a CPU several fits run at a time, a core for each.
        judging: what is held out together, and what it is compared with.
        on_epoch: called after each epoch of each fit, and of the scout's, with the fit's name; from several threads.
        unfinished: keeps checkpoints of the fits, from which those go on that were interrupted.
        start: what each fit begins with, and learns from beside the examples; drawn weights unless given.

    Raises:
        DatasetError: too few problems, or too few families to hold out.
        ModelError: a checkpoint is damaged, or of another fit.
    """
    splits = split_up(dataset, judging.split, count)
    trains = [np.arange(len(dataset)), *(split.train for split in splits)]
    parts = _parts(trains, len(dataset), start)
    packed = pack(dataset if start is None else start.with_known(dataset))
    (final, seconds), *others = run_fits(_tasks(packed, parts, recipe, seed, device, unfinished), on_epoch)
    if not splits:
        return TrainingResult(final, seconds, None)
    unseen = [
        prediction
        for (fitted, _), split in zip(others, splits, strict=True)
        for prediction in predict_unseen(dataset, fitted, split)
    ]
    evaluation = judge(dataset, splits, unseen, judging)
    evaluation = replace(
        evaluation,
        fits=tuple(fitted for fitted, _ in others),
        fit_seconds=tuple(taken for _, taken in others),
        splits=tuple(splits),
    )
    tested = [dataset.examples[i] for split in splits for i in split.test]
    return TrainingResult(final, seconds, evaluation, calibrate(make_cases(tested, unseen, dataset.domain())))


class _Part(NamedTuple):
    """What one fit learns from, and begins with."""

    rows: Tensor
    beginning: Beginning = Beginning()


def _parts(trains: Sequence[NDArray[np.intp]], new: int, start: WarmStart | None) -> list[_Part]:
    """Return the parts of fits; those with a start learn from the known problems too, which lie behind the ``new``."""
    if start is None:
        return [_Part(torch.from_numpy(rows)) for rows in trains]
    known = torch.arange(new, new + len(start.known))
    return [_Part(torch.cat((torch.from_numpy(rows), known)), start.beginning(len(rows))) for rows in trains]


def _tasks(
    packed: Packed, parts: Sequence[_Part], recipe: Recipe, seed: int, device: str, unfinished: Unfinished | None
) -> list[FitTask]:
    """Return a task for each of ``parts``.

    Raises:
        ModelError: a checkpoint is damaged, or of another fit; nothing is fitted then.
    """

    def checkpoint(name: str, part: _Part) -> Checkpoint | None:
        """Return what keeps the state of a fit, if anything is to."""
        if unfinished is None:
            return None
        return unfinished.checkpoint(name, packed[part.rows], recipe, seed, device, part.beginning)

    named = {fit_name(number): part for number, part in enumerate(parts)}
    return [
        FitTask(name, packed, part.rows, recipe, seed, device, part.beginning, checkpoint(name, part))
        for name, part in named.items()
    ]


def predict_unseen(dataset: ExampleSet, fitted: Fit, split: Fold) -> list[Prediction]:
    """Return what a fit predicts for the problems that it has not seen."""
    return predict(fold_scorer(dataset, fitted, split), [dataset.examples[i] for i in split.test])


def fold_scorer(dataset: ExampleSet, fitted: Fit, split: Fold) -> Scorer:
    """Return what scores with the fit of a fold."""
    return Scorer(fitted.network, dataset.subset(split.train).domain().templates)


def judging_steps(count: int) -> int:
    """Return how often ``judge`` reports a step at most, for so many folds."""
    return count * (STEPS_A_FOLD + STEPS_A_COMPARISON)


def judge(
    dataset: ExampleSet,
    splits: Sequence[Fold],
    predicted: Sequence[Prediction],
    judging: Judging = Judging(),
) -> Evaluation:
    """Judge predictions of the test problems of ``splits``, in their order, and the baselines beside them.

    Raises:
        DatasetError: no problem can be judged.
    """
    tested = [dataset.examples[i] for split in splits for i in split.test]
    has_triton = any(judgeable(example, vendor=False) for example in tested)
    forecasts = forecast(dataset, splits, rivals=judging.rivals, on_step=judging.on_step)

    def of(*, vendor: bool) -> Standing:
        return standing(dataset, splits, predicted, forecasts, vendor=vendor, on_step=judging.on_step)

    triton_only = of(vendor=False) if has_triton else None
    all_choices = of(vendor=True)
    return Evaluation(len(splits), all_choices, triton_only, judging.split, all_choices.compared(judging.rivals))


def training_facts(recipe: Recipe, fitted: Fit, *, seed: int, seconds: float) -> dict[str, Any]:
    """Return what a card says about how a model was fitted."""
    return {
        **asdict(recipe),
        "hidden_layer_widths": list(fitted.network.hidden_layer_widths),
        "members": fitted.network.members,
        "scout_widths": list(fitted.network.scout.hidden_layer_widths) if fitted.network.scout else [],
        "seed": seed,
        "epochs_kept": fitted.epochs,
        "validation_loss": fitted.validation_loss,
        "seconds": round(seconds, 1),
    }
