"""Write measurements to a file, for another warehouse or another program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_json, print_note, progress
from diode_store.command_line.options import takes_options
from diode_store.commands.exporters import Exported, LookupTableOptions, Request
from diode_store.commands.query import (  # noqa: TC001 - Typer reads the annotations when it runs
    AllMatchesOption,
    ForceOption,
    OpOption,
)
from diode_store.exchange.formats import SUFFIXES, ExportFormat, InductorSpace, format_named

if TYPE_CHECKING:
    from diode_store.warehouse.hardware import StoredHardware
    from diode_store.warehouse.store import Store

app = make_app(__doc__)

_STDOUT = Path("-")


@app.command(epilog='Example: diode export --format jsonl --hardware "NVIDIA H200" -o h200.jsonl.gz')
@takes_options(LookupTableOptions, "lookup_table")
def export(  # noqa: PLR0913 - one parameter per option
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write; .gz compresses, - is stdout.")
    ],
    database: DatabaseOption,
    *,
    fmt: Annotated[
        ExportFormat | None,
        typer.Option("--format", help="The format; see docs/formats.md.", show_default="by the suffix of FILE"),
    ] = None,
    hardware: Annotated[str | None, typer.Option(metavar="NAME", help="Only measurements on this hardware.")] = None,
    all_matches: AllMatchesOption = False,
    op: OpOption = None,
    lookup_table: LookupTableOptions,
    search_space: Annotated[
        InductorSpace | None,
        typer.Option(
            help="max-autotune-solution: list of kernels to choose from.",
            show_default=InductorSpace.DEFAULT.value,
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write measurements to FILE, which appears whole or not at all."""
    from diode_store.warehouse.store import Store

    fmt = fmt or _format_of(output)
    _check_usage(output, fmt, as_json=as_json)
    _check_options(fmt, lookup_table, search_space)
    space = search_space or InductorSpace.DEFAULT
    with Store.open(database) as store, progress("exporting") as advance:
        devices = _hardware(store, hardware, all_matches=all_matches)
        request = Request(database, store, fmt, output.name, devices, op, advance, lookup_table, space, print_note)
        written = _write(request, output, force=force)
    _print(written, output, as_json=as_json)


def _format_of(output: Path) -> ExportFormat:
    named = "jsonl" if output == _STDOUT else format_named(output.name)
    if named is None:
        name = output.name or str(output)
        raise typer.BadParameter(
            f"the name {name!r} has no known suffix; end it in {', '.join(SUFFIXES)} (.gz may follow), or give"
            " --format",
            param_hint="--output",
        )
    return ExportFormat(named)


def _check_usage(output: Path, fmt: ExportFormat, *, as_json: bool) -> None:
    if output == _STDOUT and (fmt is ExportFormat.PARQUET or as_json):
        raise typer.BadParameter("--format parquet and --json cannot write to stdout; name a file")
    if fmt is ExportFormat.PARQUET and output.suffix.lower() == ".gz":
        raise typer.BadParameter("Parquet is compressed inside; leave out .gz")


def _check_options(fmt: ExportFormat, lookup_table: LookupTableOptions, search_space: InductorSpace | None) -> None:
    if fmt is not ExportFormat.INDUCTOR_LUT and lookup_table != LookupTableOptions():
        raise typer.BadParameter(
            "--torch, --environment-id, --top, --device-key and --tf32 are for --format inductor-lut"
        )
    if fmt is not ExportFormat.MAX_AUTOTUNE_SOLUTION and search_space is not None:
        raise typer.BadParameter("--search-space is for --format max-autotune-solution")


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
