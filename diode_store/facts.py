"""How rows of the fact table ``timings`` get into each database: the one place for its fastest way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from diode_store import schema

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLUMNS = tuple(column.name for column in schema.timings.columns if column.name != "extra")
_INSERT = (
    f"INSERT INTO timings ({', '.join(_COLUMNS)}) "  # noqa: S608 - names from our own schema
    f"VALUES ({', '.join('?' * len(_COLUMNS))})"
)

TimingRow = tuple[int, int, float | None, str, int, int | None, float | None, float | None]
"""One row of ``timings``, in the order of its columns, without ``extra``."""


def insert_timings(connection: sa.Connection, rows: Sequence[TimingRow]) -> None:
    """Insert ``rows`` in the connection's transaction."""
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_INSERT, list(rows))
    else:
        named = [{**dict(zip(_COLUMNS, row, strict=True)), "is_estimate": bool(row[4])} for row in rows]
        connection.execute(sa.insert(schema.timings), named)
