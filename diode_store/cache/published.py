"""Read a published Delta table for the cache, as if it were a warehouse.

A published table has keys, and a warehouse has ids. The *catalog* is a DuckDB file beside the cache. It keeps the id of
each measurement, device, environment, problem and config, so that a later sync copies only what is new. The timings of
new measurements wait in Parquet files until the cache has them. A measurement that several warehouses published counts
once; it is flagged or superseded if one of them says so.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from diode_store.cache.arrow_rows import arrow_schema
from diode_store.cache.cache import CATALOG, is_full
from diode_store.cache.layout import BYTES, FACTS, INT, MARKS, SNAPSHOTS, TEXT
from diode_store.cache.source import BLOCK
from diode_store.cache.tables import SETTINGS, create
from diode_store.delta.address import Address
from diode_store.delta.metric_column import METRIC_VALUES, NEW_METRICS
from diode_store.delta.table import errors_of_delta, open_table
from diode_store.errors import CacheError, PublishedTableError, UnwritableCacheError, first_line
from diode_store.system.files import PRIVATE_FILE, barrier_to, wait_for_lock
from diode_store.system.private_folder import SPILL, private_folder
from diode_store.system.urls import redact
from diode_store.values.sql import quoted
from diode_store.values.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deltalake import DeltaTable

    from diode_store.cache.layout import Columns

_LOCK = "published.lock"
_WAITING = "published.{}.parquet"
_MEMORY = "200MB"
_ROWS_A_BATCH = 50_000
_COPIED_AT_ONCE = 4 * MIB
_KEYS = {name: f"{name.removesuffix('s')}_key" for name in ("hardware", "environments", "problems", "configs")}
"""Tables with a key, and the column of that key in the published table."""
_OTHER_NAMES = {
    "hardware": {"name": "hardware", "extra": "hardware_extra"},
    "environments": {"extra": "environment_extra"},
    "problems": {"extra": "problem_extra"},
    "configs": {"extra": "config_extra"},
    "timings": {"extra": "timing_extra"},
    "measurements": {"extra": "measurement_extra", "measured_at": "coalesce(f.measured_at, f.wrong_measured_at)"},
}
"""Columns that have another name in the published table, by table."""
_TABLES = {
    **{name: columns for name, columns in SNAPSHOTS.items() if name != MARKS},
    "measurements": FACTS["measurements"] | {"flags": TEXT, "superseded_by": BYTES},
    "warehouse": {"uuid": TEXT},
    # The rest is not in a warehouse: the state of the table, its files with the file of the timings that wait, the
    # measurements in each, and the new ones.
    "state": {"stamp": TEXT},
    "files": {"path": TEXT, "waiting": TEXT},
    "located": {"path": TEXT, "uid": BYTES, "warehouse": TEXT, "flags": TEXT, "superseded_by": TEXT},
    "pending": {"id": INT, "warehouse": TEXT},
}
"""Tables of the catalog."""
_WAITING_COLUMNS = {**FACTS["timings"], "metrics": TEXT}
_MARKS_NOW = """
    UPDATE measurements SET flags = now.flags, superseded_by = unhex(now.superseded_by)
    FROM (SELECT uid, max(flags) AS flags, max(superseded_by) AS superseded_by FROM located GROUP BY uid) AS now
    WHERE now.uid = measurements.uid
"""


def stamp_of_table(text: str) -> str:
    """Return what changes whenever the published table changes."""
    table = open_table(Address.parse(text).url)
    return _stamp(table)


def _stamp(table: DeltaTable) -> str:
    return f"{table.metadata().id}:{table.version()}"


@contextlib.contextmanager
def open_published(text: str, folder: Path, is_new: Callable[[], bool]) -> Iterator[PublishedRows]:
    """Open a published table for reading; after a sync without an error the catalog forgets the new timings.

    Args:
        text: address of the table; see ``Address``.
        folder: folder of the cache, which has the catalog.
        is_new: returns whether the cache needs every measurement; asked when no other process syncs.

    Raises:
        PublishedTableError: the table cannot be read.
        CacheError: the catalog cannot be read or written.
    """
    address = Address.parse(text)
    table = open_table(address.url)
    catalog = folder / CATALOG
    if barrier := barrier_to(folder):
        raise UnwritableCacheError(f"{folder} cannot be written: {barrier}; free some space or check its folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(folder / _LOCK), private_folder(SPILL) as spill:
            if is_new():
                _remove(catalog)
            with contextlib.closing(_catalog(catalog, spill.path)) as connection:
                rows = PublishedRows(connection, address, table, folder, spill.path)
                rows.refresh()
                yield rows
                rows.forget()
    except duckdb.Error as error:
        if is_full(error):
            raise UnwritableCacheError(f"{folder} cannot be written: {first_line(error)}; free some space") from error
        with contextlib.suppress(OSError):
            _remove(catalog)  # a new catalog makes a new cache
        raise CacheError(f"{catalog} was damaged and is removed: {first_line(error)}; try again") from error
    except OSError as error:
        raise UnwritableCacheError(
            f"{folder} cannot be written: {error.strerror or first_line(error)}; free some space or check its folder"
        ) from error


def _remove(catalog: Path) -> None:
    catalog.unlink(missing_ok=True)
    catalog.with_name(f"{CATALOG}.wal").unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes away from the catalog, which one process may open at a time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        wait_for_lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _catalog(path: Path, spill: Path) -> duckdb.DuckDBPyConnection:
    """Open the catalog, which is made if there is none."""
    connection = duckdb.connect(config={**SETTINGS, "memory_limit": _MEMORY, "temp_directory": str(spill)})
    connection.execute(f"ATTACH {quoted(str(path))} AS catalog")
    path.chmod(PRIVATE_FILE)
    connection.execute("USE catalog")
    if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'state'").fetchall():
        connection.execute("BEGIN")
        for name, columns in _TABLES.items():
            connection.execute(create(columns, name))
        # The ids of another catalog are other ids, so its cache is the cache of another warehouse.
        connection.execute("INSERT INTO warehouse VALUES (uuid()::VARCHAR)")
        connection.execute("COMMIT")
    return connection


class PublishedRows:
    """A published table as the rows of a warehouse; see ``diode_store.cache.source.WarehouseRows``."""

    file = None

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, address: Address, table: DeltaTable, folder: Path, spill: Path
    ) -> None:
        self.left_out: list[str] = []
        self._folder = folder
        self._spill = spill
        self._connection = connection
        self._address = address
        self._table = table

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """See ``WarehouseRows``; the catalog does not change after ``refresh``."""
        yield

    def rows(self, sql: str) -> Iterator[Any]:
        """See ``WarehouseRows``."""
        return iter(self._connection.execute(sql).fetchall())

    def batches(self, columns: Columns, sql: str) -> Iterator[pa.RecordBatch]:
        """See ``WarehouseRows``.

        Raises:
            CacheError: the cache asks for a measurement that it had before.
        """
        if columns is FACTS["measurements"] and list(self.rows(f"FROM ({sql}) ANTI JOIN pending USING (id) LIMIT 1")):
            raise CacheError("the cache lost measurements of the published table; run `diode cache rebuild`")
        for batch in self._connection.sql(sql).to_arrow_reader(_ROWS_A_BATCH):
            table = pa.Table.from_batches([batch]).rename_columns(list(columns))
            yield from table.cast(arrow_schema(columns)).to_batches()

    def tips(self, before: dict[str, str]) -> tuple[dict[str, str], dict[str, int]]:  # noqa: ARG002 - as for SQLite
        """See ``WarehouseRows``."""
        return {}, {}

    def blocks(self, table: str, key: str, first: int) -> dict[str, str]:
        """See ``WarehouseRows``."""
        sql = (
            f"SELECT id // {BLOCK}, count(*), bit_xor(hash(id, {key})) FROM {table} WHERE id >= {first * BLOCK} "
            "GROUP BY 1 ORDER BY 1"
        )
        return {str(block): f"{count}:{digest:016x}" for block, count, digest in self.rows(sql)}

    def refresh(self) -> None:
        """Bring the catalog up to date with the table, whose files never change: each is read once."""
        run = self._connection.execute
        if not run("SELECT 1 FROM state WHERE stamp = $1", [_stamp(self._table)]).fetchall():
            with errors_of_delta(self._address.url):
                dataset = self._table.to_pyarrow_dataset()
                files = {each.path: each for each in dataset.get_fragments(filter=self._address.condition)}
            self._require_rows(files)
            old = {path for (path,) in self.rows("SELECT path FROM files")}
            run("DELETE FROM files WHERE path NOT IN (SELECT unnest($1::VARCHAR[]))", [list(files)])
            run("DELETE FROM located WHERE path NOT IN (SELECT path FROM files)")
            for path in sorted(files.keys() - old):
                with self._copied(dataset, path) as copy, self._transaction():
                    self._take(path, copy, ds.get_partition_keys(files[path].partition_expression))
            with self._transaction():
                run("DELETE FROM measurements WHERE uid NOT IN (SELECT uid FROM located)")
                run(_MARKS_NOW)
                run("DELETE FROM state")
                run("INSERT INTO state VALUES ($1)", [_stamp(self._table)])
            run("CHECKPOINT catalog")
        self._show_waiting()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        yield
        self._connection.execute("COMMIT")

    def _show_waiting(self) -> None:
        """Make the views ``timings`` and ``metric_values``, and delete files that a killed sync has left."""
        waiting = [name for (name,) in self.rows("SELECT waiting FROM files WHERE waiting IS NOT NULL")]
        for path in self._folder.glob(_WAITING.format("*")):
            if path.name not in waiting:
                path.unlink(missing_ok=True)
        self._connection.execute(create(_WAITING_COLUMNS, "no_timings", "OR REPLACE TEMP TABLE"))
        names = ", ".join(quoted(str(self._folder / name)) for name in waiting)
        source = f"read_parquet([{names}])" if waiting else "no_timings"
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW timings AS FROM {source}")
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW metric_values AS {METRIC_VALUES}")

    def forget(self) -> None:
        """Drop the timings that wait: the cache has them now."""
        with self._transaction():
            self._connection.execute("DELETE FROM pending")
            self._connection.execute("UPDATE files SET waiting = NULL WHERE waiting IS NOT NULL")
        self._show_waiting()

    def _require_rows(self, files: dict[str, ds.Fragment]) -> None:
        """Refuse a mistyped device or month, which would look like a table without timings."""
        places = self._table.partitions()
        if files or not places or self._address.condition is None:
            return
        devices = sorted({str(each["hardware"]) for each in places})
        wanted = self._address.hardware
        if wanted is not None and wanted not in devices:
            raise PublishedTableError(
                f"{redact(self._address.url)} has no timings of {wanted}; it has: {', '.join(devices)}"
            )
        newest = max(str(each["month"]) for each in places if wanted in {None, each["hardware"]})
        raise PublishedTableError(
            f"{redact(self._address.url)} has no timings since {self._address.since}; the newest are of {newest}"
        )

    @contextlib.contextmanager
    def _copied(self, dataset: ds.Dataset, path: str) -> Iterator[Path]:
        """Copy a file of the table to this machine: DuckDB reads it five times as fast as Arrow's reader."""
        copy = self._spill / path.rpartition("/")[2]
        with copy.open("wb") as here:
            with errors_of_delta(self._address.url):
                there = dataset.filesystem.open_input_stream(path)
            with there:
                while True:
                    with errors_of_delta(self._address.url):
                        part = there.read(_COPIED_AT_ONCE)
                    if not part:
                        break
                    here.write(part)
        try:
            yield copy
        except duckdb.Error as error:
            if not _is_damaged(copy):
                raise
            raise PublishedTableError(
                f"{redact(self._address.url)}: {path} is damaged: {first_line(error)}; restore that file"
            ) from error
        copy.unlink()

    def _take(self, path: str, copy: Path, partition: dict[str, str]) -> None:
        """Give ids to the new measurements of a file and to what they name, and take their timings."""
        run = self._connection.execute
        values = ", ".join(f"{quoted(value)} AS {name}" for name, value in partition.items())
        file = f"read_parquet({quoted(str(copy))}, file_row_number := true)"
        run(f"CREATE OR REPLACE TEMP VIEW rows AS SELECT *, {values} FROM {file}")
        run("""
            CREATE OR REPLACE TEMP TABLE found AS
            SELECT
                unhex(measurement_uid) AS uid, measurement_uid, warehouse, min(file_row_number) AS place,
                any_value(flags) AS flags, any_value(superseded_by) AS superseded_by
            FROM rows GROUP BY measurement_uid, warehouse
        """)
        run("INSERT INTO files VALUES ($1, NULL)", [path])
        run("INSERT INTO located SELECT $1, uid, warehouse, flags, superseded_by FROM found", [path])
        # The rest of a measurement in two files is new too; the same measurement of another warehouse is not.
        run("""
            CREATE OR REPLACE TEMP TABLE new AS
            FROM found
            WHERE uid NOT IN (SELECT uid FROM measurements)
            QUALIFY row_number() OVER (PARTITION BY uid ORDER BY warehouse) = 1
        """)
        run("CREATE OR REPLACE TEMP TABLE first AS FROM rows WHERE file_row_number IN (SELECT place FROM new)")
        for table, key in _KEYS.items():
            columns = ", ".join(_published(table))
            run(f"""
                INSERT INTO {table}
                SELECT
                    row_number() OVER (ORDER BY {key}) + (SELECT coalesce(max(id), 0) FROM {table}),
                    unhex({key}),
                    {columns}
                FROM (SELECT DISTINCT ON ({key}) {key}, {columns} FROM {"rows" if table == "configs" else "first"})
                WHERE unhex({key}) NOT IN (SELECT key FROM {table})
            """)
        run(NEW_METRICS)
        self._take_measurements()
        self._keep_timings(path)

    def _take_measurements(self) -> None:
        run = self._connection.execute
        ids = {"uid": "new.uid", "hardware_id": "h.id", "environment_id": "e.id", "problem_id": "p.id"}
        columns = ", ".join(ids.get(c) or _of("measurements", c, "f.") for c in FACTS["measurements"] if c != "id")
        run(f"""
            INSERT INTO measurements
            SELECT
                row_number() OVER (ORDER BY place) + (SELECT coalesce(max(id), 0) FROM measurements),
                {columns}, NULL, NULL
            FROM first AS f
            JOIN new ON new.place = f.file_row_number
            JOIN hardware AS h ON h.key = unhex(f.hardware_key)
            JOIN environments AS e ON e.key = unhex(f.environment_key)
            JOIN problems AS p ON p.key = unhex(f.problem_key)
        """)
        run("INSERT INTO pending SELECT id, warehouse FROM measurements JOIN new USING (uid)")

    def _keep_timings(self, path: str) -> None:
        """Write the timings of new measurements to a file of their own."""
        run = self._connection.execute
        run("""
            CREATE OR REPLACE TEMP TABLE kept AS
            SELECT pending.id, found.measurement_uid, found.warehouse
            FROM pending JOIN measurements USING (id) JOIN found USING (uid)
            WHERE found.warehouse = pending.warehouse
        """)
        if not run("FROM kept LIMIT 1").fetchall():
            return
        columns = ", ".join(
            f"t.{there} AS {here}"
            for here, there in zip(list(FACTS["timings"])[2:], _published("timings"), strict=True)
        )
        waiting = self._folder / _WAITING.format(secrets.token_hex(6))
        select = f"""
            SELECT kept.id AS measurement_id, c.id AS config_id, {columns}, t.metrics
            FROM rows AS t
            JOIN kept USING (measurement_uid, warehouse)
            JOIN (SELECT id, lower(hex(key)) AS config_key FROM configs) AS c USING (config_key)
        """
        run(f"COPY ({select}) TO {quoted(str(waiting))} (FORMAT parquet, COMPRESSION zstd)")
        waiting.chmod(PRIVATE_FILE)
        run("UPDATE files SET waiting = $1 WHERE path = $2", [waiting.name, path])


def _is_damaged(file: Path) -> bool:
    """Return whether a Parquet file cannot be read; not every error of DuckDB names the file."""
    try:
        with duckdb.connect(config=SETTINGS) as connection:
            # Nothing is fetched: Python has no type for some of the values without further packages.
            connection.execute(f"CREATE TABLE most AS SELECT max(COLUMNS(*)) FROM read_parquet({quoted(str(file))})")
    except duckdb.Error:
        return True
    return False


def _published(table: str) -> list[str]:
    """Return the columns of the published table that hold a table's columns, without its ids and keys."""
    columns = (FACTS | SNAPSHOTS)[table]
    return [_of(table, name) for name in columns if name not in {"id", "key", "measurement_id", "config_id"}]


def _of(table: str, column: str, prefix: str = "") -> str:
    return _OTHER_NAMES[table].get(column, prefix + column)
