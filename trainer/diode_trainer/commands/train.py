"""Learn from the warehouse's timings, and write a model that picks kernels.

Evaluates the recipe on problems it has not seen, beside baselines. Then fits the model on all of the data, and writes
it with its card.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import typer

from diode_store.command_line.console import (
    JsonOption,
    SourceOption,
    is_on_command_line,
    make_app,
    print_json,
    print_note,
    print_rows,
    progress,
    run,
)
from diode_store.command_line.options import takes_options
from diode_store.command_line.render import counted
from diode_store.system.files import real_path
from diode_trainer.commands import reporting, train_options
from diode_trainer.commands.data_options import DataOptions, TakesSeveralFiles, wait_without_spinning
from diode_trainer.data.held_out import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.covered import DeviceCheck
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.jobs.job import Trained, TrainingJob
    from diode_trainer.jobs.workflow import Evaluation
    from diode_trainer.report.evaluation.output import Destination
    from diode_trainer.training.recipe import Recipe
    from diode_trainer.training.train import Fit
    from diode_trainer.training.warm_start import WarmStart

app = make_app(__doc__)


@app.command(no_args_is_help=True, cls=TakesSeveralFiles)
@takes_options(DataOptions, "data")
@takes_options(train_options.TrainOptions, "asked")
@takes_options(train_options.RecipeOptions)
def train(
    context: typer.Context,
    database: SourceOption,
    data: DataOptions,
    *,
    asked: train_options.TrainOptions,
    options: train_options.RecipeOptions,
    as_json: JsonOption = False,
) -> None:
    r"""Train a model, show how it ranks beside simpler rankings, and write it with its card.

    Without a warehouse it learns from the measurements that ship with torch-diode.

    \b
    Examples: diode-train --hardware "NVIDIA H100"
              diode-train --hardware h100,h200
    """
    data.check()
    wait_without_spinning()
    to = asked.check()
    _refuse_to_replace(asked, data.devices(database), data.op)
    from diode_trainer.commands.recipes import make_recipe
    from diode_trainer.jobs.job import resolve_device

    recipe = make_recipe(asked.model_type.value, **vars(options))
    asked = replace(asked, device=resolve_device(asked.device))
    examples = data.load(database, is_typed=is_on_command_line(context, "database"))
    _say_if_narrow(examples)
    job = _job(context, recipe, asked, options, examples, data.op)
    trained = _run(job, examples)
    if asked.history_picture is not None:
        reporting.draw_history(trained.histories, asked.history_picture)
    _print(trained, job.name, as_json=as_json)
    if to:  # last, so that a report that fails does not hide the results
        _report(trained, examples, asked.folds, to)


def _refuse_to_replace(asked: train_options.TrainOptions, devices: Sequence[str], op: str | None) -> None:
    """Refuse to replace a model without ``--force``; without devices its path may not be known yet.

    Raises:
        ModelError: the model exists.
        SettingsError: ``--name`` cannot be the name of a file.
    """
    from diode_trainer.jobs import naming

    if devices or asked.name is not None or naming.is_file(asked.output):
        name = naming.model_name(asked.name, asked.output, devices, op)
        if not asked.force:
            naming.check_free(naming.output_path(asked.output, name, op))


def _job(
    context: typer.Context,
    recipe: Recipe,
    asked: train_options.TrainOptions,
    options: train_options.RecipeOptions,
    examples: ExampleSet,
    op: str | None,
) -> TrainingJob:
    """Return the job of a command line for its data.

    Raises:
        ModelError: the model exists, or ``--warm-start`` names no model to start from.
    """
    from diode_trainer.commands.recipes import with_epochs_for
    from diode_trainer.jobs import job, naming
    from diode_trainer.training.warm_start import AUTO

    devices = [device.name for device in examples.domain().hardware]
    _refuse_to_replace(asked, devices, op)
    start = _start(asked.warm_start, examples, asked.model_type, options)
    if start is not None:
        recipe = start.gently(recipe, epochs=options.epochs, learning_rate=options.learning_rate)
    elif options.epochs is None:
        recipe = with_epochs_for(recipe, len(examples))
    name = naming.model_name(asked.name, asked.output, devices, op)
    begun_with = asked.warm_start if asked.warm_start != AUTO else start.name if start else None
    resolved = {"--name": name, "--warm-start": begun_with}
    return job.TrainingJob(
        name,
        recipe,
        asked.folds,
        asked.seed,
        asked.device,
        naming.output_path(asked.output, name, op),
        job.command_line("diode-train", {**train_options.what_was_asked(context), **resolved}),
        resume=asked.resume,
        tensorboard=asked.tensorboard,
        split=asked.split,
        start=start,
        is_quick=asked.quick_baselines,
    )


def _report(trained: Trained, examples: ExampleSet, folds: int, to: Destination) -> None:
    from diode_trainer.commands.evidence import of_training, reporting_steps

    with progress("reporting, steps", total=reporting_steps(folds)) as advance:
        evidence = of_training(trained, examples, on_step=lambda: advance(1))
    reporting.write(evidence, to)


def _say_if_narrow(examples: ExampleSet) -> None:
    from diode_trainer.card import narrow_note
    from diode_trainer.data.dataset import LEARNED_ALONE

    is_alone = any(example.shape.op in LEARNED_ALONE for example in examples)
    if not is_alone and (note := narrow_note(examples.triton_configs)) is not None:
        print_note(f"note: {note}")


def _start(
    asked: str, examples: ExampleSet, model_type: train_options.ModelType, options: train_options.RecipeOptions
) -> WarmStart | None:
    """Return the start of the fits, and print a note about it."""
    from diode_trainer.data.dataset import LEARNED_ALONE
    from diode_trainer.training import warm_start

    if asked == warm_start.NONE or (asked == warm_start.AUTO and options.gives_dimensions):
        return None
    if any(example.shape.op in LEARNED_ALONE for example in examples):  # the shipped start is one of products
        if asked == warm_start.AUTO:
            return None
        what = "a model of attention or convolutions starts from random weights"
        raise typer.BadParameter(what, param_hint="--warm-start")
    devices = {example.hardware.key: example.hardware for example in examples}.values()
    with progress("reading the model's training data"):
        start = warm_start.find(devices) if asked == warm_start.AUTO else warm_start.named(asked, devices)
    has_other_type = start is not None and model_type != start.network.model_type
    if asked != warm_start.AUTO and (options.gives_dimensions or has_other_type):
        raise typer.BadParameter(
            f"{asked} has its own type, layers and members; leave out these options", param_hint="--warm-start"
        )
    if start is None or has_other_type:
        return None
    knows = ", ".join(device.name for device in start.model.card.hardware)
    known = counted(len(start.known), "problem")
    print_note(
        f"starts from {start.name}, which knows {knows}, and trains on {known} of it again;"
        " --warm-start none starts from random weights"
    )
    return start


def _run(job: TrainingJob, dataset: ExampleSet) -> Trained:
    from diode_trainer.jobs.job import run_job
    from diode_trainer.training.checkpoints import are_left

    _say_what_is_left(job)
    try:
        print_note(f"{_plan(job, dataset)}; this can take minutes")
        with progress("training and judging, steps", total=job.steps(dataset)) as advance:
            return run_job(dataset, job, lambda: advance(1), _say_how_it_went)
    except KeyboardInterrupt:
        if are_left(job.path):
            print_note("interrupted; the same command continues from here")
        else:
            print_note("interrupted before the first checkpoint; nothing was kept")
        raise


def _print(trained: Trained, name: str, *, as_json: bool) -> None:
    from diode_trainer.card import card_path
    from diode_trainer.training.history import history_path

    if as_json:
        print_json(_as_json(trained))
        return
    result = trained.result
    if result.evaluation is not None:
        _print_evaluation(result.evaluation, name, result.device_checks)
    typer.echo(f"fitted {counted(trained.card.data['problems'], 'problem')} in {result.seconds:.0f} s")
    typer.echo(f"model  {trained.path}")
    typer.echo(f"card   {card_path(trained.path)}")
    typer.echo(f"losses {history_path(trained.path)}")
    typer.echo(f"hook   {_place(trained)}")


def _place(trained: Trained) -> str:
    """Describe when the hook will ask the new model."""
    from diode_store.errors import DiodeError
    from diode_trainer.card import MATMUL_PURPOSE
    from diode_trainer.catalogue import known_defaults, known_models

    try:
        known = known_models(trained.card.purpose, preferred=known_defaults())
    except DiodeError as error:
        return f"may ask it: {error}"
    known = [model for model in known if not model.card.ops or set(model.card.ops) & set(trained.card.ops)]
    path = real_path(trained.path)
    if path not in [real_path(model.path) for model in known]:
        if trained.card.purpose != MATMUL_PURPOSE:
            return "does not look for it there; leave out --output"
        return "does not look for it there; name it: DIODE_MODEL, or `install_diode_choices`"
    asked: dict[str, list[str]] = {}
    for device in trained.card.hardware:
        first = next(model for model in known if model.card.domain.covers(device))
        asked.setdefault("it" if real_path(first.path) == path else first.path.stem, []).append(device.name)
    told = "; ".join(f"asks {name} first on {', '.join(devices)}" for name, devices in asked.items())
    return told if asked.keys() == {"it"} else f"{told}; `diode models default {trained.path.stem}` changes that"


def _say_what_is_left(job: TrainingJob) -> None:
    """Print a note about an earlier run's checkpoints."""
    from diode_trainer.training.checkpoints import are_left
    from diode_trainer.training.train import START_ANEW

    if are_left(job.path):
        print_note(
            f"continuing an interrupted run, which needs the same options; {START_ANEW}"
            if job.resume
            else "deleting the checkpoints of an interrupted run"
        )


def _say_how_it_went(name: str, fitted: Fit, seconds: float) -> None:
    print_note(f"{name}: fitted in {seconds:.0f} s, {counted(fitted.epochs, 'epoch')} kept")


def _plan(job: TrainingJob, dataset: ExampleSet) -> str:
    """Describe the fits of a job."""
    checks = job.checks(dataset)
    without = f", {counted(checks, 'fit')} without one of the devices" if checks else ""
    of_families = " of families" if job.split is Split.FAMILY else ""
    folds = f"{counted(job.folds, 'fold')}{of_families}{without}"
    fits = f"fitting {folds} and the final model" if job.folds else "fitting the model"
    return f"{fits}, at most {counted(job.recipe.epochs, 'epoch')} each"


def _print_evaluation(evaluation: Evaluation, name: str, checks: Sequence[DeviceCheck]) -> None:
    from diode_trainer.commands.tables import (
        ERRORS_HEADER,
        HEADER,
        PARTS_HEADER,
        device_rows,
        error_rows,
        left_out,
        rows,
        titles,
    )

    for title, standing in titles(evaluation):
        typer.echo(title)
        print_rows(HEADER, rows(standing, name))
        print_rows(ERRORS_HEADER, error_rows(standing, name))
        if devices := device_rows(standing):
            print_rows(("device", *PARTS_HEADER), devices)
    for line in left_out(evaluation.all_choices):
        print_note(line)
    for check in checks:
        verdict = "supports it" if check.supports else "does not support it"
        print_note(f"a device left out: {check.describe()}; {verdict} on devices it never saw")
    seconds = evaluation.fit_seconds
    unseen = "families" if evaluation.held_out is Split.FAMILY else "problems"
    typer.echo(f"evaluated on {unseen} it had not seen, {sum(seconds) / len(seconds):.0f} s a fit")


def _as_json(trained: Trained) -> dict[str, object]:
    from diode_trainer.training.history import history_path

    evaluation = trained.result.evaluation
    return {
        "model": str(trained.path),
        "sha256": trained.card.sha256,
        "history": str(history_path(trained.path)),
        "hardware": [device.name for device in trained.card.hardware],
        "data": trained.card.data,
        "fit_seconds": trained.result.seconds,
        "fold_seconds": list(evaluation.fit_seconds) if evaluation else [],
        "evaluation": evaluation.to_plain() if evaluation else None,
    }


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run ``diode-train`` and exit with its status."""
    run(app, args, name="diode-train")
