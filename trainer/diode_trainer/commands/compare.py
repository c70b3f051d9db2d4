"""Compare a model's choices with those of max-autotune, op by op."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_store.command_line.console import (
    DatabaseOption,
    JsonOption,
    is_on_command_line,
    make_app,
    print_json,
    print_note,
    print_rows,
    progress,
)
from diode_store.command_line.options import takes_options
from diode_store.command_line.render import counted
from diode_trainer.commands.data_options import DataOptions, TakesSeveralFiles, wait_without_spinning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_trainer.judging.autotune_comparison import Comparison

app = make_app(__doc__)

REPORT_NAME = "model_performance_analysis_by_op.json"
_HEADER = ("op", "tried", "problems", "better", "equal", "worse", "geomean", "mean", "median", "lowest", "time saved")
_BEGINNING = b'{\n  "per_op"'
_SHOWN = (1, 5, 10)
"""Numbers of tried choices in the table; the file has all."""

_SolutionOption = Annotated[
    Path,
    typer.Option(
        metavar="FILE", help="Kernels that max-autotune chose, from `diode export --format max-autotune-solution`."
    ),
]
_OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="File for all figures.", show_default=f"{REPORT_NAME}; none with --json"
    ),
]


@app.command(no_args_is_help=True, cls=TakesSeveralFiles)
@takes_options(DataOptions, "data")
def compare(
    context: typer.Context,
    database: DatabaseOption,
    model: Annotated[str, typer.Option(help="Checkpoint, or name of a model (`diode models list`).")],
    max_autotune_solution: _SolutionOption,
    data: DataOptions,
    output: _OutputOption = None,
    *,
    no_vendor: Annotated[bool, typer.Option("--no-vendor", help="Count Triton choices only, for both sides.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the kernels that a model would choose with max-autotune's choice, and write all figures.

    Example: diode compare --model v4_model --dataset validation.msgpack --max-autotune-solution solution.json
    """
    data.check()
    wait_without_spinning()
    path = output or (None if as_json else Path(REPORT_NAME))
    if path is not None:
        _check_replaceable(path)
    from diode_store.exchange.foreign.max_autotune_solution import read_solution
    from diode_trainer.artifact import load as load_model
    from diode_trainer.catalogue import find_model
    from diode_trainer.judging.autotune_comparison import analysis, compare_with_autotune
    from diode_trainer.judging.rankable import rankable

    solution = read_solution(str(max_autotune_solution))
    judged = load_model(find_model(model))
    dataset, note = rankable(judged, data.load(database, is_typed=is_on_command_line(context, "database")))
    if note is not None:
        print_note(note)
    seen = sum(judged.was_trained_on(example.shape) for example in dataset)
    if seen:
        print_note(
            f"note: it was trained on {seen:,} of these {counted(len(dataset), 'problem')}, so the figures flatter it"
        )
    with progress("comparing"):
        found = compare_with_autotune(judged, dataset, solution, vendor=not no_vendor)
    figures = {**analysis(found), "metadata": _metadata(judged.path, max_autotune_solution, data, found, no_vendor)}
    if (origin := dataset.lineage.get("origin")) is not None:
        figures["metadata"]["validation_dataset_path"] = origin
    if path is not None:
        _write(path, figures)
    if as_json:
        print_json(figures)
        return
    print_rows(_HEADER, list(_rows(figures)), title=counted(len(found.problems), "problem"))
    for line in _left_out(found):
        print_note(line)
    typer.echo(f"all figures: {path}")


def _check_replaceable(path: Path) -> None:
    """Refuse to replace a file that is not an earlier comparison, such as the solution."""
    from diode_store.errors import ExportError
    from diode_store.system.files import is_another

    if is_another(path, _BEGINNING):
        raise ExportError(f"{path} exists and holds no comparison, so it was not replaced; give another --output")


def _metadata(
    model: Path,
    solution: Path,
    data: DataOptions,
    found: Comparison,
    no_vendor: bool,  # noqa: FBT001 - a switch
) -> dict[str, Any]:
    """Return a description of the comparison, under upstream's names where it has one."""
    from datetime import UTC, datetime

    return {
        "model_path": str(model),
        "validation_dataset_path": data.described(),
        "max_autotune_solution_path": str(solution),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware_name": data.hardware or "all",
        "op_name_filter": data.op or "none",
        "batch_size": None,
        "device": "cpu",
        "ops_present": list(found.by_op()),
        "time_unit": "ms",
        "vendor_kernels_count": not no_vendor,
        "problems_not_in_solution": found.not_in_solution,
        "problems_not_ranked": found.not_ranked,
        "notes": "Each op by itself; overall is of all problems together. A ratio is max-autotune's time over the"
        " model's.",
    }


def _write(path: Path, figures: dict[str, Any]) -> None:
    import json

    from diode_store.exchange.exporting import new_file

    with new_file(path, force=True) as beside:
        beside.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _rows(figures: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    ops = dict(figures["per_op"])
    for op, by_n in {**ops, **({"all": figures["overall"]} if len(ops) > 1 else {})}.items():
        for n in _SHOWN:
            found = by_n[f"top_{n}"]
            breakdown, overall = found["performance_breakdown"], found["overall_metrics"]
            yield (
                op,
                n,
                found["shapes_analyzed"],
                *(f"{breakdown[f'model_{kind}']['percentage']:.0f}%" for kind in ("better", "equal", "worse")),
                *(f"{overall[f'{kind}_speedup_ratio']:.4f}" for kind in ("geomean", "avg", "median")),
                f"{overall['worst_case']:.3f}",
                f"{overall['total_time_saved_pct']:.2f}%",
            )


def _left_out(found: Comparison) -> Iterator[str]:
    if found.not_in_solution:
        yield f"left out {counted(found.not_in_solution, 'problem')}: no kernel of the solution was timed on them"
    if found.not_ranked:
        yield f"left out {counted(found.not_ranked, 'problem')}: fewer than two choices, or none that the model ranks"
