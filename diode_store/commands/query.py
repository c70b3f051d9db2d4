"""Query the warehouse in SQL: SELECT over its views, read-only."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import Annotated, Any

import typer

from diode_store.commands.results import SUFFIXES, check_suffix, json_lines, write_file
from diode_store.console import DatabaseOption, JsonOption, make_app, print_note
from diode_store.query.view_files import VIEWS
from diode_store.render import counted

app = make_app(__doc__)

NoSyncOption = Annotated[bool, typer.Option("--no-sync", help="Read the lake without copying new measurements first.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Print the query plan instead of running the query.")]
AnalyzeOption = Annotated[
    bool, typer.Option("--analyze", help="Run the query and print its plan with the rows and seconds of each step.")
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV; the default when stdout is not a terminal.")]


@app.command(epilog='Example: diode query "SELECT op, m, n, k, template, runtime_us FROM fastest_configs LIMIT 5"')
def query(  # noqa: PLR0913 - one parameter an option
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help=f"One SELECT; views: {', '.join(VIEWS)}. - reads it from stdin.")
    ],
    database: DatabaseOption,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help=f"Write a file in the format of its suffix: {', '.join(SUFFIXES)}."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    no_sync: NoSyncOption = False,
    explain: ExplainOption = False,
    analyze: AnalyzeOption = False,
) -> None:
    """Run SQL (DuckDB's dialect) and print a table, or CSV when stdout is not a terminal.

    New measurements are copied to the lake first. Only SELECT and EXPLAIN are accepted, and only the lake is read.
    """
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    if (explain or analyze) and (as_csv or output):
        raise typer.BadParameter("--explain and --analyze print a plan: they go with --json, not with --csv or -o")
    if output and (as_json or as_csv):
        raise typer.BadParameter("-o takes the format from the file's suffix; omit --json and --csv")
    if output:
        check_suffix(output)
    connection = connected(database, sync=not no_sync)
    text = sys.stdin.read() if sql == "-" else sql
    if explain or analyze:
        _print_plan(connection, text, analyze=analyze, as_json=as_json)
    elif output:
        print_note(f"{output}: {counted(write_file(connection, text, output, force=force), 'row')}")
    else:
        _print_rows(connection, text, as_json=as_json, as_csv=as_csv)


def _print_rows(connection: Any, sql: str, *, as_json: bool, as_csv: bool) -> None:
    """Print JSON, CSV, or on a terminal a table that fits it."""
    from diode_store.query.csv_sql import csv_lines
    from diode_store.query.results import run_query

    if as_csv or not (as_json or sys.stdout.isatty()):
        sys.stdout.writelines(csv_lines(connection, sql))
        return
    result = run_query(connection, sql)
    if as_json:
        sys.stdout.writelines(json_lines(result.columns, result))
    else:
        from diode_store.commands.wide_table import print_wide

        print_wide(result.columns, result)


def _print_plan(connection: Any, sql: str, *, analyze: bool, as_json: bool) -> None:
    """Print DuckDB's plan of ``sql``, one line per step; ``as_json`` prints its own JSON."""
    from diode_store.query.plan import plan_json, plan_lines

    text = plan_json(connection, sql, analyze=analyze)
    typer.echo(text if as_json else "\n".join(plan_lines(text)))


def connected(database: str, *, sync: bool = True) -> Any:
    """Return a connection to the lake of ``database``; note on stderr if it had to be rebuilt."""
    from diode_store.commands.sync import note_rebuild
    from diode_store.console import progress
    from diode_store.query.analytics import connect, require_something_to_read

    if not sync:
        require_something_to_read(database)
    with progress("copying timings to the lake") as advance:
        return connect(database, sync=sync, on_sync=note_rebuild, on_progress=advance)
