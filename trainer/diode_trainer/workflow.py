"""From a dataset to judged predictions, and to a model with its card."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from diode_trainer.baselines import Baselines, compare
from diode_trainer.dataset import Fold, folds
from diode_trainer.metrics import Report, evaluate, judgeable
from diode_trainer.pack import Packed, pack
from diode_trainer.scoring import Scorer
from diode_trainer.train import Fit, Recipe, fit, single_threaded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from diode_trainer.artifact import TimingModel
    from diode_trainer.dataset import Dataset, Examples

HOLD_OUT = 5
"""A single held-out fold is one part in this many."""


@dataclass(frozen=True)
class Standing:
    """How a model does beside its baselines."""

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
    """A model judged on problems it has not learned from, pooled over folds."""

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


def cross_validate(
    dataset: Dataset,
    recipe: Recipe,
    count: int,
    *,
    seed: int = 42,
    device: str = "cpu",
    previous: TimingModel | None = None,
    on_epoch: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Fit on all folds but one and judge on that one, for each of ``count`` folds, or for one of ``HOLD_OUT``.

    Args:
        dataset: the examples.
        recipe: what to fit.
        count: 1 for a single held-out fold, else the number of folds.
        seed: of the fits; the folds themselves are always the same.
        device: where to fit.
        previous: a model to compare with.
        on_epoch: called after each epoch.

    Raises:
        DatasetError: too few problems.
    """
    splits = folds(dataset, count) if count > 1 else folds(dataset, HOLD_OUT)[:1]
    packed = pack(dataset)

    def fit_one(split: Fold) -> tuple[Fit, float]:
        started = time.perf_counter()
        fitted = fit(_rows(packed, split.train), recipe, seed=seed, device=device, on_epoch=lambda _: on_epoch())
        return fitted, time.perf_counter() - started

    at_once = (os.cpu_count() or 1) if device == "cpu" else 1
    with single_threaded(), ThreadPoolExecutor(min(at_once, len(splits))) as pool:
        fits, seconds = zip(*pool.map(fit_one, splits), strict=True)
    predicted = [times for fitted, split in zip(fits, splits, strict=True) for times in _unseen(dataset, fitted, split)]
    return judge(dataset, splits, predicted, previous=previous, fits=fits, fit_seconds=seconds)


def _unseen(dataset: Dataset, fitted: Fit, split: Fold) -> list[NDArray[np.float64]]:
    """Return what a fit predicts for the problems that it has not seen."""
    scorer = Scorer(fitted.network, dataset.subset(split.train).domain().templates)
    return predict(scorer, [dataset.examples[i] for i in split.test])


def predict(model: Scorer | TimingModel, examples: Sequence[Examples]) -> list[NDArray[np.float64]]:
    """Return the predicted runtimes of each problem's configs in microseconds."""
    return [model.predict_us(example.shape, example.hardware, example.columns) for example in examples]


def judge(
    dataset: Dataset,
    splits: Sequence[Fold],
    predicted: Sequence[NDArray[np.float64]],
    *,
    previous: TimingModel | None = None,
    fits: tuple[Fit, ...] = (),
    fit_seconds: tuple[float, ...] = (),
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
    return Evaluation(
        folds=len(splits),
        all_choices=standing(vendor=True),
        triton_only=standing(vendor=False) if has_triton else None,
        fits=fits,
        fit_seconds=fit_seconds,
    )


def fit_all(
    dataset: Dataset,
    recipe: Recipe,
    *,
    seed: int = 42,
    device: str = "cpu",
    on_epoch: Callable[[], None] = lambda: None,
) -> tuple[Fit, float]:
    """Fit on the whole dataset; return the fit and its seconds.

    Raises:
        DatasetError: too few problems.
    """
    started = time.perf_counter()
    with single_threaded():
        fitted = fit(pack(dataset), recipe, seed=seed, device=device, on_epoch=lambda _: on_epoch())
    return fitted, time.perf_counter() - started


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
        "threads": torch.get_num_threads(),
    }


def _rows(packed: Packed, rows: NDArray[np.intp]) -> Packed:
    return packed[torch.from_numpy(np.asarray(rows))]
