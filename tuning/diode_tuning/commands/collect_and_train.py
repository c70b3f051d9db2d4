"""Collect a training set and a validation set, train a model on the first, and evaluate it on the second."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from diode_store.command_line.console import make_app, print_note
from diode_store.command_line.options import takes_options, words_of
from diode_store.values.checks import INT64
from diode_trainer.commands import train_options

app = make_app(__doc__)

_DATASET, _MODEL = Path("matmul_dataset.jsonl"), Path("matmul_model.pt")
_VALIDATION_SHARE = 5
"""Training problems for each validation problem."""


@dataclass(frozen=True, kw_only=True)
class _Sweep:
    """Options of both sweeps, as in `diode-collect`; None keeps its default."""

    min_size: Annotated[int | None, typer.Option("--min-size", min=1, max=INT64, help="Smallest size drawn.")] = None
    max_size: Annotated[int | None, typer.Option("--max-size", min=1, max=INT64, help="Largest size drawn.")] = None
    power_of_two: Annotated[bool, typer.Option("--power-of-two", help="Draw only powers of two.")] = False
    no_rectangular: Annotated[bool, typer.Option("--no-rectangular", help="Draw only M = N = K.")] = False
    no_odd_sizes: Annotated[bool, typer.Option("--no-odd-sizes", help="Draw only even sizes.")] = False
    log_normal: Annotated[bool, typer.Option("--log-normal", help="Draw log-normal sizes.")] = False
    op: Annotated[list[str] | None, typer.Option("--op", metavar="OP", help="Only this op; can be repeated.")] = None
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", metavar="DTYPE", help="bf16, fp16, tf32 or fp32; can be repeated.")
    ] = None
    search_space: Annotated[
        str | None,
        typer.Option("--search-space", metavar="SPACE", help="DEFAULT, EXHAUSTIVE or SAMPLE:N, as in `diode-collect`."),
    ] = None
    search_mode: Annotated[str | None, typer.Option("--search-mode", help="Mode of torch.compile.")] = None
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda:N, or a comma list.")] = None


@app.command(epilog="Example: diode collect-and-train --num-shapes 300 --search-space SAMPLE:50 --log-normal")
@takes_options(_Sweep, "sweep")
@takes_options(train_options.RecipeOptions, "recipe")
def collect_and_train(  # noqa: PLR0913 - one parameter per option
    *,
    dataset: Annotated[
        Path, typer.Option("--dataset", help="Training set, .jsonl; .json and .msgpack hold Triton kernels only.")
    ] = _DATASET,
    validation: Annotated[
        Path | None,
        typer.Option(
            "--validation-dataset", help="Validation set.", show_default="beside the training set, with -validation"
        ),
    ] = None,
    model: Annotated[Path, typer.Option("--model", "-o", help="Checkpoint to write.")] = _MODEL,
    num_shapes: Annotated[int, typer.Option("--num-shapes", min=1, max=1_000_000, help="Training problems.")] = 100,
    num_validation_shapes: Annotated[
        int | None,
        typer.Option(
            "--num-validation-shapes", min=1, max=1_000_000, help="Validation problems.", show_default="a fifth as many"
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 2, help="Seed of the drawn problems and of the fit.")
    ] = 42,
    sweep: _Sweep,
    model_type: train_options.ModelTypeOption = train_options.ModelType.DEEP,
    folds: train_options.FoldsOption = 0,
    recipe: train_options.RecipeOptions,
    skip_collection: Annotated[
        bool, typer.Option("--skip-collection", help="Use the training set that is there.")
    ] = False,
    skip_validation: Annotated[
        bool, typer.Option("--skip-validation", help="Collect and use no validation set.")
    ] = False,
    skip_training: Annotated[
        bool, typer.Option("--skip-training", help="Use the model that is there, if any.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the commands.")] = False,
) -> None:
    """Run `diode collect`, `diode collect create-validation`, `diode train` and `diode evaluate`, one after another.

    Each command is printed before it runs. After an interruption, run the same command again: the sweeps and the
    training go on where they stopped.
    """
    from diode_tuning.running import Commands

    if not dataset.name:
        raise typer.BadParameter(f"{dataset} is a folder; name a file in that folder", param_hint="'--dataset'")
    validation = validation or dataset.with_name(f"{dataset.stem}-validation{dataset.suffix}")
    judging = num_validation_shapes or max(num_shapes // _VALIDATION_SHARE, 1)
    drawn, fitted = _given(sweep), _given(recipe)
    training = {"--num-shapes": num_shapes, "--seed": seed, **drawn, "--output": dataset}
    others = {"--against": dataset, "--num-shapes": judging, "--seed": seed + 1, **drawn, "--output": validation}
    fit = {"--dataset": dataset, "--model": model, "--model-type": model_type.value, "--seed": seed, "--folds": folds}
    judged = {"--model": model, "--dataset": validation, "--top-n-worst": 5}
    there_is_a_model = not skip_training or model.exists()
    steps = [] if skip_collection else [["collect", *words_of(training)]]
    steps += [] if skip_validation else [["collect", "create-validation", *words_of(others)]]
    steps += [] if skip_training else [["train", *words_of({**fit, **fitted, "--force": True})]]
    steps += [["evaluate", *words_of(judged)]] if there_is_a_model and not skip_validation else []
    if not (there_is_a_model or skip_validation):
        print_note(f"{model}: no such model, so nothing is evaluated")
    for step in steps:
        print_note(f"$ diode {shlex.join(step)}")
        if not dry_run:
            Commands().run(*step)


def _given(options: Any) -> dict[str, Any]:
    """Return a command's options by name; several values become a comma list."""
    renamed = {"epochs": "num_epochs"}
    values = {renamed.get(field.name, field.name): getattr(options, field.name) for field in fields(options)}
    return {
        f"--{name.replace('_', '-')}": ",".join(value) if isinstance(value, list) else value
        for name, value in values.items()
    }
