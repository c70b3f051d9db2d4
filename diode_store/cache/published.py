"""Read a published Delta table for the cache, as if it were a warehouse.

A published table has keys, and a warehouse has ids. The *catalog*, a DuckDB file beside the cache, keeps the id of each
measurement, device, environment, problem and config, so that a later sync copies only what is new. It holds the timings
of new measurements until the cache has them. A measurement that several warehouses published counts once.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from diode_store.cache.arrow_rows import arrow_schema
from diode_store.cache.layout import BYTES, FACTS, INT, MARKS, SNAPSHOTS, TEXT
from diode_store.cache.source import BLOCK
from diode_store.cache.tables import SETTINGS, create, quoted
from diode_store.delta.table import errors_of_delta, literal, open_table, table_url
from diode_store.errors import CacheError, PublishedTableError, first_line
from diode_store.system.files import PRIVATE_FILE, wait_for_lock
from diode_store.system.private_folder import SPILL, private_folder
from diode_store.system.urls import redact

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltalake import DeltaTable

    from diode_store.cache.layout import Columns

_CATALOG = "published.catalog"
_LOCK = "published.lock"
_MEMORY = "400MB"
_ROWS_A_BATCH = 50_000
_FILTERS = ("hardware", "since")
_KEYS = {
    "hardware": "hardware_key",
    "environments": "environment_key",
    "problems": "problem_key",
    "configs": "config_key",
}
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
_THERE = """
    CREATE TEMP TABLE there AS
    SELECT
        measurement_uid,
        unhex(measurement_uid) AS uid,
        min(warehouse) AS warehouse,
        arg_min_null(flags, warehouse) AS flags,
        unhex(arg_min_null(superseded_by, warehouse)) AS superseded_by
    FROM chosen
    GROUP BY measurement_uid
"""


@dataclass(frozen=True)
class Address:
    """Address of a published table, and the part of it that is wanted."""

    url: str
    hardware: str | None = None
    """Only this device, by its whole name."""
    since: str | None = None
    """Only this month, such as ``2026-11``, and later ones."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse a URL or folder that may end with ``?hardware=NAME&since=MONTH``.

        Raises:
            PublishedTableError: it has another parameter, or another scheme.
        """
        url, _, query = text.partition("?")
        found = dict(parse_qsl(query, keep_blank_values=True))
        wrong = next((name for name in found if name not in _FILTERS), None)
        if wrong is not None:
            known = " and ".join(_FILTERS)
            raise PublishedTableError(f"{redact(text)}: unknown parameter {wrong}; there are {known}")
        return cls(table_url(url), found.get("hardware"), found.get("since"))

    def __str__(self) -> str:
        """Return the address as ``parse`` reads it."""
        named = {name: value for name in _FILTERS if (value := getattr(self, name)) is not None}
        return f"{self.url}?{urlencode(named)}" if named else self.url


def stamp_of_table(text: str) -> str:
    """Return what changes whenever the published table changes."""
    table = open_table(Address.parse(text).url)
    return _stamp(table)


def _stamp(table: DeltaTable) -> str:
    return f"{table.metadata().id}:{table.version()}"


@contextlib.contextmanager
def open_published(text: str, folder: Path, *, anew: bool) -> Iterator[PublishedRows]:
    """Open a published table for reading; after a sync without an error the catalog forgets the new timings.

    Args:
        text: address of the table; see ``Address``.
        folder: folder of the cache, which has the catalog.
        anew: whether the cache needs every measurement.

    Raises:
        PublishedTableError: the table cannot be read.
        CacheError: the catalog cannot be read or written.
    """
    address = Address.parse(text)
    table = open_table(address.url)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(folder / _LOCK), private_folder(SPILL) as spill:
            if anew:
                (folder / _CATALOG).unlink(missing_ok=True)
            with contextlib.closing(_catalog(folder / _CATALOG, spill.path, str(address))) as connection:
                rows = PublishedRows(connection, address, table)
                rows.refresh()
                yield rows
                for name in ("timings", "pending"):
                    connection.execute(f"DELETE FROM {name}")
    except duckdb.Error as error:
        raise CacheError(f"{folder}: {first_line(error)}; run `diode cache rebuild`") from error
    except OSError as error:
        raise CacheError(f"{folder} cannot be written: {error.strerror or first_line(error)}") from error


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes away from the catalog, which one process may open at a time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        wait_for_lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _catalog(path: Path, spill: Path, uuid: str) -> duckdb.DuckDBPyConnection:
    """Open the catalog, which has the tables of a warehouse; the timings are those of ``pending`` measurements."""
    connection = duckdb.connect(config={**SETTINGS, "memory_limit": _MEMORY, "temp_directory": str(spill)})
    connection.execute(f"ATTACH {quoted(str(path))} AS catalog")
    path.chmod(PRIVATE_FILE)
    connection.execute("USE catalog")
    if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'state'").fetchall():
        tables = {name: columns for name, columns in {**SNAPSHOTS, **FACTS}.items() if name != MARKS}
        tables["measurements"] = FACTS["measurements"] | {"flags": TEXT, "superseded_by": BYTES}
        tables |= {
            "state": {"stamp": TEXT},
            "files": {"path": TEXT},
            "pending": {"id": INT},
            "warehouse": {"uuid": TEXT},
        }
        connection.execute("BEGIN")
        for name, columns in tables.items():
            connection.execute(create(columns, name))
        connection.execute("INSERT INTO warehouse VALUES ($1)", [uuid])
        connection.execute("COMMIT")
    return connection


class PublishedRows:
    """A published table as the rows of a warehouse; see ``diode_store.cache.source.WarehouseRows``."""

    file = None

    def __init__(self, connection: duckdb.DuckDBPyConnection, address: Address, table: DeltaTable) -> None:
        self.left_out: list[str] = []
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
            yield from pa.Table.from_batches([batch]).cast(arrow_schema(columns)).to_batches()

    def blocks(self, table: str, key: str) -> dict[str, str]:
        """See ``WarehouseRows``."""
        sql = f"SELECT id // {BLOCK}, count(*), bit_xor(hash(id, {key})) FROM {table} GROUP BY 1 ORDER BY 1"
        return {str(block): f"{count}:{digest:016x}" for block, count, digest in self.rows(sql)}

    def refresh(self) -> None:
        """Bring the catalog up to date with the table."""
        run = self._connection.execute
        if run("SELECT 1 FROM state WHERE stamp = $1", [_stamp(self._table)]).fetchall():
            return
        with errors_of_delta(self._address.url):
            dataset = self._table.to_pyarrow_dataset()
        run("BEGIN")
        self._choose(dataset)
        run(_THERE)
        run("DELETE FROM measurements WHERE uid NOT IN (SELECT uid FROM there)")
        run("""
            UPDATE measurements SET flags = there.flags, superseded_by = there.superseded_by
            FROM there WHERE there.uid = measurements.uid
        """)
        run("CREATE TEMP TABLE new AS FROM there ANTI JOIN measurements USING (uid)")
        self._choose(self._added(dataset))
        self._take_new()
        run("DELETE FROM state")
        run("INSERT INTO state VALUES ($1)", [_stamp(self._table)])
        run("COMMIT")
        self._connection.unregister("published_table")

    def _choose(self, dataset: ds.Dataset) -> None:
        """Make the view of the wanted rows; DuckDB hands its conditions to the reader, which skips other files."""
        wanted = {"hardware = ": self._address.hardware, "month >= ": self._address.since}
        conditions = [condition + literal(value) for condition, value in wanted.items() if value is not None]
        self._connection.register("published_table", dataset)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW chosen AS FROM published_table {where}")

    def _added(self, dataset: ds.Dataset) -> ds.Dataset:
        """Return the files of a table that the catalog has not seen, and note which files there are."""
        files = {each.path: each for each in dataset.get_fragments()}
        old = {path for (path,) in self.rows("SELECT path FROM files")}
        self._connection.execute("DELETE FROM files")
        self._connection.execute("INSERT INTO files SELECT unnest($1::VARCHAR[])", [list(files)])
        added = [file for path, file in files.items() if path not in old]
        # The cache's times are in UTC, without saying so.
        schema = pa.schema(
            [(f.name, pa.timestamp("us") if pa.types.is_timestamp(f.type) else f.type) for f in dataset.schema]
        )
        return ds.FileSystemDataset(added, schema, dataset.format, dataset.filesystem)

    def _take_new(self) -> None:
        """Give ids to new measurements and to what they name, and take their timings."""
        run = self._connection.execute
        of_timings = [*_published("configs"), "config_key", *_published("timings")]
        run(f"""
            CREATE TEMP TABLE fresh AS
            SELECT DISTINCT ON (measurement_uid) * EXCLUDE ({", ".join(of_timings)})
            FROM chosen SEMI JOIN new USING (measurement_uid, warehouse)
        """)
        for table, key in _KEYS.items():
            columns = ", ".join(_published(table))
            run(f"""
                INSERT INTO {table}
                SELECT
                    row_number() OVER (ORDER BY {key}) + (SELECT coalesce(max(id), 0) FROM {table}),
                    unhex({key}),
                    {columns}
                FROM (SELECT DISTINCT ON ({key}) {key}, {columns} FROM {"chosen" if table == "configs" else "fresh"})
                WHERE unhex({key}) NOT IN (SELECT key FROM {table})
            """)
        ids = {"uid": "new.uid", "hardware_id": "h.id", "environment_id": "e.id", "problem_id": "p.id"}
        columns = ", ".join(ids.get(c) or _of("measurements", c, "f.") for c in FACTS["measurements"] if c != "id")
        run(f"""
            INSERT INTO measurements
            SELECT
                row_number() OVER (ORDER BY f.ingested_at, uid) + (SELECT coalesce(max(id), 0) FROM measurements),
                {columns}, new.flags, new.superseded_by
            FROM fresh AS f
            JOIN new USING (measurement_uid)
            JOIN hardware AS h ON h.key = unhex(f.hardware_key)
            JOIN environments AS e ON e.key = unhex(f.environment_key)
            JOIN problems AS p ON p.key = unhex(f.problem_key)
        """)
        run("INSERT INTO pending SELECT id FROM measurements SEMI JOIN new USING (uid)")
        columns = ", ".join(f"t.{column}" for column in _published("timings"))
        run(f"""
            INSERT INTO timings
            SELECT m.id, c.id, {columns}
            FROM chosen AS t
            JOIN (SELECT id, measurement_uid, warehouse FROM measurements JOIN new USING (uid)) AS m
                USING (measurement_uid, warehouse)
            JOIN (SELECT id, lower(hex(key)) AS config_key FROM configs) AS c USING (config_key)
        """)


def _published(table: str) -> list[str]:
    """Return the columns of the published table that hold a table's columns, without its ids and keys."""
    columns = (FACTS | SNAPSHOTS)[table]
    return [_of(table, name) for name in columns if name not in {"id", "key", "measurement_id", "config_id"}]


def _of(table: str, column: str, prefix: str = "") -> str:
    return _OTHER_NAMES[table].get(column, prefix + column)
