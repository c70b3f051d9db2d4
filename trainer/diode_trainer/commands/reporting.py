"""Options `--report` and `--history-picture` of `diode evaluate` and `diode-train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import print_note, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.report.evaluation.content import Evidence
    from diode_trainer.report.evaluation.output import Destination
    from diode_trainer.training.history import FitHistory

ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Write the evaluation as one HTML page, with pictures."),
]
PicturesOption = Annotated[
    Path | None,
    typer.Option(
        "--report-pictures", metavar="DIR", help="Write the pictures of the report, as PNG and as Vega-Lite JSON."
    ),
]


def destination(page: Path | None, pictures: Path | None) -> Destination:
    """Return the destination of a report, checked before any work is done.

    Raises:
        ReportError: the report cannot be made or written.
    """
    from diode_trainer.report.evaluation.output import Destination

    to = Destination(page, pictures)
    to.check()
    return to


def check_history_picture(path: Path) -> None:
    """Check that a training history can be drawn to ``path``, before any work is done.

    Raises:
        ReportError: the history cannot be drawn there.
    """
    from diode_trainer.report.evaluation import history_picture

    history_picture.check(path)


def draw_history(histories: Sequence[FitHistory], path: Path) -> None:
    """Draw a training history, and print its path."""
    from diode_trainer.report.evaluation import history_picture

    history_picture.draw(histories, path)
    print_note(f"picture: {path}")


def write(evidence: Evidence, to: Destination) -> None:
    """Write the requested parts of a report, and print their paths."""
    from diode_trainer.report.evaluation.output import write_report

    with progress("drawing pictures") as advance:
        paths = write_report(evidence, to, lambda: advance(1))
    for path in paths:
        print_note(f"report: {path}")
