"""A model's training history as a PNG or SVG picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.errors import ReportError
from diode_store.system.files import barrier_to, write_durably
from diode_trainer.report.drawing import as_image, as_vector, check_installed
from diode_trainer.report.evaluation.pictures import learning_curve
from diode_trainer.report.evaluation.rows import loss_points

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_trainer.training.history import FitHistory

_DRAW = {".png": as_image, ".svg": as_vector}


def check(path: Path) -> None:
    """Check that a picture can be drawn to ``path``, before any work.

    Raises:
        ReportError: the path is neither PNG nor SVG, packages are missing, or the path is not writable.
    """
    if path.suffix.lower() not in _DRAW:
        raise ReportError(f"{path}: a picture ends in {' or '.join(_DRAW)}")
    check_installed()
    if barrier := barrier_to(path.parent):
        raise ReportError(f"{barrier}, so no picture can be written there; name another file")


def draw(histories: Sequence[FitHistory], path: Path) -> None:
    """Draw the losses of each fit after each epoch.

    Raises:
        ReportError: as ``check`` says.
    """
    check(path)
    rows = loss_points((history.fit, history.epochs) for history in histories)
    picture = _DRAW[path.suffix.lower()](learning_curve(rows))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably({path: picture}, mode=0o644)
    except OSError as error:
        raise ReportError(f"{path}: cannot write the picture ({error.strerror or error})") from None
