"""Evaluate a model on measured problems: how much slower its choices are than the best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.console import DatabaseOption, JsonOption, make_app, print_json, print_note, print_rows
from diode_store.options import takes_options
from diode_store.render import counted
from diode_trainer.commands.data_options import DataOptions, TakesSeveralFiles

if TYPE_CHECKING:
    from diode_trainer.assess import Assessment

app = make_app(__doc__)


@app.command(no_args_is_help=True, cls=TakesSeveralFiles)
@takes_options(DataOptions, "data")
def evaluate(
    database: DatabaseOption,
    model: Annotated[str, typer.Option(help="A checkpoint, or a model's name (`diode models list`).")],
    data: DataOptions,
    top_n_worst: Annotated[int, typer.Option(min=0, help="List this many of the costliest choices.")] = 0,
    *,
    no_vendor: Annotated[bool, typer.Option("--no-vendor", help="Count Triton choices only.")] = False,
    unseen: Annotated[bool, typer.Option("--unseen", help="Leave out problems that the model was trained on.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Rank measured problems' choices with a model and show the regret beside simpler rankings.

    Example: diode evaluate --model v2_model --hardware "NVIDIA H200" --unseen
    """
    data.check()
    from diode_trainer.artifact import load as load_model
    from diode_trainer.assess import assess
    from diode_trainer.catalogue import find_model
    from diode_trainer.rankable import rankable

    judged = load_model(find_model(model))
    dataset, note = rankable(judged, data.load(database))
    if note is not None:
        print_note(note)
    assessment = assess(judged, dataset, vendor=not no_vendor, worst=top_n_worst, unseen=unseen)
    if as_json:
        print_json(assessment.to_plain())
    else:
        _print(assessment, judged.path.stem)


def _print(assessment: Assessment, name: str) -> None:
    from diode_trainer.commands.tables import HEADER, WORST_HEADER, left_out, rows, worst_rows

    if assessment.seen:
        problems = counted(assessment.problems, "problem")
        remedy = (
            "give --dataset with other measurements"
            if assessment.seen == assessment.problems
            else "--unseen leaves them out"
        )
        print_note(f"note: it was trained on {assessment.seen} of these {problems}, so this flatters it; {remedy}")
    if assessment.outside:
        print_note(_outside(assessment))
    print_rows(HEADER, rows(assessment.standing, name), title=counted(assessment.problems, "problem"))
    for line in left_out(assessment.standing):
        print_note(line)
    if assessment.worst:
        print_rows(WORST_HEADER, worst_rows(assessment.worst), title="Costliest choices")


def _outside(assessment: Assessment) -> str:
    """Return how many problems the model was not made for, and why."""
    reasons = ", ".join(assessment.outside_reasons)
    problems = counted(assessment.problems, "problem")
    verb = "is" if assessment.outside == 1 else "are"
    return f"note: {assessment.outside} of {problems} {verb} outside what it was trained on ({reasons})"
