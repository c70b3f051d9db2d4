"""Query rows as JSON, or as a file in the format of its suffix."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from diode_store.errors import QueryError
from diode_store.render import json_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import duckdb

SUFFIXES = (".parquet", ".csv", ".csv.gz", ".json", ".json.gz")
"""The suffixes that `--output` accepts."""


def json_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Return the lines of a JSON list of objects, made on demand: a result need not fit into memory.

    Raises:
        QueryError: two columns have one name, which an object cannot hold.
    """
    _refuse_twins(columns)

    def lines() -> Iterator[str]:
        separator = "[\n"
        for row in rows:
            fields = {name: json_value(value) for name, value in zip(columns, row, strict=True)}
            yield f"{separator}{json.dumps(fields, ensure_ascii=False, allow_nan=False)}"
            separator = ",\n"
        yield "\n]\n" if separator != "[\n" else "[]\n"

    return lines()


def check_suffix(path: Path) -> None:
    """Refuse a file name of unknown format.

    Raises:
        typer.BadParameter: it ends in none of ``SUFFIXES``, in any case.
    """
    if not path.name.lower().endswith(SUFFIXES):
        raise typer.BadParameter(f"{path}: unknown suffix; use one of {', '.join(SUFFIXES)}")


def write_file(connection: duckdb.DuckDBPyConnection, sql: str, path: Path, *, force: bool) -> int:
    """Write the rows of a query to a file, which appears whole or not at all; return how many there were.

    Args:
        connection: to the lake.
        sql: one SELECT.
        path: the file; it ends in one of ``SUFFIXES``.
        force: replace it if it is there.

    Raises:
        QueryError: the query is refused or fails, or two columns have one name and the file is no CSV.
        ExportError: the file is there, or cannot be written.
    """
    from diode_store.exchange.exporting import new_file, open_for_lines, write_lines

    with new_file(path, force=force) as beside:
        name = path.name.lower()
        if name.endswith(".parquet"):
            return _write_parquet(connection, sql, beside)
        lines = (_json_lines if name.endswith((".json", ".json.gz")) else _csv_lines)(connection, sql)
        with open_for_lines(beside, path.name) as file:
            return write_lines(file, lines) - 1  # the header, or the bracket that ends a list


def _write_parquet(connection: duckdb.DuckDBPyConnection, sql: str, path: Path) -> int:
    from diode_store.batching import ROWS_PER_GROUP
    from diode_store.exchange import parquet
    from diode_store.query.results import PlainBatches

    batches = PlainBatches(connection, sql, rows_a_batch=ROWS_PER_GROUP)
    _refuse_twins(batches.schema.names)
    return parquet.write(path, batches)


def _csv_lines(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[str]:
    from diode_store.query.csv_sql import csv_lines

    return csv_lines(connection, sql)


def _json_lines(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[str]:
    from diode_store.query.results import run_query

    result = run_query(connection, sql)
    return json_lines(result.columns, result)


def _refuse_twins(columns: Sequence[str]) -> None:
    if len(set(columns)) < len(columns):
        raise QueryError("two columns have the same name; give one another name with AS")
