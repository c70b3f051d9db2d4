"""Tables as files, in the formats of `diode query`."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet

from diode_store.commands.results import json_lines
from diode_store.query.csv_sql import lines_of

if TYPE_CHECKING:
    from diode_trainer.report.questions import Answer

FORMATS = {"csv": "text/csv; charset=utf-8", "json": "application/json", "parquet": "application/vnd.apache.parquet"}
"""Suffix → media type."""


def as_bytes(table: pa.Table, suffix: str) -> bytes:
    """Return a table in a format of ``FORMATS``; JSON is a list of objects."""
    if suffix == "parquet":
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(table, buffer)
        return buffer.getvalue()
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return "".join((lines_of if suffix == "csv" else json_lines)(table.column_names, rows)).encode()


def as_table(answer: Answer) -> pa.Table:
    """Return a computed answer as a table."""
    columns = zip(*answer.rows, strict=True) if answer.rows else [[] for _ in answer.names]
    return pa.table(dict(zip(answer.names, map(pa.array, columns), strict=True)))
