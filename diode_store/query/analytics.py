"""Queries over the lake: DuckDB in memory over its Parquet files, with the views of ``views/``.

``connect`` syncs first, so a query sees every committed row. The connection reads the lake's files alone, and its
settings are locked. ``results.run_query`` also refuses every statement that is not read-only.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import duckdb

from diode_store.lake.lake import Lake, Manifest, Segment, lake_of
from diode_store.lake.layout import FACTS, SNAPSHOTS
from diode_store.lake.sync import SyncReport
from diode_store.lake.sync import sync as sync_lake
from diode_store.query import view_files
from diode_store.query.roofline_sql import hardware_table
from diode_store.query.view_files import VIEWS
from diode_store.records import Hardware
from diode_store.system.private_folder import SPILL, private_folder
from diode_store.warehouse import record_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_MEMORY = "50%"
"""Memory limit of queries, as a share of the machine's; larger results spill to files."""
_DUCKDB_SETTINGS: dict[str, Any] = {
    # DuckDB must not take a variable of the calling Python program for a table.
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
    views: Iterable[str] = VIEWS,
) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views over the lake of the warehouse at ``store_url``.

    Args:
        store_url: the warehouse: a URL, or the path of an SQLite file.
        lake_dir: its lake, a folder or a URL; None means ``DIODE_LAKE``, else the folder beside the database.
        sync: bring the lake up to date first. Without a sync, a missing lake gives empty views.
        on_sync: called with the sync's report.
        on_progress: called with the number of newly copied timings.
        views: the views to make; DuckDB takes some time for each.

    Raises:
        SchemaError: ``store_url`` has no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        LakeError: the lake cannot be written or read.
        DiodeError: no folder for temporary files can be made.
    """
    lake = lake_of(store_url, lake_dir)
    if sync:
        on_sync(sync_lake(store_url, lake, on_progress=on_progress))
    return open_lake(lake, views=views)


def open_lake(
    lake: Lake, *, memory: str = _MEMORY, threads: int | None = None, views: Iterable[str] = VIEWS
) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views over the current state of ``lake``.

    Args:
        lake: the lake to read.
        memory: limit of all queries together, such as ``50%`` or ``2GiB``; larger results spill to temporary files.
        threads: number of threads for a query; None means one for each processor.
        views: as for ``connect``.

    Raises:
        LakeError: the lake is damaged.
        DiodeError: no folder for temporary files can be made.
    """
    with ExitStack() as undo:
        manifest, release = lake.hold()
        undo.callback(release)
        folder = undo.enter_context(private_folder(SPILL))
        connection = open_state(lake, manifest, folder.path, memory=memory, threads=threads, views=views)
        weakref.finalize(connection, undo.pop_all().close)
    return connection


def open_state(
    lake: Lake,
    manifest: Manifest,
    folder: Path,
    *,
    memory: str = _MEMORY,
    threads: int | None = None,
    views: Iterable[str] = VIEWS,
) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views over one state of ``lake``; the caller holds that state.

    Args:
        lake: the lake to read.
        manifest: its state.
        folder: folder for temporary files.
        memory: as for ``open_lake``.
        threads: as for ``open_lake``.
        views: as for ``connect``; ``add_views`` makes more.
    """
    limits = {"temp_directory": str(folder), "memory_limit": memory}
    if threads is not None:
        limits["threads"] = str(threads)
    connection = duckdb.connect(config={**_DUCKDB_SETTINGS, **limits})
    with ExitStack() as undo:
        undo.callback(connection.close)
        _make_tables(connection, lake, manifest)
        add_views(connection, views)
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


def _make_tables(connection: duckdb.DuckDBPyConnection, lake: Lake, manifest: Manifest) -> None:
    """Make every table over the lake's files, then lock the settings so that queries reach no other file."""
    if lake.folder.filesystem is not None:
        connection.register_filesystem(lake.folder.filesystem)
    for table in SNAPSHOTS:
        snapshot = _snapshot(lake, manifest, table)
        connection.execute(
            hardware_table(snapshot, _devices(connection, snapshot))
            if table == "hardware"
            else f"CREATE VIEW {table} AS {snapshot}"
        )
    for table, name in (("measurements", "segment_measurements"), ("timings", "timings")):
        connection.execute(f"CREATE VIEW {name} AS {_segments(lake, manifest, table)}")
    for statements in view_files.base_statements():
        connection.execute(statements)
    paths = [lake.folder.address(name) for name in sorted(manifest.files())]
    connection.execute("SET allowed_paths = $1", [paths])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _devices(connection: duckdb.DuckDBPyConnection, snapshot: str) -> list[tuple[int, Hardware]]:
    """Return the devices of the table ``hardware``, by their ids."""
    rows = connection.execute(f"SELECT id, {', '.join(record_fields.HARDWARE)} FROM ({snapshot})").fetchall()  # noqa: S608 - our own names
    return [(number, Hardware(**dict(zip(record_fields.HARDWARE, row, strict=True)))) for number, *row in rows]


def _snapshot(lake: Lake, manifest: Manifest, table: str) -> str:
    name = manifest.snapshots.get(table)
    return _parquet([lake.folder.address(name)]) if name else _nothing(SNAPSHOTS[table])


def _segments(lake: Lake, manifest: Manifest, table: str) -> str:
    """Return the SELECT of a fact table; complete segments share one scan, and each other segment has its own."""
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
