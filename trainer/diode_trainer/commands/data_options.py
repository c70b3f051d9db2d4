"""Which measurements a command learns from, or judges by: the warehouse's, a folder's, or those of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.console import print_note, progress
from diode_store.options import takes_several
from diode_trainer.data.from_files import DEFAULT_EXTENSIONS, EXTENSIONS, Files

if TYPE_CHECKING:
    from diode_trainer.data.dataset import ExampleSet

TakesSeveralFiles = takes_several("--dataset", "--file-extensions")
"""The class of a command with ``DataOptions``."""


_Dataset = Annotated[
    list[Path] | None,
    typer.Option(
        "--dataset", metavar="FILE...", help="These files, of any format of `diode import`, and no warehouse."
    ),
]
_DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="FOLDER", help="The files of this folder and of those in it, and no warehouse."),
]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where measurements come from, and which of them count."""

    hardware: Annotated[
        str | None, typer.Option("--hardware", "--hardware-name", help="Alias, name or beginning of a name.")
    ] = None
    dataset: _Dataset = None
    data_dir: _DataDir = None
    file_extensions: Annotated[
        list[str] | None,
        typer.Option(
            "--file-extensions",
            metavar="NAME...",
            help=f"Which files of --data-dir: {', '.join(EXTENSIONS)}.",
            show_default=" ".join(DEFAULT_EXTENSIONS),
        ),
    ] = None
    op: Annotated[str | None, typer.Option("--op", "--op-name", help="Only this op, such as mm.")] = None
    dtype: Annotated[str | None, typer.Option("--dtype", help="Only this dtype, such as bf16 or tf32.")] = None
    regime: Annotated[
        str | None,
        typer.Option(
            "--regime",
            help="Of files: only timings taken so (graph, read_flush, write_flush, unknown), or all of them.",
            show_default="files must agree",
        ),
    ] = None
    all_matches: Annotated[bool, typer.Option("--all-matches", help="Accept hardware of several kinds.")] = False

    @property
    def are_of_files(self) -> bool:
        """Whether the warehouse is not asked."""
        return bool(self.dataset) or self.data_dir is not None

    def check(self) -> None:
        """Check that they name one source of data.

        Raises:
            BadParameter: they name none, or two; or an option is not for that source.
        """
        if self.dataset and self.data_dir is not None:
            raise typer.BadParameter("give files or a folder, not both", param_hint="--dataset or --data-dir")
        if not self.are_of_files and self.hardware is None:
            raise typer.BadParameter("name the data", param_hint="--hardware or --dataset or --data-dir")
        if not self.are_of_files and self.regime is not None:
            raise typer.BadParameter("it is for --dataset and --data-dir", param_hint="--regime")
        if self.file_extensions and self.data_dir is None:
            raise typer.BadParameter("it is for --data-dir", param_hint="--file-extensions")
        self._extensions()

    def described(self) -> str:
        """Return where the data comes from, in a few words."""
        if self.data_dir is not None:
            return str(self.data_dir)
        return Files.named(self.dataset).where if self.dataset else "the warehouse"

    def load(self, database: str) -> ExampleSet:
        """Read the data and describe it on stderr.

        Raises:
            DiodeError: it cannot be read, or there is none.
        """
        from diode_trainer.data.from_warehouse import ExampleFilter
        from diode_trainer.data.sources import load, load_files

        wanted = ExampleFilter(self.hardware, self.op, self.dtype, self.all_matches)
        if self.are_of_files:
            files = self._files()
            with progress("reading, files", total=len(files.paths)) as advance:
                found = load_files(files, wanted, self.regime, lambda: advance(1))
        else:
            found = load(database, wanted)
        for line in found.notes:
            print_note(line)
        return found.dataset

    def _files(self) -> Files:
        if self.data_dir is not None:
            return Files.in_folder(self.data_dir, self._extensions())
        return Files.named(self.dataset or [])

    def _extensions(self) -> list[str]:
        """Return what was asked for, in lower case and without dots; a comma separates, too."""
        given = ",".join(self.file_extensions or DEFAULT_EXTENSIONS).lower().split(",")
        names = [name.strip().removeprefix(".") for name in given]
        unknown = [name for name in names if name not in EXTENSIONS]
        if unknown:
            raise typer.BadParameter(
                f"unknown: {', '.join(map(repr, unknown))}; known: {', '.join(EXTENSIONS)} (.gz may follow in a name)",
                param_hint="--file-extensions",
            )
        return names
