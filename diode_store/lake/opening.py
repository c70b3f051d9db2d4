"""Opens a warehouse for the lake, on either database."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from diode_store.lake.sqlite import open_sqlite
from diode_store.urls import sqlite_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.lake.source import WarehouseRows


@contextlib.contextmanager
def open_source(url: str) -> Iterator[WarehouseRows]:
    """Open the warehouse at ``url`` for reading.

    Raises:
        SchemaError: there is none, or one of another revision.
        DatabaseError: it cannot be read.
    """
    path = sqlite_path(url)
    if path is not None:
        with open_sqlite(path) as source:
            yield source
        return
    from diode_store.lake.postgres import open_postgres

    with open_postgres(url) as server:
        yield server
