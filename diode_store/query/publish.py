"""Publish the timings of a warehouse to a Delta table, which many warehouses share.

A publication compares sets of measurements: those of the cache with those that the table has of this warehouse. It
appends what is missing, a million timings a commit. It replaces measurements whose marks changed, and deletes those
that the warehouse no longer has. Each commit is whole, and carries the next transaction number of the warehouse. Delta
refuses a number that another commit took meanwhile. Then the publisher compares again. So each timing is there once,
however many machines publish the warehouse at once, and wherever one of them was killed.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from diode_store.cache.cache import cache_of
from diode_store.cache.sync import sync
from diode_store.delta.contract import PARTITIONS
from diode_store.delta.table import arrow_schema, errors_of_delta, find_table, literal, open_or_create, table_url
from diode_store.errors import PublishedTableError
from diode_store.query.analytics import open_cache
from diode_store.system.files import PRIVATE_FILE, read_bounded, whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import duckdb
    from deltalake import CommitProperties, DeltaTable

    from diode_store.cache.cache import Cache
    from diode_store.cache.sync import SyncReport

TIMINGS_A_COMMIT = 500_000
"""Timings of a commit, about: a kill loses no more work, and a gigabyte of memory holds them while they are written."""

_MEMORY = "400MB"
_ATTEMPTS = 100
_LONGEST_WAIT_S = 2.0
_ROWS_A_BATCH = 20_000
_UIDS_A_COMMIT = 10_000
_REMEMBERED = "published.json"
_SELECT = "SELECT {warehouse} AS warehouse, * EXCLUDE (measurement_id) FROM published WHERE measurement_id IN {ids}"
# Only measurements whose rows the view can show; others would be missing forever.
_HERE = """
    CREATE TEMP TABLE here AS
    SELECT
        m.id,
        m.case_no,
        m.timing_count,
        lower(hex(m.uid)) AS measurement_uid,
        h.name AS hardware,
        strftime(coalesce(m.measured_at, m.ingested_at), '%Y-%m') AS month,
        m.flags,
        lower(hex(m.superseded_by)) AS superseded_by
    FROM numbered_measurements AS m
    JOIN hardware AS h ON h.id = m.hardware_id
    SEMI JOIN environments AS e ON e.id = m.environment_id
    SEMI JOIN problems AS p ON p.id = m.problem_id
    WHERE m.timing_count > 0
"""
_THERE = """
    CREATE OR REPLACE TEMP TABLE there AS
    SELECT
        measurement_uid,
        any_value(hardware) AS hardware,
        any_value(month) AS month,
        any_value(flags) AS flags,
        any_value(superseded_by) AS superseded_by
    FROM published_table
    WHERE warehouse = $1
    GROUP BY measurement_uid
"""
_NEW = f"""
    CREATE OR REPLACE TEMP TABLE new AS
    SELECT id, timing_count, ((sum(timing_count) OVER (ORDER BY case_no, id) - 1) // {TIMINGS_A_COMMIT})::BIGINT AS part
    FROM here ANTI JOIN there USING (measurement_uid)
"""
# A measurement whose month or device is another one now is deleted there and new here.
_OTHER = """
    CREATE OR REPLACE TEMP TABLE other AS
    SELECT there.hardware, there.month, there.measurement_uid, here.id
    FROM there
    LEFT JOIN here USING (measurement_uid)
    WHERE here.id IS NULL OR here.flags IS DISTINCT FROM there.flags
        OR here.superseded_by IS DISTINCT FROM there.superseded_by
"""


@dataclass(frozen=True)
class PublishReport:
    """Report of a publication."""

    table: str
    """Address of the table."""
    warehouse: str
    """Uuid of the warehouse."""
    added: int = 0
    """Measurements that were missing in the table."""
    added_timings: int = 0
    changed: int = 0
    """Measurements whose marks changed."""
    removed: int = 0
    """Measurements that the warehouse no longer has."""
    commits: int = 0
    """Commits of this publication."""
    conflicts: int = 0
    """Commits that another writer overtook, and that were made again."""
    version: int | None = None
    """Version of the table afterwards; None for a table that a dry run did not make."""
    seconds: float = 0.0


def publish(
    store_url: str,
    url: str,
    *,
    dry_run: bool = False,
    on_sync: Callable[[SyncReport], None] = lambda _report: None,
    on_progress: Callable[[float], None] = lambda _timings: None,
) -> PublishReport:
    """Bring a published table up to date with a warehouse.

    Args:
        store_url: the warehouse: a URL, or the path of an SQLite file.
        url: the table: a URL of an object store, or a folder.
        dry_run: only report what would be published.
        on_sync: called with the report of the cache's sync.
        on_progress: called with the number of timings just written.

    Raises:
        PublishedTableError: the table cannot be read or written, or is not of this version.
        SchemaError: ``store_url`` has no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        CacheError: the cache cannot be written or read.
    """
    started = time.monotonic()
    address = table_url(url)
    cache = cache_of(store_url)
    on_sync(sync(store_url, cache))
    state = cache.state()
    if state is None or not state.files:
        return PublishReport(address, "", seconds=time.monotonic() - started)
    table = find_table(address) if dry_run else open_or_create(address)
    report = PublishReport(address, state.warehouse)
    if table is None or not _is_remembered(cache, address, _mark(table, state.warehouse, state.generation)):
        with closing(open_cache(cache, memory=_MEMORY, views=("published",))) as connection:
            report = _Publisher(connection, table, report, on_progress).publish(dry_run=dry_run)
        if table is not None and not dry_run:
            _remember(cache, address, _mark(table, state.warehouse, state.generation))
    version = None if table is None else table.version()
    return replace(report, version=version, seconds=time.monotonic() - started)


class _Publisher:
    """One publication of the cache that a connection reads."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: DeltaTable | None,
        report: PublishReport,
        on_progress: Callable[[float], None],
    ) -> None:
        self._connection = connection
        self._table = table
        self._report = report
        self._on_progress = on_progress
        connection.execute(_HERE)

    def publish(self, *, dry_run: bool) -> PublishReport:
        """Publish until the table has what the cache has.

        Raises:
            PublishedTableError: other writers overtook every attempt, or the table cannot be written.
        """
        from deltalake.exceptions import CommitFailedError

        for attempt in range(_ATTEMPTS):
            self._compare()
            if dry_run or self._table is None:
                return self._planned()
            try:
                self._write(self._table)
            except CommitFailedError:
                self._report = replace(self._report, conflicts=self._report.conflicts + 1)
                time.sleep(random.uniform(0.0, min(_LONGEST_WAIT_S, 0.1 * 2**attempt)))  # noqa: S311 - no secret
            else:
                return self._report
        raise PublishedTableError(
            f"{self._report.table}: other writers overtook {_ATTEMPTS} commits; publish again when fewer write"
        )

    def _compare(self) -> None:
        """Find what the table lacks and what it has too much."""
        if self._table is None:
            empty = arrow_schema().empty_table()
            self._connection.register("published_table", empty)
        else:
            with errors_of_delta(self._report.table):
                self._table.update_incremental()
                self._connection.register("published_table", self._table.to_pyarrow_dataset())
        with errors_of_delta(self._report.table):
            self._connection.execute(_THERE, [self._report.warehouse])
        self._connection.unregister("published_table")
        self._connection.execute(_NEW)
        self._connection.execute(_OTHER)

    def _planned(self) -> PublishReport:
        [(added, timings)] = self._rows("SELECT count(*), coalesce(sum(timing_count), 0)::BIGINT FROM new")
        [(changed, removed)] = self._rows("SELECT count(id), count(*) - count(id) FROM other")
        return replace(self._report, added=added, added_timings=timings, changed=changed, removed=removed)

    def _write(self, table: DeltaTable) -> None:
        """Commit the difference; ``CommitFailedError`` if another writer was first."""
        places = f"SELECT hardware, month, (row_number() OVER () - 1) // {_UIDS_A_COMMIT} AS part FROM other"
        for hardware, month, _part in self._rows(f"SELECT DISTINCT * FROM ({places}) ORDER BY ALL"):
            self._replace(table, hardware, month)
        for (part,) in self._rows("SELECT DISTINCT part FROM new ORDER BY part"):
            ids = f"(SELECT id FROM new WHERE part = {part})"
            [(added, timings)] = self._rows(
                f"SELECT count(*), coalesce(sum(timing_count), 0)::BIGINT FROM new WHERE part = {part}"
            )
            self._commit(table, ids, mode="append")
            self._count(added=added, added_timings=timings)
            self._on_progress(timings)

    def _replace(self, table: DeltaTable, hardware: str, month: str) -> None:
        """Replace some measurements of a device and month by what the warehouse has of them now."""
        rows = self._rows(
            "SELECT measurement_uid, id FROM other WHERE hardware = $1 AND month = $2 ORDER BY ALL LIMIT $3",
            [hardware, month, _UIDS_A_COMMIT],
        )
        uids = ", ".join(literal(uid) for uid, _ in rows)
        predicate = (
            f"hardware = {literal(hardware)} AND month = {literal(month)} "
            f"AND warehouse = {literal(self._report.warehouse)} AND measurement_uid IN ({uids})"
        )
        kept = [number for _, number in rows if number is not None]
        if kept:
            self._commit(table, f"({', '.join(map(str, kept))})", mode="overwrite", predicate=predicate)
        else:
            with errors_of_delta(self._report.table):
                table.delete(predicate, commit_properties=self._next(table), writer_properties=_writer())
        self._connection.execute(
            "DELETE FROM other WHERE measurement_uid IN (SELECT unnest($1::VARCHAR[]))", [[uid for uid, _ in rows]]
        )
        self._count(changed=len(kept), removed=len(rows) - len(kept))

    def _commit(self, table: DeltaTable, ids: str, **how: Any) -> None:
        """Write the timings of some measurements."""
        from deltalake import write_deltalake

        sql = _SELECT.format(warehouse=literal(self._report.warehouse), ids=ids)
        reader = self._connection.sql(sql).to_arrow_reader(_ROWS_A_BATCH)
        with errors_of_delta(self._report.table):
            write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(arrow_schema(), _as_published(reader)),
                partition_by=list(PARTITIONS),
                writer_properties=_writer(),
                commit_properties=self._next(table),
                **how,
            )
            table.update_incremental()

    def _next(self, table: DeltaTable) -> CommitProperties:
        """Return the warehouse's next transaction number, which Delta refuses if another commit has it."""
        from deltalake import CommitProperties, Transaction

        last = table.transaction_version(self._report.warehouse) or 0
        return CommitProperties(app_transactions=[Transaction(self._report.warehouse, last + 1)])

    def _count(self, **more: int) -> None:
        """Add to the numbers of the report, after a commit."""
        now = {name: getattr(self._report, name) + number for name, number in {**more, "commits": 1}.items()}
        self._report = replace(self._report, **now)

    def _rows(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, parameters).fetchall()


def _as_published(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield batches with the table's columns and types; the cache's times are in UTC, without saying so."""
    for batch in reader:
        yield pa.Table.from_batches([batch]).select(arrow_schema().names).cast(arrow_schema()).to_batches()[0]


def _writer() -> Any:
    from deltalake import WriterProperties

    return WriterProperties(compression="ZSTD")


def _mark(table: DeltaTable, warehouse: str, generation: int) -> list[Any]:
    """Return what shows that neither the cache nor the warehouse's rows in the table changed."""
    return [table.metadata().id, table.transaction_version(warehouse), generation]


def _is_remembered(cache: Cache, address: str, mark: list[Any]) -> bool:
    return _marks(cache.path).get(_key(address)) == mark


def _remember(cache: Cache, address: str, mark: list[Any]) -> None:
    """Note that the table has the cache's content, which saves the next publication the comparison."""
    with suppress(OSError), whole_file(cache.path / _REMEMBERED) as beside:
        beside.touch(PRIVATE_FILE)
        beside.write_text(json.dumps(_marks(cache.path) | {_key(address): mark}), encoding="utf-8")


def _marks(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_bounded(folder / _REMEMBERED))
        return found if isinstance(found, dict) else {}
    return {}


def _key(address: str) -> str:
    return hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
