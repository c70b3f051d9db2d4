"""Fits a recipe to a dataset and evaluates it fold by fold."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from diode_trainer.baselines import Baselines, compare
from diode_trainer.calibration import calibrate, make_cases
from diode_trainer.data.dataset import Fold, folds
from diode_trainer.data.tensors import Packed, pack
from diode_trainer.metrics import Report, evaluate, judgeable
from diode_trainer.scoring import Prediction, Scorer
from diode_trainer.train import EpochReport, Fit, Recipe, fit, single_threaded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from diode_trainer.artifact import TimingModel
    from diode_trainer.card import Calibration
    from diode_trainer.data.dataset import Examples, ExampleSet

HOLD_OUT = 5
"""A single held-out fold is one part in this many."""


@dataclass(frozen=True)
class Standing:
    """A model's figures beside those of its baselines."""

    model: Report
    baselines: Baselines

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it: the model's own figures, and ``baselines`` of the same shape."""
        plain = {**self.model.to_plain(), "baselines": {n: r.to_plain() for n, r in self.baselines.reports.items()}}
        if self.baselines.skipped:
            plain["skipped_baselines"] = dict(self.baselines.skipped)
        return plain


@dataclass(frozen=True)
class Evaluation:
    """A model's figures on problems that it was not trained on, pooled over folds."""

    folds: int
    all_choices: Standing
    triton_only: Standing | None
    """None where no problem has two Triton choices."""
    fits: tuple[Fit, ...] = field(default=(), repr=False)
    fit_seconds: tuple[float, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        triton = None if self.triton_only is None else self.triton_only.to_plain()
        return {"folds": self.folds, "all_choices": self.all_choices.to_plain(), "triton_only": triton}


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


def fit_and_judge(
    dataset: ExampleSet,
    recipe: Recipe,
    count: int,
    *,
    seed: int = 42,
    device: str = "cpu",
    previous: TimingModel | None = None,
    on_epoch: Callable[[], None] = lambda: None,
) -> TrainingResult:
    """Fit on the whole dataset and, to judge the recipe, on all folds but one for each of ``count`` folds.

    Args:
        dataset: the examples.
        recipe: what to fit.
        count: 0: judge nothing; 1: hold out one part in ``HOLD_OUT``; else the number of folds.
        seed: of every fit; the folds themselves are always the same.
        device: where to fit. On a CPU several fits run at a time, a core for each.
        previous: a model to compare with.
        on_epoch: called after each epoch of each fit.

    Raises:
        DatasetError: too few problems.
    """
    splits = _splits(dataset, count)
    parts = [np.arange(len(dataset)), *(split.train for split in splits)]
    (final, seconds), *others = _fit_parts(pack(dataset), parts, recipe, seed, device, on_epoch)
    if not splits:
        return TrainingResult(final, seconds, None)
    unseen = [
        prediction
        for (fitted, _), split in zip(others, splits, strict=True)
        for prediction in _unseen(dataset, fitted, split)
    ]
    evaluation = judge(dataset, splits, [prediction.runtime_us for prediction in unseen], previous=previous)
    evaluation = replace(
        evaluation, fits=tuple(fitted for fitted, _ in others), fit_seconds=tuple(taken for _, taken in others)
    )
    tested = [dataset.examples[i] for split in splits for i in split.test]
    return TrainingResult(final, seconds, evaluation, calibrate(make_cases(tested, unseen, dataset.domain())))


def _fit_parts(
    packed: Packed,
    parts: Sequence[NDArray[np.intp]],
    recipe: Recipe,
    seed: int,
    device: str,
    on_epoch: Callable[[], None],
) -> list[tuple[Fit, float]]:
    """Fit to each of ``parts``; return the fits and their seconds. If one fails, or on Ctrl-C, all of them stop."""
    stopped = threading.Event()

    def heard(_: EpochReport) -> None:
        on_epoch()
        if stopped.is_set():
            raise CancelledError

    def fit_one(rows: NDArray[np.intp]) -> tuple[Fit, float]:
        started = time.perf_counter()
        fitted = fit(packed[torch.from_numpy(rows)], recipe, seed=seed, device=device, on_epoch=heard)
        return fitted, time.perf_counter() - started

    at_once = (os.cpu_count() or 1) if device == "cpu" else 1
    with single_threaded(), ThreadPoolExecutor(min(at_once, len(parts))) as pool:
        fits = [pool.submit(fit_one, rows) for rows in parts]
        try:
            # In the order they end, so that a failure is seen while the others run.
            for done in as_completed(fits):
                done.result()
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [done.result() for done in fits]


def _splits(dataset: ExampleSet, count: int) -> tuple[Fold, ...]:
    if count == 0:
        return ()
    return folds(dataset, count) if count > 1 else folds(dataset, HOLD_OUT)[:1]


def _unseen(dataset: ExampleSet, fitted: Fit, split: Fold) -> list[Prediction]:
    """Return what a fit predicts for the problems that it has not seen."""
    scorer = Scorer(fitted.network, dataset.subset(split.train).domain().templates)
    examples = (dataset.examples[i] for i in split.test)
    return [scorer.predict(example.shape, example.hardware, example.columns, exact=True) for example in examples]


def predict(model: Scorer | TimingModel, examples: Sequence[Examples]) -> list[NDArray[np.float64]]:
    """Return the predicted runtimes of each problem's configs in microseconds, by all members of the model."""
    return [model.predict_us(example.shape, example.hardware, example.columns, exact=True) for example in examples]


def judge(
    dataset: ExampleSet,
    splits: Sequence[Fold],
    predicted: Sequence[NDArray[np.float64]],
    *,
    previous: TimingModel | None = None,
) -> Evaluation:
    """Judge predictions of the test problems of ``splits``, in their order, and the baselines beside them.

    Raises:
        DatasetError: no problem can be judged.
    """
    tested = [dataset.examples[i] for split in splits for i in split.test]

    def standing(*, vendor: bool) -> Standing:
        baselines = compare(dataset, splits, vendor=vendor, previous=previous)
        return Standing(evaluate(tested, predicted, vendor=vendor), baselines)

    has_triton = any(judgeable(example, vendor=False) for example in tested)
    return Evaluation(len(splits), standing(vendor=True), standing(vendor=False) if has_triton else None)


def training_facts(recipe: Recipe, fitted: Fit, *, seed: int, seconds: float) -> dict[str, Any]:
    """Return what a card says about how a model was fitted."""
    return {
        **asdict(recipe),
        "hidden_layer_widths": list(fitted.network.hidden_layer_widths),
        "members": fitted.network.members,
        "seed": seed,
        "epochs_kept": fitted.epochs,
        "validation_loss": fitted.validation_loss,
        "seconds": round(seconds, 1),
    }
