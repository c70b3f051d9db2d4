"""What `diode-train` does with its options: evaluate a recipe, fit it on everything, write the model."""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from diode_store.errors import DiodeError, ModelError, SettingsError, first_line
from diode_store.options import words_of
from diode_trainer import artifact, catalogue, defaults
from diode_trainer.card import MATMUL_PURPOSE, Card, card_path, read_card, similar_device
from diode_trainer.data.held_out import Split
from diode_trainer.features import FEATURE_VERSION
from diode_trainer.training import checkpoints, scout
from diode_trainer.training.history import FitHistory, histories_of, write_history
from diode_trainer.training.tensorboard import event_files
from diode_trainer.workflow import Evaluation, Judging, TrainingResult, fit_and_judge, judging_steps, training_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from diode_trainer.artifact import TimingModel
    from diode_trainer.card import CoveredHardware
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.training.train import EpochReport, Recipe
    from diode_trainer.training.warm_start import WarmStart

_NOTES = (
    "Regret is against the fastest of the configs that were measured for each problem. The default recipe was chosen "
    "on the bundled H200 measurements, so figures for those flatter it a little."
)

_MOST_RIVALS = 3
"""Models that a new one is compared with; asking one takes about as long as judging a fold."""


@dataclass(frozen=True)
class TrainingJob:
    """The options of one training run."""

    name: str
    recipe: Recipe
    folds: int
    """0: no evaluation; 1: one held-out fold; else how many."""
    seed: int
    device: str
    path: Path
    """Where the checkpoint goes."""
    command: str
    """What to run to do it again."""
    licence: str = "Apache-2.0"
    resume: bool = False
    """Go on with the fits of an interrupted run."""
    tensorboard: Path | None = None
    """A folder for TensorBoard's event files."""
    split: Split = Split.PROBLEM
    """What a fold holds out together."""
    start: WarmStart | None = None
    """What its fits begin with, and learn from beside the data."""

    @property
    def steps(self) -> int:
        """The most steps that it takes: the epochs of all of its fits and of the scout's, and those of judging them."""
        return (self.folds + 1) * self.recipe.epochs + scout.RECIPE.epochs + judging_steps(self.folds)


@dataclass(frozen=True)
class Trained:
    """The result of a job."""

    card: Card
    path: Path
    result: TrainingResult

    @property
    def histories(self) -> tuple[FitHistory, ...]:
        """How each of its fits went."""
        evaluation = self.result.evaluation
        return histories_of(self.result.fit, evaluation.fits if evaluation else ())


def run_job(dataset: ExampleSet, job: TrainingJob, on_step: Callable[[], None]) -> Trained:
    """Evaluate the job's recipe, fit it on all of ``dataset`` and write the model with its card and history.

    Args:
        dataset: what to learn from.
        job: its options.
        on_step: called ``job.steps`` times at most; from several threads.

    Raises:
        DatasetError: too few problems.
        ModelError: the files cannot be written, which is checked before anything is fitted; or, to go on with, there is
            a damaged checkpoint, or one of other data or another recipe.
        SettingsError: the package tensorboard is asked for and missing.
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
            judging=Judging(job.split, _rivals(dataset) if job.folds else (), on_step),
            on_epoch=heard,
            unfinished=unfinished,
            start=job.start,
        )
        shapes = [example.shape for example in dataset]
        card = artifact.save(job.path, result.fit.network, _card(dataset, job, result), trained_on=shapes)
        trained = Trained(card, job.path, result)
        write_history(job.path, trained.histories)
    return trained


def _prepare(path: Path) -> None:
    """Make the folder that ``path`` goes to, if it can be written."""
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
    network = result.fit.network
    size = {"problems": len(dataset), "examples": dataset.timings, "failures": dataset.failures}
    size["triton_configs"] = dataset.triton_configs
    training = training_facts(job.recipe, result.fit, seed=job.seed, seconds=result.seconds)
    start = {} if job.start is None else {"warm_start": job.start.facts()}
    return Card(
        name=job.name,
        purpose=MATMUL_PURPOSE,
        model_type=network.model_type,
        feature_version=FEATURE_VERSION,
        domain=dataset.domain(),
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


def model_name(name: str | None, output: Path | None, hardware: Sequence[CoveredHardware]) -> str:
    """Return a model's name: ``name``, else that of the file ``output``, else its hardware's.

    Raises:
        SettingsError: that is no name for a file.
    """
    if name is None:
        name = output.stem if is_file(output) else _hardware_name(hardware)
    return checked_name(name)


def checked_name(name: str) -> str:
    """Return ``name`` without the suffix of a checkpoint.

    Raises:
        SettingsError: it is no name for a file.
    """
    if not name.strip() or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
        raise SettingsError(f"{name!r} is not a valid model name; it must not contain / or \\ or begin with a dot")
    if name.removesuffix(catalogue.MODEL_SUFFIX).endswith(".history"):
        raise SettingsError(f"{name!r} is not a valid model name; what ends in .history is the history of a model")
    return name.removesuffix(catalogue.MODEL_SUFFIX)


def _hardware_name(hardware: Sequence[CoveredHardware]) -> str:
    """Return ``nvidia-h200`` for NVIDIA H200; of several devices the first, and how many more there are."""
    first = catalogue.name_for(hardware[0].name)
    return first if len(hardware) == 1 else f"{first}-and-{len(hardware) - 1}-more"


def is_file(output: Path | None) -> TypeGuard[Path]:
    """Return whether ``--output`` names a checkpoint, not a folder."""
    return output is not None and output.suffix == catalogue.MODEL_SUFFIX and not output.is_dir()


def output_path(output: Path | None, name: str) -> Path:
    """Return where a model called ``name`` goes: the file ``output``, or into that folder, or the user's models."""
    if is_file(output):
        return output
    return (output or catalogue.user_models_dir() / MATMUL_PURPOSE) / f"{name}{catalogue.MODEL_SUFFIX}"


def check_free(path: Path) -> None:
    """Check that no model would be replaced.

    Raises:
        ModelError: there is a model at ``path``; the message gives its date.
    """
    if path.exists():
        raise ModelError(f"{path}: there is a model of {_date(path)}; --force replaces it, --name makes another")


def _date(path: Path) -> str:
    try:
        return read_card(card_path(path)).created_at.partition("T")[0] or "unknown date"
    except ModelError:
        return "unknown date"


def command_line(program: str, options: dict[str, Any]) -> str:
    """Return a command line of those options that have a value."""
    return shlex.join([program, *words_of(options)])


def resolve_device(text: str) -> str:
    """Return the device to fit on; ``auto`` is a GPU if there is one.

    Raises:
        ModelError: no such device here.
    """
    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"cannot fit on device {text!r} ({first_line(error)}); use --device cpu") from None
    return text


def _rivals(dataset: ExampleSet) -> tuple[TimingModel, ...]:
    """Return the models to compare with: those that know the devices, else the best of those of a similar one."""
    preferred: tuple[str, ...] = ()
    with contextlib.suppress(SettingsError):  # `diode models list` tells that they are damaged
        preferred = defaults.known_defaults()
    with contextlib.suppress(DiodeError):
        models = catalogue.known_models(preferred=preferred)
        devices = {example.hardware.key: example.hardware for example in dataset}.values()
        asked = [model for model in models if all(model.card.domain.covers(device) for device in devices)]
        if not asked:
            asked = [model for model in models if any(similar_device([model.card], device) for device in devices)][:1]
        found: list[TimingModel] = []
        for model in asked:
            if len(found) < _MOST_RIVALS and model.path.stem not in {other.path.stem for other in found}:
                with contextlib.suppress(ModelError):  # one that this version cannot use
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
