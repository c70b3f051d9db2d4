"""Learn from the warehouse's timings and write a model that picks kernels.

Matches the hardware, evaluates the recipe on problems it has not seen, beside baselines, then fits the model on
all of the data and writes it with its card.
"""

from __future__ import annotations

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
from diode_trainer.commands import train_options
from diode_trainer.commands.data_options import DataOptions, TakesSeveralFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.jobs import Trained, TrainingJob
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
    name: train_options.NameOption = None,
    output: train_options.OutputOption = None,
    force: train_options.ForceOption = False,
    model_type: train_options.ModelTypeOption = train_options.ModelType.DEEP,
    seed: train_options.SeedOption = 42,
    device: train_options.DeviceOption = "cpu",
    options: train_options.RecipeOptions,
    as_json: JsonOption = False,
) -> None:
    """Train a model, show how it ranks beside simpler rankings, and write it with its card.

    Example: diode-train --hardware "NVIDIA H200"
    """
    data.check()
    _check_output(output)
    from diode_trainer import jobs
    from diode_trainer.commands.recipes import make_recipe

    recipe = make_recipe(model_type.value, **vars(options))
    device = jobs.resolve_device(device)
    if name is not None:
        name = jobs.checked_name(name)
    examples = data.load(database)
    name = jobs.model_name(name, output, examples.domain().hardware)
    path = jobs.output_path(output, name)
    if not force:
        jobs.check_free(path)
    command = jobs.command_line("diode-train", {**train_options.what_was_asked(context), "--name": name})
    _run(jobs.TrainingJob(name, recipe, folds, seed, device, path, command), examples, as_json=as_json)


def _check_output(output: Path | None) -> None:
    """Refuse a file of another kind, which would become a folder of that name."""
    from diode_trainer.catalogue import MODEL_SUFFIX

    if output is not None and output.suffix not in {"", MODEL_SUFFIX} and not output.is_dir():
        raise typer.BadParameter(
            f"{output} ends in {output.suffix}; give a file that ends in {MODEL_SUFFIX}, or a folder",
            param_hint="--output",
        )


def _run(job: TrainingJob, dataset: ExampleSet, *, as_json: bool) -> None:
    from diode_trainer.card import card_path
    from diode_trainer.jobs import run_job

    print_note(f"{_plan(job)}; this can take minutes")
    with progress("training, epochs", total=job.epochs) as advance:
        trained = run_job(dataset, job, lambda: advance(1))
    if as_json:
        print_json(_as_json(trained))
        return
    result = trained.result
    if result.evaluation is not None:
        _print_evaluation(result.evaluation, job.name)
    typer.echo(f"fitted {counted(len(dataset), 'problem')} in {result.seconds:.0f} s")
    typer.echo(f"model  {trained.path}")
    typer.echo(f"card   {card_path(trained.path)}")


def _plan(job: TrainingJob) -> str:
    """Return what is about to be fitted."""
    fits = f"fitting {counted(job.folds, 'fold')} and the final model" if job.folds else "fitting the model"
    return f"{fits}, at most {counted(job.recipe.epochs, 'epoch')} each"


def _print_evaluation(evaluation: Evaluation, name: str) -> None:
    from diode_trainer.commands.tables import HEADER, left_out, rows, titles

    for title, standing in titles(evaluation):
        typer.echo(title)
        print_rows(HEADER, rows(standing, name))
    for line in left_out(evaluation.all_choices):
        print_note(line)
    seconds = evaluation.fit_seconds
    typer.echo(f"evaluated on problems it had not seen, {sum(seconds) / len(seconds):.0f} s a fit")


def _as_json(trained: Trained) -> dict[str, object]:
    evaluation = trained.result.evaluation
    return {
        "model": str(trained.path),
        "sha256": trained.card.sha256,
        "hardware": [device.name for device in trained.card.hardware],
        "data": trained.card.data,
        "fit_seconds": trained.result.seconds,
        "fold_seconds": list(evaluation.fit_seconds) if evaluation else [],
        "evaluation": evaluation.to_plain() if evaluation else None,
    }


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run ``diode-train`` and exit with its status."""
    run(app, args, name="diode-train")
