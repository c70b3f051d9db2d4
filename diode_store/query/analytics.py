"""Queries over the cache: its DuckDB files with the views of ``diode_store.views``.

``connect`` syncs first, so a query sees every committed row. The connection reads the cache's files alone, and its
settings are locked. ``results.run_query`` also refuses every statement that is not read-only.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING

import duckdb

from diode_store.cache.cache import Cache, Reading, cache_of
from diode_store.cache.sync import SyncReport, sync_to_read
from diode_store.cache.tables import SETTINGS, attach, sources
from diode_store.cache.world import make_hardware
from diode_store.errors import DamagedCacheError, first_line, mark_damaged
from diode_store.system.private_folder import SPILL, private_folder
from diode_store.views import view_files
from diode_store.views.view_files import VIEWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_MEMORY = "50%"
"""Memory limit of queries, as a share of the machine's; larger results spill to files."""


def connect(
    store_url: str,
    cache_dir: Path | str | None = None,
    sync: bool = True,  # noqa: FBT001, FBT002 - the signature all components rely on
    *,
    on_sync: Callable[[SyncReport], None] = lambda _report: None,
    on_progress: Callable[[float], None] = lambda _timings: None,
    views: Iterable[str] = VIEWS,
) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views over the cache of the warehouse at ``store_url``.

    Args:
        store_url: the warehouse: a URL, or the path of an SQLite file.
        cache_dir: its cache; None means ``DIODE_CACHE``, else the folder beside the database.
        sync: bring the cache up to date first. Without a sync, a missing cache gives empty views.
        on_sync: called with the sync's report.
        on_progress: called with the number of newly copied timings.
        views: the views to make; DuckDB takes some time for each.

    Raises:
        SchemaError: ``store_url`` has no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        CacheError: there is no cache and none can be written, or it cannot be read.
        DiodeError: no folder for temporary files can be made.
    """
    cache = cache_of(store_url, cache_dir)
    if sync:
        on_sync(sync_to_read(store_url, cache, on_progress=on_progress))
    return open_cache(cache, views=views)


def open_cache(
    cache: Cache, *, memory: str = _MEMORY, threads: int | None = None, views: Iterable[str] = VIEWS
) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views over the current state of ``cache``.

    Args:
        cache: the cache to read.
        memory: limit of all queries together, such as ``50%`` or ``2GiB``; larger results spill to temporary files.
        threads: number of threads for a query; None means one for each processor.
        views: as for ``connect``.

    Raises:
        CacheError: the cache is damaged.
        DiodeError: no folder for temporary files can be made.
    """
    with ExitStack() as undo:
        reading, release = cache.hold()
        undo.callback(release)
        folder = undo.enter_context(private_folder(SPILL))
        connection = open_state(reading, folder.path, memory=memory, threads=threads, views=views)
        weakref.finalize(connection, undo.pop_all().close)
    return connection


def open_state(
    reading: Reading,
    folder: Path,
    *,
    memory: str = _MEMORY,
    threads: int | None = None,
    views: Iterable[str] = VIEWS,
) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views over one state of a cache.

    Args:
        reading: the state.
        folder: folder for temporary files.
        memory: as for ``open_cache``.
        threads: as for ``open_cache``.
        views: as for ``connect``; ``add_views`` makes more.

    Raises:
        DamagedCacheError: DuckDB cannot read the cache's files.
    """
    limits = {"temp_directory": str(folder), "memory_limit": memory}
    if threads is not None:
        limits["threads"] = str(threads)
    connection = duckdb.connect(config={**SETTINGS, **limits})
    with ExitStack() as undo:
        undo.callback(connection.close)
        try:
            _make_tables(connection, reading)
            add_views(connection, views)
        except duckdb.Error as error:
            reason = f"the cache is damaged: {first_line(error)}"
            mark_damaged(reason)
            raise DamagedCacheError(reason) from error
        undo.pop_all()
    return connection


def add_views(connection: duckdb.DuckDBPyConnection, views: Iterable[str]) -> None:
    """Make views, and those they use, unless they are there."""
    wanted = view_files.view_statements(views)
    if not wanted:
        return
    there = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    for name, statement in wanted.items():
        if (name,) not in there:
            connection.execute(statement)


def _make_tables(connection: duckdb.DuckDBPyConnection, reading: Reading) -> None:
    """Make a view of every table, then lock the settings so that queries reach no other file."""
    attach(connection, reading.paths)
    for name, select in sources(reading, reading.paths).items():
        if name == "hardware":
            make_hardware(connection, select)
        else:
            connection.execute(f"CREATE VIEW {name} AS {select}")
    for statements in view_files.base_statements():
        connection.execute(statements)
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
