"""Correct a model's predictions by measurements, in a small file that the hook reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_json, print_note, progress
from diode_store.command_line.render import counted
from diode_store.records import Source

if TYPE_CHECKING:
    from diode_trainer.corrections.corrections import Corrections
    from diode_trainer.data.measured import MeasuredData

app = make_app(__doc__)

_OutputOption = Annotated[Path, typer.Option("--output", "-o", help="File to write; replaces earlier corrections.")]
_SourceOption = Annotated[
    Source | None, typer.Option(help="Only measurements of this source; feedback has timings from compiles.")
]


@app.command(no_args_is_help=True)
def corrections(
    database: DatabaseOption,
    hardware: Annotated[str, typer.Option("--hardware", help="Alias, name or beginning of a name.")],
    output: _OutputOption,
    model: Annotated[
        str | None, typer.Option(help="Model to correct: a checkpoint or a name.", show_default="the shipped model")
    ] = None,
    source: _SourceOption = None,
    *,
    all_matches: Annotated[bool, typer.Option("--all-matches", help="Accept hardware of several kinds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a model's errors on measured problems, shrunk towards 0 where there are few measurements.

    Example: diode corrections --hardware h200 --source feedback -o corrections.json
    """
    from diode_store.devices.known import describe
    from diode_trainer import artifact
    from diode_trainer.catalogue import find_model
    from diode_trainer.corrections.correcting import make_corrections
    from diode_trainer.corrections.corrections import check_replaceable
    from diode_trainer.data.measured import load_measured

    check_replaceable(output)
    corrected = artifact.load_shipped() if model is None else artifact.load(find_model(model))
    with progress("reading the warehouse"):
        measured = load_measured(database, hardware, source=source, all_matches=all_matches)
    print_note(f"hardware: {describe(measured.matched)}")
    with progress("correcting, problems", total=len(measured.problems)) as advance:
        made = make_corrections(corrected, measured.problems, lambda: advance(1))
    made.write(output)
    if as_json:
        print_json(_as_json(made, measured, output))
        return
    _print(made, measured, output)


def _print(made: Corrections, measured: MeasuredData, output: Path) -> None:
    from diode_trainer.data.measured import LAUNCH_MATTERS_US

    if measured.too_short:
        timings = counted(measured.too_short, "timing")
        print_note(f"left out {timings} under {LAUNCH_MATTERS_US:g} us that may include the launch")
    typer.echo(
        f"corrected {made.model_name} on {counted(len(made.problems), 'problem')}, {counted(made.configs, 'config')}"
    )
    typer.echo(f"file   {output}")
    typer.echo(f"use it: DIODE_CORRECTIONS={output}, or corrections={str(output)!r} of the hook")


def _as_json(made: Corrections, measured: MeasuredData, output: Path) -> dict[str, object]:
    return {
        "file": str(output),
        "model": made.model_name,
        "sha256": made.model_sha256,
        "problems": len(made.problems),
        "configs": made.configs,
        "too_short": measured.too_short,
    }
