"""Write measurements to a file, for another warehouse or another program."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.console import DatabaseOption, JsonOption, make_app, print_json, print_note, progress
from diode_store.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from diode_store.store import Store

app = make_app(__doc__)

_STDOUT = Path("-")


class Format(StrEnum):
    """Formats that can be exported."""

    JSONL = "jsonl"
    PARQUET = "parquet"


@app.command(epilog='Example: diode export --format jsonl --hardware "NVIDIA H200" -o h200.jsonl.gz')
def export(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to make; .gz compresses; - is stdout.")
    ],
    database: DatabaseOption,
    *,
    fmt: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="jsonl can be imported again; parquet is the view observations, and what FILE.parquet gets.",
            show_default="jsonl",
        ),
    ] = None,
    hardware: Annotated[str | None, typer.Option(metavar="NAME", help="Only measurements on this hardware.")] = None,
    all_matches: Annotated[bool, typer.Option("--all-matches", help="Let NAME mean several unlike devices.")] = False,
    op: Annotated[str | None, typer.Option(metavar="OP", help="Only this op, such as mm.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write measurements to FILE, which appears whole or not at all."""
    from diode_store.store import Store

    if fmt is None:
        fmt = Format.PARQUET if output.suffix == ".parquet" else Format.JSONL
    if output == _STDOUT and (fmt is not Format.JSONL or as_json):
        raise typer.BadParameter("only --format jsonl, without --json, can be written to stdout")
    with Store.open(database) as store, progress("exporting") as advance:
        ids = _hardware_ids(store, hardware, all_matches=all_matches)
        measurements, timings = _write(_Export(database, store, fmt, ids, op, advance), output, force=force)
    if output == _STDOUT:
        return
    if as_json:
        print_json({"file": str(output), "measurements": measurements, "timings": timings})
    else:
        typer.echo(f"{output}: {measurements:,} measurements with {timings:,} timings")


def _hardware_ids(store: Store, name: str | None, *, all_matches: bool) -> list[int] | None:
    from diode_store.hardware import describe, match

    if name is None:
        return None
    with store.engine.connect() as connection:
        found = match(connection, name, all_matches=all_matches)
    print_note(f"hardware: {describe(found)}")
    return [row.id for row in found]


@dataclass(frozen=True)
class _Export:
    database: str
    store: Store
    fmt: Format
    hardware_ids: list[int] | None
    op: str | None
    on_progress: Callable[[float], None]

    def lines(self, stream: IO[bytes]) -> tuple[int, int]:
        from diode_store.exchange import jsonl
        from diode_store.measurements import iter_measurements

        wanted = iter_measurements(self.store.engine, hardware_ids=self.hardware_ids, op=self.op)
        return jsonl.write(stream, wanted, self.on_progress)

    def parquet(self, path: Path) -> tuple[int, int]:
        from diode_store.commands.query import connected
        from diode_store.exchange import parquet

        connection = connected(self.database)
        where = "($1 IS NULL OR hardware_id IN (SELECT unnest($1::BIGINT[]))) AND ($2 IS NULL OR op = $2)"
        asked = [self.hardware_ids, self.op]
        count = f"SELECT count(DISTINCT measurement_id) FROM observations WHERE {where}"  # noqa: S608 - our own text
        rows = f"SELECT * FROM observations WHERE {where}"  # noqa: S608 - likewise
        [[measurements]] = connection.execute(count, asked).fetchall()
        # A relation streams; what `execute` returns would be copied whole before its first batch.
        relation = connection.sql(rows, params=asked)
        return measurements, parquet.write(path, relation.to_arrow_reader(), self.on_progress)


def _write(export: _Export, output: Path, *, force: bool) -> tuple[int, int]:
    from diode_store.exporting import new_file, open_for_lines

    if output == _STDOUT:
        return export.lines(sys.stdout.buffer)
    with new_file(output, force=force) as beside:
        if export.fmt is Format.PARQUET:
            written = export.parquet(beside)
        else:
            with open_for_lines(beside, output.name) as stream:
                written = export.lines(stream)
        if not written[0]:
            raise ExportError(f"there is nothing to export; {_what_there_is(export.store)}")
    return written


def _what_there_is(store: Store) -> str:
    counts = store.counts()
    return f"the warehouse holds {counts['measurements']:,} measurements of other hardware or ops"
