"""Publish the timings of a warehouse to a Delta table, which many warehouses share.

A publication compares sets of measurements: those of the cache with those that the table has of this warehouse. It
appends what is missing, in commits of ``TIMINGS_A_COMMIT``. It replaces measurements whose marks changed, and deletes
those that the warehouse no longer has. Each commit is whole, and carries the next transaction number of the warehouse.
Delta refuses a number that another commit took meanwhile. Then the publisher compares again. So each timing is there
once, however many machines publish the warehouse at once, and wherever one of them was killed.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from diode_store.cache.cache import cache_of
from diode_store.cache.opening import open_source
from diode_store.cache.source import warehouse_uuid
from diode_store.cache.sync import sync
from diode_store.delta.contract import PARTITIONS
from diode_store.delta.table import (
    REWRITES,
    arrow_schema,
    errors_of_delta,
    find_table,
    numbered,
    open_or_create,
    refuse_other_files,
    table_url,
    writer_properties,
)
from diode_store.errors import DatabaseError, PublishedTableError
from diode_store.query.analytics import open_state
from diode_store.system.files import leave_note, read_bounded
from diode_store.system.private_folder import SPILL, private_folder
from diode_store.system.urls import is_published, only_readable
from diode_store.values.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
_CHOSEN = """
    SELECT $1 AS warehouse, * EXCLUDE (measurement_id) FROM published WHERE measurement_id IN (FROM chosen)
"""
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
        any_value(superseded_by) AS superseded_by,
        count(*) AS timing_count
    FROM published_table
    WHERE warehouse = $1
    GROUP BY measurement_uid
"""
_NEW = """
    CREATE OR REPLACE TEMP TABLE new AS
    SELECT id, timing_count, ((sum(timing_count) OVER (ORDER BY case_no, id) - 1) // $1)::BIGINT AS part
    FROM here ANTI JOIN there USING (measurement_uid, hardware, month)
"""
_PARTS = """
    SELECT part, count(*), sum(timing_count)::BIGINT FROM new GROUP BY part ORDER BY part
"""
# Fewer timings than before: one had a value that its column cannot hold, and was corrected.
_OTHER = """
    CREATE OR REPLACE TEMP TABLE other AS
    SELECT there.hardware, there.month, there.measurement_uid, here.id
    FROM there
    LEFT JOIN here USING (measurement_uid, hardware, month)
    WHERE here.id IS NULL OR here.timing_count <> there.timing_count
        OR here.flags IS DISTINCT FROM there.flags OR here.superseded_by IS DISTINCT FROM there.superseded_by
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
    if is_published(store_url):
        raise DatabaseError(only_readable(store_url))
    with open_source(store_url) as warehouse, warehouse.snapshot():
        uuid = warehouse_uuid(warehouse)
    table = find_table(address)
    if table is None:
        refuse_other_files(address)
        table = None if dry_run else open_or_create(address)
    report = PublishReport(address, uuid)
    for attempt in range(_ATTEMPTS):
        # The table is read before the warehouse: else what another machine published meanwhile would look deleted.
        _refresh(address, table)
        on_sync(sync(store_url, cache))
        try:
            report = _Publication(cache, table, report, on_progress).attempt(dry_run=dry_run)
        except _OvertakenError as overtaken:
            report = replace(overtaken.report, conflicts=report.conflicts + 1)
            time.sleep(random.uniform(0.0, min(_LONGEST_WAIT_S, 0.1 * 2**attempt)))  # noqa: S311 - no secret
        else:
            version = None if table is None else table.version()
            return replace(report, version=version, seconds=time.monotonic() - started)
    raise PublishedTableError(f"{address}: other writers overtook {_ATTEMPTS} commits; publish again when fewer write")


def _refresh(address: str, table: DeltaTable | None) -> None:
    """Read the newest commits of a table."""
    if table is not None:
        with errors_of_delta(address):
            table.update_incremental()


class _OvertakenError(Exception):
    """Another writer committed first."""

    def __init__(self, report: PublishReport) -> None:
        self.report = report
        """Number of measurements and commits before that."""


class _Publication:
    """One attempt to publish the state of a cache."""

    def __init__(
        self, cache: Cache, table: DeltaTable | None, report: PublishReport, on_progress: Callable[[float], None]
    ) -> None:
        self._cache = cache
        self._table = table
        self._report = report
        self._on_progress = on_progress
        self._connection: duckdb.DuckDBPyConnection
        self._last = 0
        """Number of the warehouse's last transaction that this attempt knows."""

    def attempt(self, *, dry_run: bool) -> PublishReport:
        """Publish, or only plan it.

        Raises:
            _OvertakenError: another writer was first; compare again.
            PublishedTableError: the table cannot be read or written.
        """
        from deltalake.exceptions import CommitFailedError

        reading, release = self._cache.hold()
        with ExitStack() as stack:
            stack.callback(release)
            state = reading.state
            if not state.files or state.warehouse != self._report.warehouse:
                raise _OvertakenError(self._report)  # a sync of another warehouse in the same folder
            self._last = self._transaction()
            if self._is_remembered(state.generation):
                return self._report
            spill = stack.enter_context(private_folder(SPILL))
            connection = open_state(reading, spill.path, memory=_MEMORY, views=("published",))
            self._connection = stack.enter_context(closing(connection))
            self._compare()
            if dry_run or self._table is None:
                return self._planned()
            try:
                self._write(self._table)
            except CommitFailedError:
                raise _OvertakenError(self._report) from None
        self._remember(state.generation)
        return self._report

    def _compare(self) -> None:
        """Find what the table lacks and what it has too much."""
        run = self._connection.execute
        run(_HERE)
        with errors_of_delta(self._report.table):
            there = arrow_schema().empty_table() if self._table is None else self._table.to_pyarrow_dataset()
            self._connection.register("published_table", there)
            run(_THERE, [self._report.warehouse])
        self._connection.unregister("published_table")
        run(_NEW, [TIMINGS_A_COMMIT])
        run(_OTHER)

    def _planned(self) -> PublishReport:
        parts = self._rows(_PARTS)
        added, timings = sum(part[1] for part in parts), sum(part[2] for part in parts)
        [(changed, removed)] = self._rows("SELECT count(id), count(*) - count(id) FROM other")
        return replace(self._report, added=added, added_timings=timings, changed=changed, removed=removed)

    def _write(self, table: DeltaTable) -> None:
        """Commit the difference; ``CommitFailedError`` if another writer was first."""
        while place := self._rows("SELECT hardware, month FROM other LIMIT 1"):
            self._replace(table, *place[0])
        for part, added, timings in self._rows(_PARTS):
            self._choose("SELECT id FROM new WHERE part = $1", part)
            self._write_chosen(table, self._next(), mode="append")
            self._count(added=added, added_timings=timings)
            self._on_progress(timings)

    def _replace(self, table: DeltaTable, hardware: str, month: str) -> None:
        """Replace some measurements of a device and month by what the warehouse has of them now."""
        rows = self._rows(
            "SELECT measurement_uid, id FROM other WHERE hardware = $1 AND month = $2 ORDER BY ALL LIMIT $3",
            [hardware, month, _UIDS_A_COMMIT],
        )
        uids = ", ".join(quoted(uid) for uid, _ in rows)
        predicate = (
            f"hardware = {quoted(hardware)} AND month = {quoted(month)} "
            f"AND warehouse = {quoted(self._report.warehouse)} AND measurement_uid IN ({uids})"
        )
        kept = [number for _, number in rows if number is not None]
        if kept:
            self._choose("SELECT unnest($1::BIGINT[]) AS id", kept)
            self._write_chosen(table, self._next(REWRITES), mode="overwrite", predicate=predicate)
        else:
            with errors_of_delta(self._report.table):
                table.delete(predicate, commit_properties=self._next(REWRITES), writer_properties=writer_properties())
                table.update_incremental()
        self._connection.execute(
            "DELETE FROM other WHERE measurement_uid IN (SELECT unnest($1::VARCHAR[]))", [[uid for uid, _ in rows]]
        )
        self._count(changed=len(kept), removed=len(rows) - len(kept))

    def _choose(self, select: str, value: Any) -> None:
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE chosen AS {select}", [value])

    def _write_chosen(self, table: DeltaTable, properties: CommitProperties, **how: Any) -> None:
        """Commit the timings of the chosen measurements."""
        from deltalake import write_deltalake

        reader = self._connection.sql(_CHOSEN, params=[self._report.warehouse]).to_arrow_reader(_ROWS_A_BATCH)
        with errors_of_delta(self._report.table):
            write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(arrow_schema(), _as_published(reader)),
                partition_by=list(PARTITIONS),
                writer_properties=writer_properties(),
                commit_properties=properties,
                **how,
            )
            table.update_incremental()

    def _next(self, *names: str) -> CommitProperties:
        """Return properties of the warehouse's next commit, which Delta refuses if another one was first."""
        from deltalake.exceptions import CommitFailedError

        if self._table is None or self._transaction() != self._last:  # the table was read again after the last commit
            raise CommitFailedError
        return numbered(self._table, self._report.warehouse, *names)

    def _transaction(self) -> int:
        return 0 if self._table is None else self._table.transaction_version(self._report.warehouse) or 0

    def _count(self, **more: int) -> None:
        """Note a commit."""
        now = {name: getattr(self._report, name) + number for name, number in {**more, "commits": 1}.items()}
        self._report = replace(self._report, **now)
        self._last += 1

    def _is_remembered(self, generation: int) -> bool:
        return self._table is not None and _marks(self._cache).get(self._key()) == self._mark(self._table, generation)

    def _remember(self, generation: int) -> None:
        """Note that the table has the cache's content, which saves the next publication the comparison."""
        if self._table is None:
            return
        found = _marks(self._cache) | {self._key(): self._mark(self._table, generation)}
        leave_note(self._cache.path / _REMEMBERED, json.dumps(found))

    def _key(self) -> str:
        return hashlib.blake2b(self._report.table.encode(), digest_size=8).hexdigest()

    def _mark(self, table: DeltaTable, generation: int) -> list[Any]:
        """Return what shows that neither the cache nor the table changed."""
        return [table.metadata().id, table.version(), generation]

    def _rows(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, parameters).fetchall()


def _marks(cache: Cache) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_bounded(cache.path / _REMEMBERED))
        return found if isinstance(found, dict) else {}
    return {}


def _as_published(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield batches with the table's columns and types; the cache's times are in UTC, without saying so."""
    for batch in reader:
        yield pa.Table.from_batches([batch]).select(arrow_schema().names).cast(arrow_schema()).to_batches()[0]
