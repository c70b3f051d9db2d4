"""Evaluate a model on measured problems: how much slower its choices are than the best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.console import DatabaseOption, JsonOption, make_app, print_json, print_note, print_rows, progress
from diode_store.options import takes_options
from diode_store.render import counted
from diode_trainer.commands import reporting
from diode_trainer.commands.evaluate_options import JudgingOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diode_trainer.artifact import TimingModel
    from diode_trainer.assess import Assessment
    from diode_trainer.data.dataset import ExampleSet

app = make_app(__doc__)

_DatasetOption = Annotated[Path | None, typer.Option(help="Evaluate on this file (JSON Lines), not on the warehouse.")]


@app.command(no_args_is_help=True)
@takes_options(JudgingOptions)
def evaluate(  # noqa: PLR0913 - one parameter an option
    database: DatabaseOption,
    model: Annotated[str, typer.Option(help="A checkpoint, or a model's name (`diode models list`).")],
    hardware: Annotated[
        str | None, typer.Option("--hardware", "--hardware-name", help="Evaluate on the data of this device.")
    ] = None,
    dataset: _DatasetOption = None,
    op: Annotated[str | None, typer.Option("--op", "--op-name", help="Only this op, such as mm.")] = None,
    *,
    all_matches: Annotated[bool, typer.Option("--all-matches", help="Accept hardware of several kinds.")] = False,
    options: JudgingOptions,
    report: reporting.ReportOption = None,
    report_pictures: reporting.PicturesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rank measured problems' choices with a model and show the regret beside simpler rankings.

    Example: diode evaluate --model v2_model --hardware "NVIDIA H200" --unseen
    """
    if hardware is None and dataset is None:
        raise typer.BadParameter("name a device or a file to evaluate on", param_hint="--hardware or --dataset")
    to = reporting.destination(report, report_pictures)
    from diode_trainer.artifact import load as load_model
    from diode_trainer.catalogue import find_model
    from diode_trainer.data.from_warehouse import ExampleFilter
    from diode_trainer.data.sources import load
    from diode_trainer.slices import check_slices

    check_slices(options.by or ())
    judged = load_model(find_model(model))
    found = load(database, dataset, ExampleFilter(hardware, op, all_matches=all_matches))
    for note in found.notes:
        print_note(note)
    assessment = _assess(judged, found.dataset, options)
    if to:
        from diode_trainer.commands.evidence import of_assessment

        notes = tuple(_cautions(assessment))
        evidence = of_assessment(assessment, judged, found.dataset, vendor=not options.no_vendor, notes=notes)
        reporting.write(evidence, to)
    if as_json:
        print_json(assessment.to_plain())
    else:
        _print(assessment, judged.path.stem, options.by or ())


def _assess(model: TimingModel, dataset: ExampleSet, options: JudgingOptions) -> Assessment:
    from diode_trainer.assess import ASSESSING_STEPS, assess

    with progress("judging, steps", total=ASSESSING_STEPS) as advance:
        return assess(
            model,
            dataset,
            vendor=not options.no_vendor,
            worst=options.top_n_worst,
            unseen=options.unseen,
            families=options.family or (),
            on_step=lambda: advance(1),
        )


def _print(assessment: Assessment, name: str, by: Sequence[str]) -> None:
    from diode_trainer.commands.tables import (
        ERRORS_HEADER,
        HEADER,
        PARTS_HEADER,
        WORST_HEADER,
        error_rows,
        left_out,
        part_rows,
        rows,
        worst_rows,
    )
    from diode_trainer.slices import slices

    for note in _cautions(assessment):
        print_note(f"note: {note}")
    print_rows(HEADER, rows(assessment.standing, name), title=counted(assessment.problems, "problem"))
    print_rows(ERRORS_HEADER, error_rows(assessment.standing, name))
    for line in left_out(assessment.standing):
        print_note(line)
    for slice_by, parts in slices(assessment.standing.judgements, by).items():
        print_rows((slice_by, *PARTS_HEADER), part_rows(parts), title=f"By {slice_by}")
    if assessment.worst:
        print_rows(WORST_HEADER, worst_rows(assessment.worst), title="Costliest choices")


def _cautions(assessment: Assessment) -> Iterator[str]:
    """Yield what a reader of the figures must know."""
    problems = counted(assessment.problems, "problem")
    if assessment.seen:
        remedy = (
            "give --dataset with other measurements"
            if assessment.seen == assessment.problems
            else "--unseen leaves them out"
        )
        yield f"it was trained on {assessment.seen} of these {problems}, so this flatters it; {remedy}"
    if assessment.outside:
        reasons = ", ".join(assessment.outside_reasons)
        verb = "is" if assessment.outside == 1 else "are"
        yield f"{assessment.outside} of {problems} {verb} outside what it was trained on ({reasons})"
