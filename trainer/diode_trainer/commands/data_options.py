"""Options for the measurements that a command learns from or judges by: of a warehouse, a folder or files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import print_note, progress
from diode_store.command_line.options import takes_several
from diode_store.records import REGIME_NAMES
from diode_trainer.data.from_files import DEFAULT_EXTENSIONS, EXTENSIONS, Files

if TYPE_CHECKING:
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.data.from_warehouse import ExampleFilter
    from diode_trainer.data.sources import LoadedData


def wait_without_spinning() -> None:
    """Let waiting threads sleep, unless the user chose otherwise; spinning slows a busy machine down."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


TakesSeveralFiles = takes_several("--dataset", "--file-extensions")
"""Command class for commands with ``DataOptions``."""


_Dataset = Annotated[
    list[Path] | None,
    typer.Option(
        "--dataset", metavar="FILE...", help="Read these files instead of a warehouse, in any format of `diode import`."
    ),
]
_DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="FOLDER", help="Read the files below this folder instead of a warehouse."),
]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Source of the measurements, and filters for them."""

    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            "--hardware-name",
            metavar="NAME[,NAME]",
            help="Alias, name or beginning of a name. A list combines devices, such as h100,h200.",
        ),
    ] = None
    dataset: _Dataset = None
    data_dir: _DataDir = None
    file_extensions: Annotated[
        list[str] | None,
        typer.Option(
            "--file-extensions",
            metavar="NAME...",
            help=f"Extensions of the files in --data-dir: {', '.join(EXTENSIONS)}.",
            show_default=" ".join(DEFAULT_EXTENSIONS),
        ),
    ] = None
    op: Annotated[str | None, typer.Option("--op", "--op-name", help="Only this op, such as mm.")] = None
    dtype: Annotated[str | None, typer.Option("--dtype", help="Only this dtype, such as bf16 or tf32.")] = None
    regime: Annotated[
        str | None,
        typer.Option(
            "--regime",
            metavar="NAME",
            help=f"Only timings in this regime: {', '.join(REGIME_NAMES)}, or all. deployed is graph and read_flush.",
            show_default="all; for files, the one nearest to deployment for each problem",
        ),
    ] = None
    all_matches: Annotated[bool, typer.Option("--all-matches", help="Accept hardware of several kinds.")] = False

    @property
    def are_of_files(self) -> bool:
        """True if the data comes from files, not from the warehouse."""
        return bool(self.dataset) or self.data_dir is not None

    def check(self) -> None:
        """Check that the options name one source of data.

        Raises:
            BadParameter: they name no source, or two, or an option does not apply to the source.
        """
        if self.dataset and self.data_dir is not None:
            raise typer.BadParameter("give files or a folder, not both", param_hint="--dataset or --data-dir")
        if not self.are_of_files and self.hardware is None:
            raise typer.BadParameter("name a source of data", param_hint="--hardware or --dataset or --data-dir")
        if self.file_extensions and self.data_dir is None:
            raise typer.BadParameter("applies to --data-dir only", param_hint="--file-extensions")
        self._extensions()

    def described(self) -> str:
        """Return a short description of the source."""
        if self.data_dir is not None:
            return str(self.data_dir)
        return Files.named(self.dataset).where if self.dataset else "the warehouse"

    def devices(self, database: str) -> list[str]:
        """Return the names of the devices; nothing if that requires reading the data."""
        from diode_trainer.data.sources import device_names

        return [] if self.are_of_files else device_names(database, self._wanted())

    def _wanted(self) -> ExampleFilter:
        from diode_trainer.data.from_warehouse import ExampleFilter

        return ExampleFilter(self.hardware, self.op, self.dtype, self.all_matches, self.regime)

    def load(self, database: str, *, is_typed: bool = False) -> ExampleSet:
        """Read the data, and describe it on stderr.

        If the warehouse does not exist or is empty, this reads the bundled measurements instead.

        Args:
            database: warehouse.
            is_typed: True if the command line names the warehouse, which then must exist.

        Raises:
            DiodeError: the data cannot be read, or does not exist.
        """
        from diode_store.errors import NoMeasurementsError, NoWarehouseError
        from diode_trainer.data.sources import load, load_files

        wanted = self._wanted()
        if self.are_of_files:
            files = self._files()
            with progress("reading files", total=len(files.paths)) as advance:
                found = load_files(files, wanted, lambda: advance(1))
        else:
            try:
                with progress("reading the warehouse"):
                    found = load(database, wanted)
            except (NoMeasurementsError, NoWarehouseError) as error:
                if is_typed and isinstance(error, NoWarehouseError):
                    raise
                found = _bundled(wanted, str(error).partition(";")[0])
        for line in found.notes:
            print_note(line)
        return found.dataset

    def _files(self) -> Files:
        if self.data_dir is not None:
            return Files.in_folder(self.data_dir, self._extensions())
        return Files.named(self.dataset or [])

    def _extensions(self) -> list[str]:
        """Return the requested extensions in lower case and without dots; commas separate them too."""
        given = ",".join(self.file_extensions or DEFAULT_EXTENSIONS).lower().split(",")
        names = [name.strip().removeprefix(".") for name in given]
        unknown = [name for name in names if name not in EXTENSIONS]
        if unknown:
            raise typer.BadParameter(
                f"unknown: {', '.join(map(repr, unknown))}; known: {', '.join(EXTENSIONS)} (.gz may follow in a name)",
                param_hint="--file-extensions",
            )
        return names


def _bundled(wanted: ExampleFilter, why: str) -> LoadedData:
    """Return the bundled measurements in place of a warehouse's, and print a note."""
    from diode_trainer.data.sources import BUNDLED, load_bundled

    print_note(f"{why}, so this uses {BUNDLED}")
    with progress(f"reading files of {BUNDLED}") as advance:
        return load_bundled(wanted, lambda: advance(1))
