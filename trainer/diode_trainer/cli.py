"""Learn from the warehouse's timings and write a model that picks kernels.

Matches the hardware, evaluates the recipe on problems it has not seen, beside baselines, then fits the model on
all of the data and writes it with its card.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.dataset import Dataset
    from diode_trainer.from_warehouse import Selection
    from diode_trainer.jobs import Job, Trained
    from diode_trainer.workflow import Evaluation

app = make_app(__doc__)

DATA = "Data"
FITTING = "Fitting"
_DatasetOption = Annotated[
    Path | None,
    typer.Option(help="Train on this file (JSON Lines) and not on the warehouse.", rich_help_panel=DATA),
]
_OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "--model", "-o", help="File (.pt) or folder to write; else your models folder."),
]


class ModelType(StrEnum):
    """What can be trained."""

    DEEP = "deep"
    BASE = "base"


@app.command(no_args_is_help=True)
def train(  # noqa: PLR0913 (one parameter an option)
    database: DatabaseOption,
    hardware: Annotated[
        str | None,
        typer.Option("--hardware", "--hardware-name", help="Alias, name or beginning of a name.", rich_help_panel=DATA),
    ] = None,
    dataset: _DatasetOption = None,
    op: Annotated[
        str | None, typer.Option("--op", "--op-name", help="Only this op, such as mm.", rich_help_panel=DATA)
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Only this dtype, such as bf16.", rich_help_panel=DATA)] = None,
    *,
    all_matches: Annotated[
        bool, typer.Option("--all-matches", help="Accept hardware of several kinds.", rich_help_panel=DATA)
    ] = False,
    folds: Annotated[
        int,
        typer.Option(min=0, max=10, help="5: evaluate on five folds; 1: on one that is held out; 0: not at all."),
    ] = 5,
    name: Annotated[str, typer.Option(help="The model's name.")] = "my_model",
    output: _OutputOption = None,
    model_type: Annotated[ModelType, typer.Option(help="What to train.", rich_help_panel=FITTING)] = ModelType.DEEP,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal models.", rich_help_panel=FITTING)] = 42,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.", rich_help_panel=FITTING)] = "cpu",
    num_epochs: Annotated[int | None, typer.Option(min=1, help="Most epochs.", rich_help_panel=FITTING)] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Problems a step.", rich_help_panel=FITTING)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak.", rich_help_panel=FITTING)] = None,
    weight_decay: Annotated[float | None, typer.Option(min=0, help="Of AdamW.", rich_help_panel=FITTING)] = None,
    patience: Annotated[
        int | None, typer.Option(min=0, help="Epochs without improvement; 0: never stop.", rich_help_panel=FITTING)
    ] = None,
    hidden_dim: Annotated[int | None, typer.Option(min=1, help="Width of a layer.", rich_help_panel=FITTING)] = None,
    num_layers: Annotated[int | None, typer.Option(min=1, help="Hidden layers.", rich_help_panel=FITTING)] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model, show how it ranks beside simpler rankings, and write it with its card.

    Example: diode-train --hardware "NVIDIA H200" --name h200_model
    """
    if hardware is None and dataset is None:
        raise typer.BadParameter("name the hardware to train for, or a file", param_hint="--hardware or --dataset")
    from diode_trainer.from_warehouse import Selection
    from diode_trainer.jobs import Job, command_line, output_path, resolve_device
    from diode_trainer.recipes import make_recipe

    recipe = make_recipe(
        model_type.value,
        epochs=num_epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        patience=patience,
        hidden_dim=hidden_dim,
        num_layers=num_layers,
    )
    options = {
        "--hardware": hardware,
        "--dataset": dataset,
        "--op": op,
        "--dtype": dtype,
        "--all-matches": all_matches,
        "--folds": folds,
        "--name": name,
        "--model-type": model_type.value,
        "--seed": seed,
        "--num-epochs": num_epochs,
        "--batch-size": batch_size,
        "--learning-rate": learning_rate,
        "--weight-decay": weight_decay,
        "--patience": patience,
        "--hidden-dim": hidden_dim,
        "--num-layers": num_layers,
    }
    command = command_line("diode-train", options)
    job = Job(name, recipe, folds, seed, resolve_device(device), output_path(output, name), command)
    selection = Selection(hardware, op, dtype, all_matches)
    _run(job, _load(database, dataset, selection), as_json=as_json)


def _load(database: str, file: Path | None, selection: Selection) -> Dataset:
    """Read the data and say on stderr what it is."""
    from diode_trainer.sources import load

    found = load(database, file, selection)
    for line in found.notes:
        print_note(line)
    return found.dataset


def _run(job: Job, dataset: Dataset, *, as_json: bool) -> None:
    from diode_trainer.jobs import run_job

    with progress("training, epochs", total=job.epochs) as advance:
        trained = run_job(dataset, job, lambda: advance(1))
    if as_json:
        print_json(_as_json(trained))
        return
    outcome = trained.outcome
    if outcome.evaluation is not None:
        _print_evaluation(outcome.evaluation, job.name)
    typer.echo(f"fitted {len(dataset)} problems in {outcome.seconds:.0f} s")
    typer.echo(f"model  {trained.path}")
    typer.echo(f"card   {trained.path.with_suffix('.json')}")


def _print_evaluation(evaluation: Evaluation, name: str) -> None:
    from diode_trainer.tables import HEADER, rows, titles

    for title, standing in titles(evaluation):
        typer.echo(title)
        print_rows(HEADER, rows(standing, name))
    for baseline, reason in evaluation.all_choices.baselines.skipped.items():
        print_note(f"left out {baseline}: {reason}")
    seconds = evaluation.fit_seconds
    typer.echo(f"judged on problems it had not seen, {sum(seconds) / len(seconds):.0f} s a fit")


def _as_json(trained: Trained) -> dict[str, object]:
    evaluation = trained.outcome.evaluation
    return {
        "model": str(trained.path),
        "sha256": trained.card.sha256,
        "hardware": [device.name for device in trained.card.hardware],
        "data": trained.card.data,
        "fit_seconds": trained.outcome.seconds,
        "fold_seconds": list(evaluation.fit_seconds) if evaluation else [],
        "evaluation": evaluation.to_plain() if evaluation else None,
    }


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run ``diode-train`` and exit with its status."""
    run(app, args, name="diode-train")
