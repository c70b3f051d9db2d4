"""Query the warehouse in SQL: SELECT over its views, read-only."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_store.command_line.console import JsonOption, SourceOption, make_app, print_note
from diode_store.command_line.render import counted
from diode_store.commands.results import SUFFIXES, check_suffix, json_lines, write_file
from diode_store.errors import NO_MEASUREMENTS, RecordError
from diode_store.ops import FUSED_OPS, find_op
from diode_store.ops.fused import is_fused
from diode_store.query.limits import Limits
from diode_store.views.view_files import VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.query.limited import Session

app = make_app(__doc__)

NoSyncOption = Annotated[bool, typer.Option("--no-sync", help="Read the cache without copying new measurements first.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Print the query plan instead of running the query.")]
AnalyzeOption = Annotated[
    bool, typer.Option("--analyze", help="Run the query and print its plan with the rows and seconds of each step.")
]
AllMatchesOption = Annotated[bool, typer.Option("--all-matches", help="Accept a NAME that matches different devices.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV; the default when stdout is not a terminal.")]


def _known_op(value: str | None) -> str | None:
    try:
        if value is None or is_fused(value):
            return value
        return find_op(value).name
    except RecordError as error:
        raise typer.BadParameter(f"{error}, {', '.join(FUSED_OPS)}") from error


OpOption = Annotated[
    str | None, typer.Option("--op", metavar="OP", help="Only this op, such as mm.", callback=_known_op)
]
TimeLimitOption = Annotated[
    float, typer.Option("--time-limit", metavar="SECONDS", min=0.0, help="End a query that takes longer.")
]
MemoryLimitOption = Annotated[
    str,
    typer.Option(
        "--memory-limit", metavar="SIZE", help="Memory of a query: a size such as 4GB, or a share of the machine's."
    ),
]


@app.command(epilog='Example: diode query "SELECT op, m, n, k, template, runtime_us FROM fastest_configs LIMIT 5"')
def query(  # noqa: PLR0913 - one parameter per option
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help=f"One SELECT; views: {', '.join(VIEWS)}. - reads it from stdin.")
    ],
    database: SourceOption,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help=f"Write a file in the format of its suffix: {', '.join(SUFFIXES)}."
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    no_sync: NoSyncOption = False,
    explain: ExplainOption = False,
    analyze: AnalyzeOption = False,
    time_limit: TimeLimitOption = Limits.time_s,
    memory_limit: MemoryLimitOption = Limits.memory,
) -> None:
    """Run SQL (DuckDB's dialect) and print a table, or CSV when stdout is not a terminal.

    The command first copies new measurements to the cache. It accepts only SELECT and EXPLAIN, and reads nothing else.
    """
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    if (explain or analyze) and (as_csv or output):
        raise typer.BadParameter("--explain and --analyze print a plan: they go with --json, not with --csv or -o")
    if output and (as_json or as_csv):
        raise typer.BadParameter("-o takes the format from the file's suffix; omit --json and --csv")
    if output:
        check_suffix(output)
    text = sys.stdin.read() if sql == "-" else sql
    with _told_interrupts(), _session(database, Limits(time_limit, memory_limit), sync=not no_sync) as session:
        _say_if_empty(session, text)
        if explain or analyze:
            _print_plan(session, text, analyze=analyze, as_json=as_json)
        elif output:
            print_note(f"{output}: {counted(write_file(session, text, output, force=force), 'row')}")
        else:
            _print_rows(session, text, as_json=as_json, as_csv=as_csv)


@contextlib.contextmanager
def _told_interrupts() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print_note("interrupted")
        raise


def _say_if_empty(session: Session, sql: str) -> None:
    """Say how to add measurements if the query reads a view and there are none."""
    if session.is_empty and any(view in sql for view in VIEWS):
        print_note(NO_MEASUREMENTS)


def _print_rows(session: Session, sql: str, *, as_json: bool, as_csv: bool) -> None:
    """Print JSON or CSV, or on a terminal a table that fits it."""
    if as_csv or not (as_json or sys.stdout.isatty()):
        sys.stdout.writelines(session.csv_lines(sql))
        return
    columns, rows = session.rows(sql)
    if as_json:
        sys.stdout.writelines(json_lines(columns, rows))
    else:
        from diode_store.commands.wide_table import print_wide

        print_wide(columns, rows)


def _print_plan(session: Session, sql: str, *, analyze: bool, as_json: bool) -> None:
    """Print DuckDB's plan of ``sql``, one line for each step, or as DuckDB's JSON."""
    from diode_store.query.plan import plan_lines

    [text] = session.ask("plan", sql, analyze=analyze)
    typer.echo(text if as_json else "\n".join(plan_lines(text)))


def _session(database: str, limits: Limits, *, sync: bool) -> Session:
    """Return a session over the cache of ``database``; note a rebuild of the cache on stderr."""
    from diode_store.command_line.console import progress
    from diode_store.commands.sync import note_sync
    from diode_store.query.limited import open_session

    with progress("copying timings to the cache") as advance:
        return open_session(database, sync=sync, limits=limits, on_sync=note_sync, on_progress=advance)


def connected(database: str, *views: str, sync: bool = True) -> Any:
    """Return a connection to the cache of ``database`` with these views; note a rebuild of the cache on stderr."""
    from diode_store.cache.opening import require_something_to_read
    from diode_store.command_line.console import progress
    from diode_store.commands.sync import note_sync
    from diode_store.query.analytics import connect

    if not sync:
        require_something_to_read(database)
    with progress("copying timings to the cache") as advance:
        return connect(database, sync=sync, on_sync=note_sync, on_progress=advance, views=views)
