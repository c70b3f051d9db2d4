"""A DuckDB in memory in which a sync makes new files of the cache."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from diode_store.cache.arrow_rows import arrow_schema
from diode_store.cache.cache import RECENT
from diode_store.cache.tables import NOW, SETTINGS, attach, sources
from diode_store.system.private_folder import SPILL, private_folder
from diode_store.values.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from diode_store.cache.cache import Reading
    from diode_store.cache.layout import Columns

MEMORY = "224MB"
"""Memory of a sync's DuckDB; larger steps spill to files."""
_ROWS_AT_ONCE = 50_000
_SMALL_BLOCK, _LARGE_BLOCK = 16_384, 262_144
"""Bytes of a block. Each column of each table has blocks of its own, and the recent file is copied by every sync."""


@contextlib.contextmanager
def opened(old: dict[str, Path], new: dict[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with files attached by kind; afterwards the new ones are whole on disk.

    Args:
        old: paths of published files.
        new: paths of files to write, which are made if they do not exist.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(private_folder(SPILL))
        settings = {**SETTINGS, "memory_limit": MEMORY, "temp_directory": str(folder.path)}
        connection = stack.enter_context(contextlib.closing(duckdb.connect(config=settings)))
        # A commit writes the file itself: what is not published yet needs no log.
        connection.execute("SET checkpoint_threshold = '0KB'")
        # DuckDB takes a ``?`` in the name of a folder for the end of the path when it writes.
        work = {kind: folder.path / path.name if "?" in str(path.resolve()) else path for kind, path in new.items()}
        for kind, path in work.items():
            if path != new[kind] and new[kind].exists():
                shutil.copyfile(new[kind], path)
            size = _SMALL_BLOCK if kind == RECENT else _LARGE_BLOCK
            how = "" if path.exists() else f" (BLOCK_SIZE {size})"
            connection.execute(f"ATTACH {quoted(str(path))} AS {kind}{how}")
        attach(connection, {kind: str(path) for kind, path in old.items()})
        yield connection
        for kind, path in work.items():
            connection.execute(f"CHECKPOINT {kind}")
            connection.execute(f"DETACH {kind}")
            if path != new[kind]:
                shutil.copyfile(path, new[kind])


def show_state(connection: duckdb.DuckDBPyConnection, reading: Reading, kinds: Iterable[str]) -> None:
    """Make a view of each table of a state in the schema ``NOW``."""
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {NOW}")
    for name, select in sources(reading, kinds).items():
        connection.execute(f"CREATE OR REPLACE VIEW {NOW}.{name} AS {select}")


def insert(
    connection: duckdb.DuckDBPyConnection, table: str, columns: Columns, batches: Iterable[pa.RecordBatch]
) -> None:
    """Insert Arrow batches, several at once, because each statement takes about a millisecond."""
    waiting: list[pa.RecordBatch] = []

    def flush() -> None:
        with as_table(connection, "batch", pa.Table.from_batches(waiting, arrow_schema(columns))):
            connection.execute(f"INSERT INTO {table} FROM batch")
        waiting.clear()

    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_AT_ONCE:
            flush()
            rows = 0
    if waiting:
        flush()


@contextlib.contextmanager
def as_table(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> Iterator[None]:
    """Give an Arrow table a name in SQL."""
    connection.register(name, table)
    try:
        yield
    finally:
        connection.unregister(name)
