"""Open a warehouse for the cache, on either database."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from diode_store.cache.cache import cache_of
from diode_store.cache.sqlite import open_sqlite
from diode_store.system.urls import sqlite_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diode_store.cache.source import WarehouseRows


@contextlib.contextmanager
def open_source(url: str) -> Iterator[WarehouseRows]:
    """Open the warehouse at ``url`` for reading.

    Raises:
        SchemaError: there is no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
    """
    path = sqlite_path(url)
    if path is not None:
        with open_sqlite(path) as source:
            yield source
        return
    from diode_store.cache.postgres import open_postgres

    with open_postgres(url) as server:
        yield server


def require_something_to_read(store_url: str, cache_dir: Path | str | None = None) -> None:
    """Refuse a mistyped file name, which would look like an empty warehouse without a sync.

    A cache whose warehouse is elsewhere, as ``DIODE_CACHE`` allows, can still be read.

    Raises:
        SchemaError: there is neither a cache nor a warehouse at ``store_url``.
    """
    if sqlite_path(store_url) and cache_of(store_url, cache_dir).state() is None:
        with open_source(store_url):
            pass
