"""`--report` of `diode evaluate` and `diode-train`: its options, and what both do with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.console import print_note, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.report.content import Evidence
    from diode_trainer.report.output import Destination
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
    """Return where the report goes, checked before any work is done for it.

    Raises:
        ReportError: it cannot be made or written.
    """
    from diode_trainer.report.output import Destination

    to = Destination(page, pictures)
    to.check()
    return to


def check_history_picture(path: Path) -> None:
    """Check that a training history can be drawn to ``path``, before any work is done for it.

    Raises:
        ReportError: it cannot.
    """
    from diode_trainer.report import history_picture

    history_picture.check(path)


def draw_history(histories: Sequence[FitHistory], path: Path) -> None:
    """Draw a training history, and say where it is."""
    from diode_trainer.report import history_picture

    history_picture.draw(histories, path)
    print_note(f"picture: {path}")


def write(evidence: Evidence, to: Destination) -> None:
    """Write what was asked for, and say where it is."""
    from diode_trainer.report.output import write_report

    with progress("drawing pictures") as advance:
        paths = write_report(evidence, to, lambda: advance(1))
    for path in paths:
        print_note(f"report: {path}")
