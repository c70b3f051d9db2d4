"""Learn from the warehouse's timings and write a model that picks kernels.

Matches the hardware, evaluates the recipe on problems it has not seen, beside baselines, then fits the model on
all of the data and writes it with its card.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import typer

from diode_store.console import (
    DatabaseOption,
    JsonOption,
    make_app,
    print_json,
    print_note,
    print_rows,
    progress,
    run,
)
from diode_store.options import takes_options
from diode_store.render import counted
from diode_trainer.commands import reporting, train_options
from diode_trainer.commands.data_options import DataOptions, TakesSeveralFiles
from diode_trainer.data.held_out import Split

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.jobs import Trained, TrainingJob
    from diode_trainer.report.output import Destination
    from diode_trainer.training.warm_start import WarmStart
    from diode_trainer.workflow import Evaluation

app = make_app(__doc__)


@app.command(no_args_is_help=True, cls=TakesSeveralFiles)
@takes_options(DataOptions, "data")
@takes_options(train_options.RecipeOptions)
def train(  # noqa: PLR0913 - one parameter an option
    context: typer.Context,
    database: DatabaseOption,
    data: DataOptions,
    *,
    folds: train_options.FoldsOption = 5,
    split: train_options.SplitOption = Split.PROBLEM,
    name: train_options.NameOption = None,
    output: train_options.OutputOption = None,
    force: train_options.ForceOption = False,
    model_type: train_options.ModelTypeOption = train_options.ModelType.DEEP,
    warm_start: train_options.WarmStartOption = "auto",
    seed: train_options.SeedOption = 42,
    device: train_options.DeviceOption = "cpu",
    resume: train_options.ResumeOption = False,
    tensorboard: train_options.TensorboardOption = None,
    history_picture: train_options.HistoryPictureOption = None,
    options: train_options.RecipeOptions,
    report: reporting.ReportOption = None,
    report_pictures: reporting.PicturesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model, show how it ranks beside simpler rankings, and write it with its card.

    Example: diode-train --hardware "NVIDIA H200"
    """
    data.check()
    _check_output(output)
    to = reporting.destination(report, report_pictures)
    if history_picture is not None:
        reporting.check_history_picture(history_picture)
    if to and not folds:
        raise typer.BadParameter("a report is of an evaluation, which --folds 0 leaves out", param_hint="--report")
    from diode_trainer import jobs
    from diode_trainer.commands.recipes import make_recipe
    from diode_trainer.training.warm_start import AUTO

    recipe = make_recipe(model_type.value, **vars(options))
    device = jobs.resolve_device(device)
    name = None if name is None else jobs.checked_name(name)
    examples = data.load(database)
    _say_if_narrow(examples)
    start = _start(warm_start, examples, model_type, options)
    if start is not None:
        recipe = start.gently(recipe, epochs=options.epochs, learning_rate=options.learning_rate)
    name = jobs.model_name(name, output, examples.domain().hardware)
    path = jobs.output_path(output, name)
    if not force:
        jobs.check_free(path)
    begun_with = warm_start if warm_start != AUTO else start.name if start else None
    resolved = {"--name": name, "--warm-start": begun_with}
    command = jobs.command_line("diode-train", {**train_options.what_was_asked(context), **resolved})
    job = jobs.TrainingJob(name, recipe, folds, seed, device, path, command, split=split, start=start)
    trained = _run(replace(job, resume=resume, tensorboard=tensorboard), examples)
    if history_picture is not None:
        reporting.draw_history(trained.histories, history_picture)
    if to:
        _report(trained, examples, folds, to)
    _print(trained, name, as_json=as_json)


def _report(trained: Trained, examples: ExampleSet, folds: int, to: Destination) -> None:
    from diode_trainer.commands.evidence import of_training, reporting_steps

    with progress("reporting, steps", total=reporting_steps(folds)) as advance:
        evidence = of_training(trained, examples, on_step=lambda: advance(1))
    reporting.write(evidence, to)


def _say_if_narrow(examples: ExampleSet) -> None:
    from diode_trainer.card import narrow_note

    if (note := narrow_note(examples.triton_configs)) is not None:
        print_note(f"note: {note}")


def _start(
    asked: str, examples: ExampleSet, model_type: train_options.ModelType, options: train_options.RecipeOptions
) -> WarmStart | None:
    """Return what the fits begin with, and say so."""
    from diode_trainer.training import warm_start

    if asked == warm_start.NONE or (asked == warm_start.AUTO and options.gives_dimensions):
        return None
    devices = {example.hardware.key: example.hardware for example in examples}.values()
    with progress("reading what is known"):
        start = warm_start.find(devices) if asked == warm_start.AUTO else warm_start.named(asked, devices)
    has_other_type = start is not None and model_type != start.network.model_type
    if asked != warm_start.AUTO and (options.gives_dimensions or has_other_type):
        raise typer.BadParameter(
            f"{asked} has its own type, layers and members; leave out these", param_hint="--warm-start"
        )
    if start is None or has_other_type:
        return None
    knows = ", ".join(device.name for device in start.model.card.hardware)
    print_note(
        f"begins with {start.name}, which knows {knows}, and learns {counted(len(start.known), 'problem')} of it again;"
        " --warm-start none begins with nothing"
    )
    return start


def _check_output(output: Path | None) -> None:
    """Refuse a file of another kind, which would become a folder of that name."""
    from diode_trainer.catalogue import MODEL_SUFFIX

    if output is not None and output.suffix not in {"", MODEL_SUFFIX} and not output.is_dir():
        raise typer.BadParameter(
            f"{output} ends in {output.suffix}; give a file that ends in {MODEL_SUFFIX}, or a folder",
            param_hint="--output",
        )


def _run(job: TrainingJob, dataset: ExampleSet) -> Trained:
    from diode_trainer.jobs import run_job
    from diode_trainer.training.checkpoints import are_left

    _say_what_is_left(job)
    try:
        print_note(f"{_plan(job)}; this can take minutes")
        with progress("training and judging, steps", total=job.steps) as advance:
            return run_job(dataset, job, lambda: advance(1))
    except KeyboardInterrupt:
        if are_left(job.path):
            print_note("interrupted; the same command with --resume goes on from here")
        else:
            print_note("interrupted before the first checkpoint, so nothing was kept")
        raise


def _print(trained: Trained, name: str, *, as_json: bool) -> None:
    from diode_trainer.card import card_path
    from diode_trainer.training.history import history_path

    if as_json:
        print_json(_as_json(trained))
        return
    result = trained.result
    if result.evaluation is not None:
        _print_evaluation(result.evaluation, name)
    typer.echo(f"fitted {counted(trained.card.data['problems'], 'problem')} in {result.seconds:.0f} s")
    typer.echo(f"model  {trained.path}")
    typer.echo(f"card   {card_path(trained.path)}")
    typer.echo(f"losses {history_path(trained.path)}")
    typer.echo(f"hook   {_place(trained)}")


def _place(trained: Trained) -> str:
    """Return what becomes of a model that nobody names."""
    from diode_store.errors import DiodeError
    from diode_trainer.catalogue import known_models
    from diode_trainer.defaults import known_defaults

    try:
        known = known_models(preferred=known_defaults())
    except DiodeError as error:
        return f"may ask it: {error}"
    path = trained.path.resolve()
    if path not in [model.path.resolve() for model in known]:
        return "does not look for it there; name it: DIODE_MODEL, or `install_diode_choices`"
    device = trained.card.hardware[0]
    first = next(model for model in known if device in model.card.hardware)
    if first.path.resolve() == path:
        return f"asks it first on {device.name}"
    return f"asks {first.path.stem} first on {device.name}; `diode models default {trained.path.stem}` changes that"


def _say_what_is_left(job: TrainingJob) -> None:
    """Say what becomes of an earlier run's checkpoints."""
    from diode_trainer.training.checkpoints import are_left

    left = are_left(job.path)
    if job.resume:
        print_note("going on with an interrupted run" if left else "no interrupted run to go on with; starting anew")
    elif left:
        print_note("note: starting anew; --resume would have gone on with an interrupted run")


def _plan(job: TrainingJob) -> str:
    """Return what is about to be fitted."""
    of_families = " of families" if job.split is Split.FAMILY else ""
    fits = (
        f"fitting {counted(job.folds, 'fold')}{of_families} and the final model" if job.folds else "fitting the model"
    )
    return f"{fits}, at most {counted(job.recipe.epochs, 'epoch')} each"


def _print_evaluation(evaluation: Evaluation, name: str) -> None:
    from diode_trainer.commands.tables import ERRORS_HEADER, HEADER, error_rows, left_out, rows, titles

    for title, standing in titles(evaluation):
        typer.echo(title)
        print_rows(HEADER, rows(standing, name))
        print_rows(ERRORS_HEADER, error_rows(standing, name))
    for line in left_out(evaluation.all_choices):
        print_note(line)
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
