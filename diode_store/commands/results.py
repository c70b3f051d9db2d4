"""Query rows as JSON, or as a file in the format of its suffix."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from diode_store.command_line.render import json_value
from diode_store.errors import QueryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from diode_store.query.limited import Session

SUFFIXES = (".parquet", ".csv", ".csv.gz", ".json", ".json.gz")
"""Suffixes that `--output` accepts."""


def json_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a JSON list of objects on demand: a result need not fit into memory.

    Raises:
        QueryError: two columns have the same name, which an object cannot hold.
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
        typer.BadParameter: the name ends in none of ``SUFFIXES``, in any case.
    """
    if not path.name.lower().endswith(SUFFIXES):
        raise typer.BadParameter(f"{path}: unknown suffix; use one of {', '.join(SUFFIXES)}")


def write_file(session: Session, sql: str, path: Path, *, force: bool) -> int:
    """Write the rows of a query to a file, whole or not at all; return their number.

    Args:
        session: session to ask.
        sql: one SELECT.
        path: a file name that ends in one of ``SUFFIXES``.
        force: replace an existing file.

    Raises:
        QueryError: the query is refused or fails, or two columns have the same name and the file is no CSV.
        ExportError: the file exists, or cannot be written.
    """
    from diode_store.exchange.exporting import new_file, open_for_lines, write_lines

    with new_file(path, force=force) as beside:
        name = path.name.lower()
        if name.endswith(".parquet"):
            return _write_parquet(session, sql, beside)
        is_json = name.endswith((".json", ".json.gz"))
        lines = json_lines(*session.rows(sql)) if is_json else session.csv_lines(sql)
        with open_for_lines(beside, path.name) as file:
            return write_lines(file, lines) - 1  # the header, or the bracket that ends a list


def _write_parquet(session: Session, sql: str, path: Path) -> int:
    from diode_store.exchange import parquet
    from diode_store.values.batching import ROWS_PER_GROUP

    schema, batches = session.batches(sql, ROWS_PER_GROUP)
    _refuse_twins(schema.names)
    return parquet.write(path, schema, batches)


def _refuse_twins(columns: Sequence[str]) -> None:
    if len(set(columns)) < len(columns):
        raise QueryError("two columns have the same name; give one another name with AS")
