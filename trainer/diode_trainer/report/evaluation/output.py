"""Files of a report: the page and a folder of its pictures. Each file is written whole or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_store.errors import ReportError
from diode_store.system.files import barrier_to, is_another, write_durably
from diode_trainer.report.drawing import BEGINNING, as_image, check_installed
from diode_trainer.report.evaluation.content import compose
from diode_trainer.report.evaluation.page import as_page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from diode_trainer.report.evaluation.content import Evidence
    from diode_trainer.report.parts import Picture

_MODE = 0o644


@dataclass(frozen=True)
class Destination:
    """Files that the user asked for; None for none."""

    page: Path | None
    pictures: Path | None
    """Folder for each picture, as PNG and as Vega-Lite JSON."""

    def __bool__(self) -> bool:
        """Return whether the user asked for any file."""
        return self.page is not None or self.pictures is not None

    def check(self) -> None:
        """Check that the report can be made and written, before any work.

        Raises:
            ReportError: packages are missing, or a path is not writable.
        """
        if not self:
            return
        check_installed()
        if self.page is not None and self.page.is_dir():
            raise ReportError(f"{self.page} is a folder; name the file, such as --report {self.page / 'report.html'}")
        if self.page is not None and is_another(self.page, BEGINNING):
            raise ReportError(f"{self.page} exists and is not a report; give another --report")
        if self.page is not None and self.page == self.pictures:
            raise ReportError(f"{self.page} cannot be both the page and the folder of its pictures; name two")
        for option, folder in (("--report", self.page and self.page.parent), ("--report-pictures", self.pictures)):
            if folder is not None and (barrier := barrier_to(folder)):
                raise ReportError(f"{barrier}, so the report cannot be written there; give another {option}")


def write_report(evidence: Evidence, to: Destination, on_step: Callable[[], None] = lambda: None) -> list[Path]:
    """Make a report, write the files, and return the paths of the page and of the folder.

    Args:
        evidence: contents of the report.
        to: files to write.
        on_step: called after each picture.

    Raises:
        ReportError: packages are missing, or a file cannot be written.
    """
    content = compose(evidence)
    written = {to.page: as_page(content).encode()} if to.page is not None else {}
    if to.pictures is not None:
        for picture in content.pictures:
            written |= _files(picture, to.pictures)
            on_step()
    try:
        for folder in {path.parent for path in written}:
            folder.mkdir(parents=True, exist_ok=True)
        write_durably(written, mode=_MODE)
    except OSError as error:
        raise ReportError(f"cannot write the report: {error.filename or ''}: {error.strerror or error}") from None
    return [path for path in (to.page, to.pictures) if path is not None]


def _files(picture: Picture, folder: Path) -> dict[Path, bytes]:
    spec = picture.draw([])
    text = json.dumps(spec, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return {
        folder / f"{picture.name}.png": as_image(spec),
        folder / f"{picture.name}.vl.json": text.encode(),
    }
