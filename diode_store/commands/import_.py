"""Add measurements from files; bad lines are reported, and good lines are kept."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_json, print_note, progress
from diode_store.command_line.render import counted, unknown_op_line
from diode_store.commands.context_options import (
    DatasetOption,
    EnvironmentOption,
    LicenceOption,
    MeasuredAtOption,
    SearchSpaceOption,
    StatedB,
    StatedDtype,
    StatedK,
    StatedLayout,
    StatedM,
    StatedN,
    StatedOp,
    StatedTemplate,
    import_context,
)
from diode_store.errors import HardwareError, ImportFileError
from diode_store.exchange.bounds import MAX_BAD_LINES, MAX_IMPORT_BYTES
from diode_store.exchange.context import NO_HARDWARE
from diode_store.exchange.formats import ImportFormat
from diode_store.system.memory import memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.exchange.importing import ImportReport
    from diode_store.records import Hardware
    from diode_store.warehouse.store import Store

app = make_app(__doc__)

_BAD_LINES_SHOWN = 50
_DOUBTS_SHOWN = 3


_HardwareOption = Annotated[
    str | None,
    typer.Option("--hardware", metavar="NAME", help="The measured device, if the file does not name it."),
]
_HardwareFileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help='The device as JSON, if it is unknown: {"vendor", "name", "arch", …}.'),
]


@app.command("import", epilog='Example: diode import --hardware "NVIDIA H200" --measured-at 2026-11-20 runs.jsonl.gz')
def import_(  # noqa: PLR0913 - one parameter per option
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files; gzip is understood, - is stdin.")],
    database: DatabaseOption,
    *,
    fmt: Annotated[ImportFormat, typer.Option("--format", help="The files' format.")] = ImportFormat.AUTO,
    hardware: _HardwareOption = None,
    hardware_file: _HardwareFileOption = None,
    environment: EnvironmentOption = None,
    measured_at: MeasuredAtOption = None,
    dataset: DatasetOption = None,
    licence: LicenceOption = None,
    search_space: SearchSpaceOption = None,
    op: StatedOp = None,
    b: StatedB = 1,
    m: StatedM = None,
    n: StatedN = None,
    k: StatedK = None,
    dtype: StatedDtype = None,
    layout: StatedLayout = "nn",
    template: StatedTemplate = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Add the measurements in FILE... to the warehouse. Importing a file twice adds nothing.

    docs/formats.md describes the formats. A T4 file of an auto-tuner does not name its problem: the t4 options do.
    """
    from diode_store.exchange.context import StatedProblem
    from diode_store.exchange.importing import import_files
    from diode_store.warehouse.store import Store

    if hardware is not None and hardware_file is not None:
        raise typer.BadParameter("--hardware and --hardware-file exclude each other")
    with _limited(), Store.open(database) as store, progress("importing measurements") as advance:
        device = _hardware(store, hardware, hardware_file)
        context = import_context(
            device, environment, measured_at, dataset=dataset, licence=licence, search_space=search_space
        )
        context = replace(context, problem=StatedProblem(op, m, n, k, dtype, b, layout, template))
        printer = _BadLines(quiet=as_json)
        report = import_files(
            store, files, context, fmt=fmt, dry_run=dry_run, on_bad=printer.print, on_progress=advance
        )
    _print(report, dry_run=dry_run, as_json=as_json)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Keep within the memory of an import, whatever a file unpacks to.

    Raises:
        ImportFileError: the import needs more.
    """
    try:
        with memory_limit(MAX_IMPORT_BYTES, room=MAX_IMPORT_BYTES // 2):
            yield
    except MemoryError:
        raise ImportFileError(
            f"an import takes at most {MAX_IMPORT_BYTES >> 20} MiB of memory, and an entry of the files needs more;"
            " split it; what came before it is in the warehouse"
        ) from None


class _BadLines:
    """Prints bad lines on stderr, but not so many that they flood the terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._count = 0

    def print(self, line: str) -> None:
        self._count += 1
        if self._count <= _BAD_LINES_SHOWN and not self._quiet:
            print_note(line)
        elif self._count == _BAD_LINES_SHOWN + 1 and not self._quiet:
            print_note(f"more bad lines follow; --json lists {MAX_BAD_LINES:,}")


def _hardware(store: Store, name: str | None, file: Path | None) -> Hardware | None:
    """Return the named device: from the warehouse, the known devices, or a file."""
    from diode_store.devices.known import ambiguous, describe, require_device, with_known_attributes
    from diode_store.exchange.descriptions import hardware_file
    from diode_store.warehouse.hardware import list_hardware, match

    if file is not None:
        return hardware_file(file)
    if name is None:
        return None
    with store.engine.connect() as connection:
        stored = list_hardware(connection)
    try:
        # Never guess a file's device: a name of several devices is an error, even if only one was measured.
        found = [row.hardware for row in match(stored, name, all_matches=True, measured_first=False)]
    except HardwareError:
        found = [require_device(name)]
    if len(found) > 1:
        raise ambiguous(name, found)
    print_note(f"hardware: {describe(found)}")
    return with_known_attributes(found[0])


def _print(report: ImportReport, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({**vars(report), "dry_run": dry_run})
    else:
        typer.echo(_summary(report, dry_run=dry_run))
        for doubt in report.doubts[:_DOUBTS_SHOWN]:
            print_note(f"implausible: {doubt}")
    for op, number in () if as_json else report.unknown_ops.items():
        print_note(unknown_op_line(op, number))
    if report.doubtful and not as_json:
        print_note(f"{counted(report.doubtful, 'implausible value')}: kept, but never ranked or learned from")
    if report.bad:
        kept = "" if dry_run or not report.measurements + report.duplicates else "; the good ones are in the warehouse"
        is_missing = any(NO_HARDWARE in line for line in report.bad)
        hint = " (rows without hardware need --hardware NAME)" if is_missing else ""
        raise ImportFileError(
            f"{counted(report.bad_count, 'bad line')}{hint}{kept}; correct the files and import again"
        )


def _summary(report: ImportReport, *, dry_run: bool) -> str:
    verb = "would be added" if dry_run else "added"
    if report.measurements:
        text = f"{counted(report.measurements, 'measurement')} with {counted(report.timings, 'timing')} {verb}"
        return text + (f"; {report.duplicates:,} were there already" if report.duplicates else "")
    if report.duplicates:
        if report.duplicates == 1:
            return "nothing new: the measurement was there already"
        return f"nothing new: all {report.duplicates:,} measurements were there already"
    return "nothing to add: there is no measurement in these files"
