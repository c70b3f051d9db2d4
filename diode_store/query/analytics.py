"""Questions to the lake: DuckDB in memory over its Parquet files, with the views of ``views/``.

``connect`` syncs first, so that a row that was committed is seen. The connection reads the lake's files and no
other, and its settings are locked; ``run_query`` also refuses every statement that does not only read.
"""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from diode_store.errors import QueryError
from diode_store.lake.lake import Lake, Manifest, Segment, lake_path
from diode_store.lake.layout import FACTS, SNAPSHOTS
from diode_store.lake.sync import SyncReport
from diode_store.lake.sync import sync as sync_lake
from diode_store.query import view_files
from diode_store.query.guard import check_reads_only, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

VIEWS = view_files.VIEWS
"""The views whose columns are documented and kept."""

_ROWS_AT_ONCE = 10_000
_ROWS_A_BATCH = 100_000
_MEMORY = "50%"
"""What a query may take of the machine's memory; what needs more goes through files."""


def connect(
    store_url: str,
    lake_dir: Path | str | None = None,
    sync: bool = True,  # noqa: FBT001, FBT002 - the signature that every component was promised
    *,
    on_sync: Callable[[SyncReport], None] = lambda _report: None,
    on_progress: Callable[[float], None] = lambda _timings: None,
) -> duckdb.DuckDBPyConnection:
    """Return a connection with every view over the lake of the warehouse at ``store_url``.

    Args:
        store_url: the warehouse: a URL, or the path of an SQLite file.
        lake_dir: its lake, a folder or a URL; None means ``DIODE_LAKE``, else the folder beside the database.
        sync: bring the lake up to date first; without, an absent lake gives empty views.
        on_sync: told what the sync did.
        on_progress: told the number of timings the sync has just copied.

    Raises:
        SchemaError: there is no warehouse at ``store_url``, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        LakeError: the lake cannot be written or read.
    """
    lake = Lake(lake_path(store_url, lake_dir or _chosen_lake()))
    if sync:
        on_sync(sync_lake(store_url, lake, on_progress=on_progress))
    return open_lake(lake)


def open_lake(lake: Lake, *, memory: str = _MEMORY) -> duckdb.DuckDBPyConnection:
    """Return a connection with every view over ``lake`` as it is.

    Args:
        lake: what to read.
        memory: what queries may take together, such as ``50%`` or ``2GiB``; more goes through temporary files.

    Raises:
        LakeError: it is damaged.
    """
    manifest, release = lake.hold()
    paths = [lake.folder.address(name) for name in sorted(manifest.files())]
    connection = duckdb.connect(config={**_duckdb_settings(), "memory_limit": memory})
    weakref.finalize(connection, release)
    if lake.folder.filesystem is not None:
        connection.register_filesystem(lake.folder.filesystem)
    for table in SNAPSHOTS:
        connection.execute(f"CREATE VIEW {table} AS {_snapshot(lake, manifest, table)}")
    for table, name in (("measurements", "segment_measurements"), ("timings", "timings")):
        connection.execute(f"CREATE VIEW {name} AS {_segments(lake, manifest, table)}")
    for statements in view_files.view_statements():
        connection.execute(statements)
    connection.execute("SET allowed_paths = $1", [paths])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


class QueryResult:
    """The rows of a query; iterate once, they are fetched as they are asked for."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        """Run ``sql`` and fetch its first rows, so that what fails early fails before anything is printed."""
        self._connection = connection
        try:
            self._first = _interruptible(connection, lambda: connection.execute(sql).fetchmany(_ROWS_AT_ONCE))
            self.columns = tuple(str(column[0]) for column in connection.description or ())
        except duckdb.Error as error:
            raise QueryError(one_line(error)) from error

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows.

        Raises:
            QueryError: the query failed on its way.
        """
        rows = self._first
        while rows:
            yield from rows
            try:
                rows = _interruptible(self._connection, lambda: self._connection.fetchmany(_ROWS_AT_ONCE))
            except duckdb.Error as error:
                raise QueryError(one_line(error)) from error


def run_query(connection: duckdb.DuckDBPyConnection, sql: str) -> QueryResult:
    """Run one statement that only reads.

    Raises:
        QueryError: it is not one SELECT or EXPLAIN, it would write or read elsewhere, or it fails; one line.
    """
    check_reads_only(connection, sql)
    return QueryResult(connection, sql)


def stream(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Sequence[Any] = (),
    *,
    rows_a_batch: int = _ROWS_A_BATCH,
) -> pa.RecordBatchReader:
    """Return the rows of one statement that only reads, as Arrow batches that are made as they are asked for.

    The result is never in memory as a whole. Only one stream of a connection can be read at a time.

    Args:
        connection: what ``connect`` returned.
        sql: one SELECT, with a ``?`` for each parameter.
        parameters: the values.
        rows_a_batch: at most how many rows a batch has.

    Raises:
        QueryError: it is not one SELECT, it would write or read elsewhere, or it fails; one line.
    """
    check_reads_only(connection, sql)
    try:
        # A result of `execute` would be made a second time as Arrow.
        reader = connection.sql(sql, params=list(parameters)).to_arrow_reader(rows_a_batch)
    except duckdb.Error as error:
        raise QueryError(one_line(error)) from error
    if reader is None:
        raise QueryError("this statement has no rows to stream; use SELECT")
    return reader


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], list[tuple[Any, ...]]]) -> Any:
    """Return what ``work`` returns; a Ctrl-C stops it at once.

    Python handles signals in its main thread only, and there not before DuckDB returns to it, which a large join
    may not do for hours. So DuckDB works in another thread while this one waits.
    """
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def _chosen_lake() -> Path | str | None:
    from diode_store.settings import Settings

    return Settings.from_environment().lake_dir


def _duckdb_settings() -> dict[str, Any]:
    import os
    import tempfile

    return {
        # A variable of the calling Python program must not pass for a table.
        "python_enable_replacements": False,
        "autoload_known_extensions": False,
        # Results larger than memory go here, and away again; by default they would litter the working directory.
        "temp_directory": str(Path(tempfile.gettempdir()) / f"diode-{os.getpid()}"),
    }


def _snapshot(lake: Lake, manifest: Manifest, table: str) -> str:
    name = manifest.snapshots.get(table)
    return _parquet([lake.folder.address(name)]) if name else _nothing(SNAPSHOTS[table])


def _segments(lake: Lake, manifest: Manifest, table: str) -> str:
    """Return the SELECT of a fact table: whole segments in one scan, each with dropped measurements by itself."""
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
