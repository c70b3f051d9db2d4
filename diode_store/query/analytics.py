"""Queries over the lake: DuckDB in memory over its Parquet files, with the views of ``views/``.

``connect`` syncs first, so that every committed row is seen. The connection reads the lake's files and no
other, and its settings are locked; ``results.run_query`` also refuses every statement that is not read-only.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import duckdb

from diode_store.lake.lake import Lake, Manifest, Segment, lake_of
from diode_store.lake.layout import FACTS, SNAPSHOTS
from diode_store.lake.opening import open_source
from diode_store.lake.sync import SyncReport
from diode_store.lake.sync import sync as sync_lake
from diode_store.private_folder import private_folder
from diode_store.query import view_files
from diode_store.urls import sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MEMORY = "50%"
"""Memory limit of queries, as a share of the machine's; larger results spill to files."""
_DUCKDB_SETTINGS: dict[str, Any] = {
    # A variable of the calling Python program must not pass for a table.
    "python_enable_replacements": False,
    "autoload_known_extensions": False,
}


def connect(
    store_url: str,
    lake_dir: Path | str | None = None,
    sync: bool = True,  # noqa: FBT001, FBT002 - the signature all components rely on
    *,
    on_sync: Callable[[SyncReport], None] = lambda _report: None,
    on_progress: Callable[[float], None] = lambda _timings: None,
) -> duckdb.DuckDBPyConnection:
    """Return a connection with every view over the lake of the warehouse at ``store_url``.

    Args:
        store_url: the warehouse: a URL, or the path of an SQLite file.
        lake_dir: its lake, a folder or a URL; None means ``DIODE_LAKE``, else the folder beside the database.
        sync: bring the lake up to date first; without, an absent lake gives empty views.
        on_sync: called with what the sync did.
        on_progress: called with the number of timings just copied.

    Raises:
        SchemaError: there is no warehouse at ``store_url``, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        LakeError: the lake cannot be written or read.
        DiodeError: there is no folder for temporary files.
    """
    lake = lake_of(store_url, lake_dir)
    if sync:
        on_sync(sync_lake(store_url, lake, on_progress=on_progress))
    return open_lake(lake)


def open_lake(lake: Lake, *, memory: str = _MEMORY, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Return a connection with every view over ``lake`` as it is now.

    Args:
        lake: what to read.
        memory: limit of all queries together, such as ``50%`` or ``2GiB``; larger results spill to temporary files.
        threads: how many work on a query; None for as many as there are processors.

    Raises:
        LakeError: it is damaged.
        DiodeError: there is no folder for temporary files.
    """
    with ExitStack() as undo:
        manifest, release = lake.hold()
        undo.callback(release)
        folder = undo.enter_context(private_folder("diode-spill-"))
        limits = {"temp_directory": str(folder.path), "memory_limit": memory}
        if threads is not None:
            limits["threads"] = str(threads)
        connection = duckdb.connect(config={**_DUCKDB_SETTINGS, **limits})
        with ExitStack() as undo_connecting:
            undo_connecting.callback(connection.close)
            _make_views(connection, lake, manifest)
            undo_connecting.pop_all()
        weakref.finalize(connection, undo.pop_all().close)
    return connection


def require_something_to_read(store_url: str, lake_dir: Path | str | None = None) -> None:
    """Refuse a mistyped file name, which without a sync would look like an empty warehouse.

    A lake whose warehouse is elsewhere, as ``DIODE_LAKE`` allows, can still be read.

    Raises:
        SchemaError: there is neither a lake nor a warehouse at ``store_url``.
    """
    if sqlite_path(store_url) and lake_of(store_url, lake_dir).manifest() is None:
        with open_source(store_url):
            pass


def _make_views(connection: duckdb.DuckDBPyConnection, lake: Lake, manifest: Manifest) -> None:
    """Make every table and view over the lake's files; then lock the settings, so that nothing else can be read."""
    if lake.folder.filesystem is not None:
        connection.register_filesystem(lake.folder.filesystem)
    for table in SNAPSHOTS:
        connection.execute(f"CREATE VIEW {table} AS {_snapshot(lake, manifest, table)}")
    for table, name in (("measurements", "segment_measurements"), ("timings", "timings")):
        connection.execute(f"CREATE VIEW {name} AS {_segments(lake, manifest, table)}")
    for statements in view_files.view_statements():
        connection.execute(statements)
    paths = [lake.folder.address(name) for name in sorted(manifest.files())]
    connection.execute("SET allowed_paths = $1", [paths])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _snapshot(lake: Lake, manifest: Manifest, table: str) -> str:
    name = manifest.snapshots.get(table)
    return _parquet([lake.folder.address(name)]) if name else _nothing(SNAPSHOTS[table])


def _segments(lake: Lake, manifest: Manifest, table: str) -> str:
    """Return the SELECT of a fact table: whole segments in one scan, each with dropped measurements alone."""
    if not manifest.segments:
        return _nothing(FACTS[table])

    def path(segment: Segment) -> str:
        return lake.folder.address(getattr(segment, table))

    key = next(iter(FACTS[table]))
    whole = [path(segment) for segment in manifest.segments if not segment.dropped]
    parts = [_parquet(whole)] if whole else []
    for segment in manifest.segments:
        if segment.dropped:
            numbers = ", ".join(str(number) for number in segment.dropped)
            parts.append(f"{_parquet([path(segment)])} WHERE {key} NOT IN ({numbers})")
    return " UNION ALL ".join(parts)


def _parquet(paths: list[str]) -> str:
    quoted = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    return f"SELECT * FROM read_parquet([{quoted}], hive_partitioning = false)"  # noqa: S608 - our own files


def _nothing(columns: dict[str, str]) -> str:
    """Return a SELECT of no rows with ``columns``; JSON is text in the files."""
    typed = (f"NULL::{'VARCHAR' if kind == 'JSON' else kind} AS {name}" for name, kind in columns.items())
    return f"SELECT {', '.join(typed)} WHERE false"
