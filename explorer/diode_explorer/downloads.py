"""A table as a file."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pyarrow.csv
import pyarrow.parquet

from diode_store.render import json_value

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = {"csv": "text/csv; charset=utf-8", "json": "application/json", "parquet": "application/vnd.apache.parquet"}
"""Suffix → media type."""


def as_bytes(table: pa.Table, suffix: str) -> bytes:
    """Return a table in the format of a suffix of ``FORMATS``; JSON is a list of objects."""
    buffer = io.BytesIO()
    if suffix == "csv":
        pyarrow.csv.write_csv(table, buffer)
    elif suffix == "parquet":
        pyarrow.parquet.write_table(table, buffer)
    else:
        rows = [{name: json_value(value) for name, value in row.items()} for row in table.to_pylist()]
        buffer.write(json.dumps(rows, ensure_ascii=False, allow_nan=False).encode())
    return buffer.getvalue()
