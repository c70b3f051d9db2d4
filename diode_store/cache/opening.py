"""Open a warehouse for the cache, on either database."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from diode_store.cache.cache import cache_of
from diode_store.cache.sqlite import open_sqlite
from diode_store.cache.stamp import stamp_of
from diode_store.errors import DatabaseError
from diode_store.system.urls import is_published, only_readable, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from diode_store.cache.source import WarehouseRows


@contextlib.contextmanager
def open_source(
    url: str, folder: Path | None = None, is_new: Callable[[], bool] = lambda: False
) -> Iterator[WarehouseRows]:
    """Open the warehouse at ``url`` for reading.

    Args:
        url: the warehouse, or a published table.
        folder: folder of the cache; a published table needs it.
        is_new: returns whether the cache in ``folder`` needs every measurement.

    Raises:
        SchemaError: there is no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        PublishedTableError: the published table cannot be read.
    """
    if is_published(url):
        from diode_store.cache.published import open_published

        if folder is None:
            raise DatabaseError(only_readable(url))
        with open_published(url, folder, is_new) as table:
            yield table
        return
    path = sqlite_path(url)
    if path is not None:
        with open_sqlite(path) as source:
            yield source
        return
    from diode_store.cache.postgres import open_postgres

    with open_postgres(url) as server:
        yield server


def stamp(url: str) -> str | None:
    """Return what shows, without reading much, that a warehouse is unchanged; None if nothing does."""
    if is_published(url):
        from diode_store.cache.published import stamp_of_table

        return stamp_of_table(url)
    file = sqlite_path(url)
    return None if file is None else stamp_of(file)


def require_something_to_read(store_url: str, cache_dir: Path | str | None = None) -> None:
    """Refuse a mistyped file name, which would look like an empty warehouse without a sync.

    A cache whose warehouse is elsewhere, as ``DIODE_CACHE`` allows, can still be read.

    Raises:
        SchemaError: there is neither a cache nor a warehouse at ``store_url``.
    """
    if sqlite_path(store_url) and cache_of(store_url, cache_dir).state() is None:
        with open_source(store_url):
            pass
