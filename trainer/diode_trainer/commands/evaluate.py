"""Evaluate a model on measured problems: how much slower its choices are than the best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from diode_store.errors import SettingsError
from diode_trainer.commands import reporting
from diode_trainer.commands.data_options import DataOptions, TakesSeveralFiles, wait_without_spinning
from diode_trainer.commands.evaluate_options import JudgingOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.judging.assess import Assessment
    from diode_trainer.policy import Policy

app = make_app(__doc__)


@app.command(no_args_is_help=True, cls=TakesSeveralFiles)
@takes_options(DataOptions, "data")
@takes_options(JudgingOptions)
def evaluate(
    context: typer.Context,
    database: DatabaseOption,
    model: Annotated[str, typer.Option(help="Checkpoint, or name of a model (`diode models list`).")],
    data: DataOptions,
    options: JudgingOptions,
    *,
    report: reporting.ReportOption = None,
    report_pictures: reporting.PicturesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rank the choices of measured problems with a model, and show the regret beside simpler rankings.

    Example: diode evaluate --model v4_model --hardware "NVIDIA H200" --unseen
    """
    data.check()
    wait_without_spinning()
    policy = options.policy()
    to = reporting.destination(report, report_pictures)
    if to and policy:
        raise SettingsError("a report shows rankings: drop --mode or --report")
    from diode_trainer.artifact import load as load_model
    from diode_trainer.catalogue import find_model
    from diode_trainer.judging.rankable import rankable
    from diode_trainer.judging.slices import check_slices

    check_slices(options.by or ())
    judged = load_model(find_model(model))
    dataset, note = rankable(judged, data.load(database, is_typed=is_on_command_line(context, "database")))
    if note is not None:
        print_note(note)
    if policy is not None:
        _replay(judged, dataset, policy, options, as_json=as_json)
        return
    assessment = _assess(judged, dataset, options)
    if to:
        from diode_trainer.commands.evidence import of_assessment
        from diode_trainer.commands.tables import cautions

        notes = tuple(cautions(assessment))
        evidence = of_assessment(assessment, judged, dataset, vendor=not options.no_vendor, notes=notes)
        reporting.write(evidence, to)
    if as_json:
        print_json(assessment.to_plain())
    else:
        _print(assessment, judged.path.stem, options.by or ())


def _replay(model: TimingModel, dataset: ExampleSet, policy: Policy, options: JudgingOptions, *, as_json: bool) -> None:
    from diode_trainer.commands import replay_tables
    from diode_trainer.judging.replay import replay_model

    families = options.family or ()
    with progress("replaying, problems", total=len(dataset)) as advance:
        replayed = replay_model(
            model, dataset, policy, unseen=options.unseen, families=families, on_problem=lambda: advance(1)
        )
    if as_json:
        print_json(replay_tables.to_plain(replayed, model, policy))
    else:
        replay_tables.print_tables(replayed, model, policy)


def _assess(model: TimingModel, dataset: ExampleSet, options: JudgingOptions) -> Assessment:
    from diode_trainer.judging.assess import ASSESSING_STEPS, assess

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
        cautions,
        device_rows,
        error_rows,
        left_out,
        part_rows,
        rows,
        worst_rows,
    )
    from diode_trainer.judging.slices import slices

    for note in cautions(assessment):
        print_note(f"note: {note}")
    print_rows(HEADER, rows(assessment.standing, name), title=counted(assessment.problems, "problem"))
    print_rows(ERRORS_HEADER, error_rows(assessment.standing, name))
    for line in left_out(assessment.standing):
        print_note(line)
    if "device" not in by and (devices := device_rows(assessment.standing)):
        print_rows(("device", *PARTS_HEADER), devices, title="By device")
    for slice_by, parts in slices(assessment.standing.judgements, by).items():
        print_rows((slice_by, *PARTS_HEADER), part_rows(parts), title=f"By {slice_by}")
    if assessment.worst:
        print_rows(WORST_HEADER, worst_rows(assessment.worst), title="Costliest choices")
