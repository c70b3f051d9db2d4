"""Fit a recipe to a dataset, and evaluate it fold by fold."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from diode_trainer.catalogue import name_for
from diode_trainer.data.held_out import Split
from diode_trainer.data.splits import split_up
from diode_trainer.data.tensors import Packed, pack
from diode_trainer.judging.baselines.compare import QUICK, STEPS_A_COMPARISON, STEPS_A_FOLD, forecast
from diode_trainer.judging.calibration import calibrate, make_cases
from diode_trainer.judging.devices import device_folds, judge_without
from diode_trainer.judging.metrics import judgeable
from diode_trainer.judging.standing import Standing, predict, standing
from diode_trainer.scoring import Prediction, Scorer
from diode_trainer.training.fit_task import FitTask
from diode_trainer.training.fits import run_fits
from diode_trainer.training.history import FINAL, fit_name
from diode_trainer.training.train import Beginning, EpochReport, Fit, op_repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from diode_trainer.artifact import TimingModel
    from diode_trainer.card import Calibration
    from diode_trainer.covered import DeviceCheck
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.data.splits import Fold
    from diode_trainer.training.checkpoints import Checkpoint, Unfinished
    from diode_trainer.training.fits import FitHeard
    from diode_trainer.training.recipe import Recipe
    from diode_trainer.training.warm_start import WarmStart


@dataclass(frozen=True)
class Judging:
    """Options of the evaluation of a recipe."""

    split: Split = Split.PROBLEM
    """Unit that a fold holds out."""
    rivals: tuple[TimingModel, ...] = ()
    """Models to compare with."""
    is_quick: bool = False
    """True to leave out the slow baselines and ``rivals``."""
    on_step: Callable[[], None] = lambda: None
    """Called after each step of judging the baselines, at most ``judging_steps(folds)`` times."""


@dataclass(frozen=True)
class Evaluation:
    """Results on problems outside the training data, pooled over folds."""

    folds: int
    all_choices: Standing
    triton_only: Standing | None
    """None if no problem has two Triton choices."""
    held_out: Split = Split.PROBLEM
    """Unit that each fold held out."""
    compared: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Comparisons with other models by SHA-256, as on a card."""
    fits: tuple[Fit, ...] = field(default=(), repr=False)
    fit_seconds: tuple[float, ...] = ()
    splits: tuple[Fold, ...] = field(default=(), repr=False)
    """Training and test problems of each of ``fits``."""

    def to_plain(self) -> dict[str, Any]:
        """Return the evaluation as JSON has it."""
        triton = None if self.triton_only is None else self.triton_only.to_plain()
        return {
            "folds": self.folds,
            "split": self.held_out.value,
            "all_choices": self.all_choices.to_plain(),
            "triton_only": triton,
        }


@dataclass(frozen=True)
class TrainingResult:
    """Fit on all data, and evaluation of its recipe."""

    fit: Fit
    """Fit on all data."""
    seconds: float
    """Duration of that fit."""
    evaluation: Evaluation | None
    """None without folds."""
    calibration: Calibration | None = None
    """None without folds, or with too few problems."""
    device_checks: tuple[DeviceCheck, ...] = ()
    """Check of each device left out; empty without folds, or without two devices of one architecture."""


def fit_and_judge(  # noqa: PLR0913 - all that a training depends on
    dataset: ExampleSet,
    recipe: Recipe,
    count: int,
    *,
    seed: int = 42,
    device: str = "cpu",
    judging: Judging = Judging(),
    on_epoch: Callable[[str, EpochReport], None] = lambda _fit, _report: None,
    on_fit: FitHeard = lambda _name, _fit, _seconds: None,
    unfinished: Unfinished | None = None,
    start: WarmStart | None = None,
) -> TrainingResult:
    """Fit on the whole dataset and, to judge the recipe, once for each fold without its test problems.

    With folds, one more fit leaves out each device that ``device_folds`` returns. These fits show how well a model does
    on a device it never saw.

    Args:
        dataset: examples to learn from.
        recipe: hyperparameters.
        count: 0: judge nothing; 1: hold out one part in ``HOLD_OUT``; otherwise the number of folds.
        seed: seed of every fit; the folds are always the same.
        device: device of the fits. On a CPU several fits run at a time, one per core.
        judging: options of the evaluation.
        on_epoch: called from several threads with the name of the fit after each epoch of a fit or of the scout.
        on_fit: called with the name, the result and the seconds of each finished fit.
        unfinished: keeps checkpoints of the fits, and resumes interrupted ones.
        start: model and data that each fit starts from; random weights by default.

    Raises:
        DatasetError: too few problems, or too few families to hold out.
        ModelError: a checkpoint is damaged, or belongs to another fit.
    """
    splits = split_up(dataset, judging.split, count)
    checks = device_folds(dataset, splits[0]) if splits else {}
    trains = {FINAL: np.arange(len(dataset))}
    trains |= {fit_name(number): split.train for number, split in enumerate(splits, 1)}
    trains |= {f"without {name_for(left)}": fold.train for left, fold in checks.items()}
    parts = dict(zip(trains, _parts([*trains.values()], dataset, start), strict=True))
    packed = pack(dataset if start is None else start.with_known(dataset))
    tasks = _tasks(packed, parts, recipe, seed, device, unfinished)
    (final, seconds), *others = run_fits(tasks, on_epoch, on_fit)
    if not splits:
        return TrainingResult(final, seconds, None)
    evaluation, calibration = _judge_folds(dataset, splits, others[: len(splits)], judging)
    without = [fit for fit, _ in others[len(splits) :]]
    checked = judge_without(dataset, checks, without, evaluation.fits[0], splits[0])
    return TrainingResult(final, seconds, evaluation, calibration, checked)


def _judge_folds(
    dataset: ExampleSet, splits: Sequence[Fold], fitted: Sequence[tuple[Fit, float]], judging: Judging
) -> tuple[Evaluation, Calibration | None]:
    """Judge the fits of folds, and calibrate by their pooled predictions.

    Raises:
        DatasetError: no problem can be judged.
    """
    fits = tuple(fit for fit, _ in fitted)
    predicted = [predict_unseen(dataset, fit, split) for fit, split in zip(fits, splits, strict=True)]
    unseen = [prediction for of_fold in predicted for prediction in of_fold]
    evaluation = replace(
        judge(dataset, splits, unseen, judging),
        fits=fits,
        fit_seconds=tuple(taken for _, taken in fitted),
        splits=tuple(splits),
    )
    tested = [dataset.examples[i] for split in splits for i in split.test]
    return evaluation, calibrate(make_cases(tested, unseen, dataset.domain()))


class _Part(NamedTuple):
    """Training problems and start of one fit."""

    rows: Tensor
    beginning: Beginning = Beginning()


def _parts(trains: Sequence[NDArray[np.intp]], dataset: ExampleSet, start: WarmStart | None) -> list[_Part]:
    """Return the parts of fits; with a start each also learns from the known problems, numbered after the others."""
    if start is None:
        repeats = op_repeats(dataset)
        return [_Part(torch.from_numpy(rows), Beginning(repeats=repeats[rows])) for rows in trains]
    known = torch.arange(len(dataset), len(dataset) + len(start.known))
    return [_Part(torch.cat((torch.from_numpy(rows), known)), start.beginning(len(rows))) for rows in trains]


def _tasks(
    packed: Packed, parts: Mapping[str, _Part], recipe: Recipe, seed: int, device: str, unfinished: Unfinished | None
) -> list[FitTask]:
    """Return a task for each of ``parts``.

    Raises:
        ModelError: a checkpoint is damaged or belongs to another fit; nothing was fitted.
    """

    def checkpoint(name: str, part: _Part) -> Checkpoint | None:
        """Return the checkpoint of a fit, if checkpoints are kept."""
        if unfinished is None:
            return None
        return unfinished.checkpoint(name, packed[part.rows], recipe, seed, device, part.beginning)

    return [
        FitTask(name, packed, part.rows, recipe, seed, device, part.beginning, checkpoint(name, part))
        for name, part in parts.items()
    ]


def predict_unseen(dataset: ExampleSet, fitted: Fit, split: Fold) -> list[Prediction]:
    """Return the predictions of a fold's fit for its test problems."""
    return predict(fold_scorer(dataset, fitted, split), [dataset.examples[i] for i in split.test])


def fold_scorer(dataset: ExampleSet, fitted: Fit, split: Fold) -> Scorer:
    """Return a scorer with the fit of a fold."""
    return Scorer(fitted.network, dataset.subset(split.train).domain().templates)


def judging_steps(count: int) -> int:
    """Return the most steps that ``judge`` reports for ``count`` folds."""
    return count * (STEPS_A_FOLD + STEPS_A_COMPARISON)


def judge(
    dataset: ExampleSet,
    splits: Sequence[Fold],
    predicted: Sequence[Prediction],
    judging: Judging = Judging(),
) -> Evaluation:
    """Judge predictions of the test problems of ``splits``, in their order, beside the baselines.

    Raises:
        DatasetError: no problem can be judged.
    """
    tested = [dataset.examples[i] for split in splits for i in split.test]
    has_triton = any(judgeable(example, vendor=False) for example in tested)
    forecasts = QUICK if judging.is_quick else forecast(dataset, splits, rivals=judging.rivals, on_step=judging.on_step)

    def of(*, vendor: bool) -> Standing:
        return standing(dataset, splits, predicted, forecasts, vendor=vendor, on_step=judging.on_step)

    triton_only = of(vendor=False) if has_triton else None
    all_choices = of(vendor=True)
    return Evaluation(len(splits), all_choices, triton_only, judging.split, all_choices.compared(judging.rivals))


def training_facts(recipe: Recipe, fitted: Fit, *, seed: int, seconds: float) -> dict[str, Any]:
    """Return the description of a fit for a card."""
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
