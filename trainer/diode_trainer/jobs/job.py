"""Run a training job: evaluate a recipe, fit it on all data, and write the model."""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch

from diode_store.command_line.options import words_of
from diode_store.errors import DiodeError, ModelError, SettingsError, first_line
from diode_trainer import artifact, catalogue
from diode_trainer.card import Card
from diode_trainer.data.held_out import Split
from diode_trainer.feature_kinds import kind_of
from diode_trainer.jobs.workflow import (
    Evaluation,
    Judging,
    TrainingResult,
    fit_and_judge,
    judging_steps,
    training_facts,
)
from diode_trainer.judging.devices import left_out
from diode_trainer.training import checkpoints, scout
from diode_trainer.training.history import FitHistory, histories_of, write_history
from diode_trainer.training.tensorboard import event_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.training.fits import FitHeard
    from diode_trainer.training.recipe import Recipe
    from diode_trainer.training.train import EpochReport
    from diode_trainer.training.warm_start import WarmStart

_NOTES = (
    "Regret is against the fastest of the configs that were measured for each problem. The default recipe was chosen "
    "on the bundled H200 measurements, so figures for those flatter it a little."
)

_MOST_RIVALS = 3
"""Limit on the models to compare a new one with; each takes about as long as judging a fold."""


@dataclass(frozen=True)
class TrainingJob:
    """Options of one training run."""

    name: str
    recipe: Recipe
    folds: int
    """0: no evaluation; 1: one held-out fold; otherwise the number of folds."""
    seed: int
    device: str
    path: Path
    """Path of the new model."""
    command: str
    """Command line that reproduces the model."""
    licence: str = "Apache-2.0"
    resume: bool = True
    """Continue the fits of an interrupted run."""
    tensorboard: Path | None = None
    """Folder for TensorBoard event files."""
    split: Split = Split.PROBLEM
    """Unit that a fold holds out."""
    start: WarmStart | None = None
    """Model and data that the fits start from."""
    is_quick: bool = False
    """True to compare with the quick baselines only."""

    def steps(self, dataset: ExampleSet) -> int:
        """Return the most steps of the job: epochs of all fits and of the scout, and steps of judging."""
        fits = 1 + self.folds + self.checks(dataset)
        return fits * self.recipe.epochs + scout.RECIPE.epochs + judging_steps(self.folds)

    def checks(self, dataset: ExampleSet) -> int:
        """Return the most fits without one of the devices."""
        return len(left_out(dataset)) if self.folds else 0


@dataclass(frozen=True)
class Trained:
    """Result of a job."""

    card: Card
    path: Path
    result: TrainingResult

    @property
    def histories(self) -> tuple[FitHistory, ...]:
        """History of each fit."""
        evaluation = self.result.evaluation
        return histories_of(self.result.fit, evaluation.fits if evaluation else ())


def run_job(
    dataset: ExampleSet, job: TrainingJob, on_step: Callable[[], None], on_fit: FitHeard = lambda _name, _fit, _s: None
) -> Trained:
    """Evaluate the job's recipe, fit it on all of ``dataset``, and write the model with its card and history.

    Args:
        dataset: training data.
        job: options.
        on_step: called at most ``job.steps(dataset)`` times, from several threads.
        on_fit: called with the name, the result and the seconds of each finished fit.

    Raises:
        DatasetError: too few problems.
        ModelError: the files cannot be written (checked first), or a checkpoint is damaged or belongs to another fit.
        SettingsError: the package tensorboard is requested but missing.
    """
    _prepare(job.path)
    with contextlib.ExitStack() as stack:
        watch = None if job.tensorboard is None else stack.enter_context(event_files(job.tensorboard, job.name))
        unfinished = stack.enter_context(checkpoints.unfinished(job.path, resume=job.resume))

        def heard(fit: str, report: EpochReport) -> None:
            on_step()
            if watch is not None and fit != scout.NAME:
                watch(fit, report)

        result = fit_and_judge(
            dataset,
            job.recipe,
            job.folds,
            seed=job.seed,
            device=job.device,
            judging=_judging(dataset, job, on_step),
            on_epoch=heard,
            on_fit=on_fit,
            unfinished=unfinished,
            start=job.start,
        )
        shapes = [example.shape for example in dataset]
        card = artifact.save(job.path, result.fit.network, _card(dataset, job, result), trained_on=shapes)
        trained = Trained(card, job.path, result)
        write_history(job.path, trained.histories)
    return trained


def _prepare(path: Path) -> None:
    """Make the folder of ``path``, and check that it is writable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"{path}: cannot write the model ({error.strerror or error}); choose another --output"
        ) from None
    if not os.access(path.parent, os.W_OK):
        raise ModelError(
            f"{path}: cannot write the model (no permission to write to its folder); choose another --output"
        )


def _card(dataset: ExampleSet, job: TrainingJob, result: TrainingResult) -> Card:
    network, kind = result.fit.network, kind_of({example.shape.op for example in dataset})
    size = {"problems": len(dataset), "examples": dataset.timings, "failures": dataset.failures}
    size["triton_configs"] = dataset.triton_configs
    training = training_facts(job.recipe, result.fit, seed=job.seed, seconds=result.seconds)
    start = {} if job.start is None else {"warm_start": job.start.facts()}
    return Card(
        name=job.name,
        purpose=kind.purpose,
        model_type=network.model_type,
        feature_version=kind.version,
        domain=replace(dataset.domain(), device_checks=result.device_checks),
        data={**size, **dataset.lineage},
        training={**training, **start},
        command=job.command,
        **_judgement(result.evaluation),
        calibration=result.calibration,
        notes=_NOTES,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        torch=torch.__version__,
        licence=job.licence,
    )


def command_line(program: str, options: dict[str, Any]) -> str:
    """Return a command line of the options that have a value."""
    return shlex.join([program, *words_of(options)])


def resolve_device(text: str) -> str:
    """Return the device to fit on; ``auto`` takes a GPU if there is one.

    Raises:
        ModelError: the machine has no such device.
    """
    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"cannot fit on device {text!r} ({first_line(error)}); use --device cpu") from None
    return text


def _judging(dataset: ExampleSet, job: TrainingJob, on_step: Callable[[], None]) -> Judging:
    """Return how to judge the recipe."""
    rivals = _rivals(dataset) if job.folds and not job.is_quick else ()
    return Judging(job.split, rivals, job.is_quick, on_step)


def _rivals(dataset: ExampleSet) -> tuple[TimingModel, ...]:
    """Return the models to compare with: those that know the devices, else the best near one."""
    preferred: tuple[str, ...] = ()
    with contextlib.suppress(SettingsError):  # `diode models list` reports damaged defaults
        preferred = catalogue.known_defaults()
    with contextlib.suppress(DiodeError):
        purpose = kind_of({example.shape.op for example in dataset}).purpose
        models = catalogue.known_models(purpose, preferred=preferred)
        pairs = {(e.hardware.key, e.shape.op): (e.hardware, e.shape.op) for e in dataset}.values()
        asked = [model for model in models if all(model.card.domain.covers(*pair) for pair in pairs)]
        if not asked:
            asked = [model for model in models if any(model.card.domain.standing(*pair).is_near for pair in pairs)][:1]
        found: list[TimingModel] = []
        for model in asked:
            if len(found) < _MOST_RIVALS and model.path.stem not in {other.path.stem for other in found}:
                with contextlib.suppress(ModelError):  # a model that this version cannot use
                    found.append(artifact.load(model.path))
        return tuple(found)
    return ()


def _judgement(evaluation: Evaluation | None) -> dict[str, Any]:
    if evaluation is None:
        return {}
    metrics: dict[str, Any] = {"folds": evaluation.folds, "split": evaluation.held_out.value}
    baselines: dict[str, Any] = {}
    for name, standing in (("all_choices", evaluation.all_choices), ("triton_only", evaluation.triton_only)):
        if standing is not None:
            metrics[name] = standing.model.to_plain()
            baselines[name] = standing.to_plain()["baselines"]
    return {"metrics": metrics, "baselines": baselines, "compared": evaluation.compared}
