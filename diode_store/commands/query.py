"""Ask the warehouse a question in SQL: SELECT over its views, nothing else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_store.console import DatabaseOption, JsonOption, make_app
from diode_store.errors import QueryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

app = make_app(__doc__)

NoSyncOption = Annotated[
    bool, typer.Option("--no-sync", help="Read the lake as it is; do not look for newer measurements.")
]
ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Print the plan instead: what is read, joined and filtered in which order.")
]
AnalyzeOption = Annotated[
    bool, typer.Option("--analyze", help="Run it and print the plan with the rows and seconds of each step.")
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV; also the default when this is not a terminal.")]

_VIEWS = (
    "observations, fastest_configs, fastest_by_template, config_rank, training_examples, coverage, vendor_gap, "
    "disagreements, regressions"
)


@app.command(epilog='Example: diode query "SELECT op, m, n, k, template, runtime_us FROM fastest_configs LIMIT 5"')
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help=f"One SELECT; views: {_VIEWS}. - reads it from stdin.")],
    database: DatabaseOption,
    *,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    no_sync: NoSyncOption = False,
    explain: ExplainOption = False,
    analyze: AnalyzeOption = False,
) -> None:
    """Run SQL (DuckDB's) and print a table; CSV when this is not a terminal.

    New measurements are copied to the lake first. Only SELECT and EXPLAIN are run, and only the lake is read.
    """
    from diode_store.query.analytics import run_query

    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    if (explain or analyze) and as_csv:
        raise typer.BadParameter("a plan is no table: --explain and --analyze go with --json, not with --csv")
    connection = connected(database, sync=not no_sync)
    text = sys.stdin.read() if sql == "-" else sql
    if explain or analyze:
        _print_plan(connection, text, analyze=analyze, as_json=as_json)
        return
    result = run_query(connection, text)
    print_result(result.columns, result, as_json=as_json, as_csv=as_csv)


def _print_plan(connection: Any, sql: str, *, analyze: bool, as_json: bool) -> None:
    """Print how DuckDB goes about ``sql``, a line a step; ``as_json`` gives all it knows, as it says it."""
    from diode_store.query.plan import plan_json, plan_lines

    text = plan_json(connection, sql, analyze=analyze)
    typer.echo(text if as_json else "\n".join(plan_lines(text)))


def connected(database: str, *, sync: bool = True) -> Any:
    """Return a connection to the lake of ``database``; say on stderr if it had to be rebuilt."""
    from diode_store.commands.sync import note_rebuild
    from diode_store.console import progress
    from diode_store.query.analytics import connect

    if not sync:
        _require_warehouse(database)
    with progress("copying timings to the lake") as advance:
        return connect(database, sync=sync, on_sync=note_rebuild, on_progress=advance)


def _require_warehouse(database: str) -> None:
    """Raise SchemaError for a mistyped file name, which would look like an empty warehouse.

    A lake whose warehouse is elsewhere, as ``DIODE_LAKE`` allows, can still be read.
    """
    from diode_store.lake.lake import Lake, lake_path
    from diode_store.lake.opening import open_source
    from diode_store.settings import Settings
    from diode_store.urls import sqlite_path

    if sqlite_path(database) and Lake(lake_path(database, Settings.from_environment().lake_dir)).manifest() is None:
        with open_source(database):
            pass


def print_result(columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool, as_csv: bool) -> None:
    """Print rows as JSON objects, as CSV, or on a terminal as a table that fits it.

    Raises:
        QueryError: two columns of one name, which a JSON object cannot hold.
    """
    if as_json:
        _print_json(columns, rows)
    elif as_csv or not sys.stdout.isatty():
        _print_csv(columns, rows)
    else:
        from diode_store.commands.wide_table import print_wide

        print_wide(columns, rows)


def _print_json(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a list of objects, one a line, as they come: a result need not fit into memory."""
    import json

    from diode_store.render import json_value

    if len(set(columns)) < len(columns):
        raise QueryError("two columns have the same name; give one another name with AS")

    def lines() -> Iterator[str]:
        for row in rows:
            fields = {name: json_value(value) for name, value in zip(columns, row, strict=True)}
            yield json.dumps(fields, ensure_ascii=False, allow_nan=False)

    separator = "[\n"
    for line in lines():
        sys.stdout.write(f"{separator}{line}")
        separator = ",\n"
    sys.stdout.write("\n]\n" if separator != "[\n" else "[]\n")


def _print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print CSV with a header; NULL is an empty field, a list or struct is JSON, bytes are hex."""
    import csv
    import json

    from diode_store.render import json_value

    def cell(value: object) -> object:
        plain = json_value(value)
        return json.dumps(plain) if isinstance(plain, (list, dict, bool)) else plain

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(value) for value in row] for row in rows)
