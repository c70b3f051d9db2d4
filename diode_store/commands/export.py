"""Write measurements to a file, for another warehouse or another program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.commands.exporters import Exported, LookupTableOptions, Request
from diode_store.console import DatabaseOption, JsonOption, make_app, print_json, print_note, progress
from diode_store.exchange.formats import SUFFIXES, ExportFormat, InductorSpace, format_named

if TYPE_CHECKING:
    from diode_store.warehouse.hardware import StoredHardware
    from diode_store.warehouse.store import Store

app = make_app(__doc__)

_STDOUT = Path("-")
_LUT = "inductor-lut: "
_SOLUTION = "max-autotune-solution: "


@app.command(epilog='Example: diode export --format jsonl --hardware "NVIDIA H200" -o h200.jsonl.gz')
def export(  # noqa: PLR0913 - one parameter an option
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to make; .gz compresses, - is stdout.")
    ],
    database: DatabaseOption,
    *,
    fmt: Annotated[
        ExportFormat | None,
        typer.Option("--format", help="The format; see docs/formats.md.", show_default="by the suffix of FILE"),
    ] = None,
    hardware: Annotated[str | None, typer.Option(metavar="NAME", help="Only measurements on this hardware.")] = None,
    all_matches: Annotated[
        bool, typer.Option("--all-matches", help="Accept a NAME that matches different devices.")
    ] = False,
    op: Annotated[str | None, typer.Option(metavar="OP", help="Only this op, such as mm.")] = None,
    torch: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help=f"{_LUT}of the reader.", show_default="as it was measured"),
    ] = None,
    environment_id: Annotated[
        int | None,
        typer.Option(metavar="ID", help=f"{_LUT}where it was measured.", show_default="if there is one"),
    ] = None,
    top: Annotated[
        int | None, typer.Option(metavar="K", min=1, help=f"{_LUT}at most so many kernels of a tie.", show_default="1")
    ] = None,
    device_key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help=f'{_LUT}the device in its keys; "" for any.', show_default="its name"),
    ] = None,
    search_space: Annotated[
        InductorSpace | None,
        typer.Option(help=f"{_SOLUTION}what max-autotune chose among.", show_default=InductorSpace.DEFAULT.value),
    ] = None,
    tf32: Annotated[bool, typer.Option("--tf32", help=f"{_LUT}float32 as timed with TF32 allowed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write measurements to FILE, which appears whole or not at all."""
    from diode_store.warehouse.store import Store

    fmt = fmt or _format_of(output)
    _check_usage(output, fmt, as_json=as_json)
    table = LookupTableOptions(torch, environment_id, top or 1, device_key, tf32)
    if fmt is not ExportFormat.INDUCTOR_LUT and (table != LookupTableOptions() or top is not None):
        raise typer.BadParameter(
            "--torch, --environment-id, --top, --device-key and --tf32 are for --format inductor-lut"
        )
    if fmt is not ExportFormat.MAX_AUTOTUNE_SOLUTION and search_space is not None:
        raise typer.BadParameter("--search-space is for --format max-autotune-solution")
    space = search_space or InductorSpace.DEFAULT
    with Store.open(database) as store, progress("exporting") as advance:
        devices = _hardware(store, hardware, all_matches=all_matches)
        request = Request(database, store, fmt, output.name, devices, op, advance, table, space, print_note)
        written = _write(request, output, force=force)
    _print(written, output, as_json=as_json)


def _format_of(output: Path) -> ExportFormat:
    named = "jsonl" if output == _STDOUT else format_named(output.name)
    if named is None:
        raise typer.BadParameter(
            f"the name {output.name!r} has no known suffix; end it in {', '.join(SUFFIXES)} (.gz may follow), "
            "or give --format"
        )
    return ExportFormat(named)


def _check_usage(output: Path, fmt: ExportFormat, *, as_json: bool) -> None:
    if output == _STDOUT and (fmt is ExportFormat.PARQUET or as_json):
        raise typer.BadParameter("neither --format parquet nor --json goes with stdout; name a file")
    if fmt is ExportFormat.PARQUET and output.suffix.lower() == ".gz":
        raise typer.BadParameter("Parquet is compressed inside; leave out .gz")


def _hardware(store: Store, name: str | None, *, all_matches: bool) -> list[StoredHardware] | None:
    from diode_store.warehouse.hardware import describe, match

    if name is None:
        return None
    with store.engine.connect() as connection:
        found = match(connection, name, all_matches=all_matches)
    print_note(f"hardware: {describe(found)}")
    return found


def _write(request: Request, output: Path, *, force: bool) -> Exported:
    from diode_store.commands.exporters import nothing_to_export, write_parquet, write_stream
    from diode_store.exchange.exporting import new_file, open_for_lines

    if output == _STDOUT:
        return write_stream(request, sys.stdout.buffer)
    with new_file(output, force=force) as beside:
        if request.fmt is ExportFormat.PARQUET:
            written = write_parquet(request, beside)
        else:
            with open_for_lines(beside, output.name) as stream:
                written = write_stream(request, stream)
        if not written.count:
            raise nothing_to_export(request.store)
    return written


def _print(written: Exported, output: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(output), **written.report()})
        return
    for line in written.not_held:
        print_note(line)
    if output != _STDOUT:
        typer.echo(f"{output}: {written}")
