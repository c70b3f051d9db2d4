"""Bring the lake up to date with the warehouse.

A sync compares *sets* of measurements, never the highest id: of two PostgreSQL transactions, the one with the lower id
may commit last. Equal digests of both sets end the sync at once, as before most queries. Only a sync with work to do
loads Arrow, and it reads only the blocks of ids whose digests differ.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from diode_store.errors import LakeError
from diode_store.lake.lake import TIMINGS_PER_SEGMENT, DamagedLakeError, Lake, Manifest, Segment
from diode_store.lake.layout import REVISION, SNAPSHOTS
from diode_store.lake.opening import open_source
from diode_store.lake.source import (
    fingerprints,
    highest_id,
    measurement_blocks,
    select,
    warehouse_uuid,
)
from diode_store.lake.stamp import is_remembered, remember, stamp_of
from diode_store.system.urls import sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from diode_store.lake.source import WarehouseRows


@dataclass(frozen=True)
class SyncReport:
    """Report of a sync."""

    measurements: int
    """Measurements in the lake now."""
    timings: int
    """Timings in the lake now."""
    added: int
    """Copied measurements."""
    added_timings: int
    dropped: int
    """Dropped measurements, which the warehouse no longer has."""
    merged: int
    """Small segments merged into larger ones."""
    segments: int
    rebuilt: str | None
    """Reason for rebuilding the lake, if it was rebuilt."""
    seconds: float
    left_out: tuple[str, ...] = ()
    """A line for each row that the lake lacks because its column cannot hold a value."""


def sync(
    source: str | sa.Engine,
    lake: Lake,
    *,
    rebuild: bool = False,
    on_progress: Callable[[float], None] = lambda _timings: None,
) -> SyncReport:
    """Copy missing measurements to ``lake`` and drop those that the warehouse no longer has.

    Args:
        source: the warehouse: its URL, the path of an SQLite file, or an engine.
        lake: the lake to fill.
        rebuild: True to copy everything again.
        on_progress: called with the number of newly copied timings.

    Raises:
        SchemaError: there is no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        LakeError: the lake cannot be written.
    """
    started = time.monotonic()
    url = source if isinstance(source, str) else source.url.render_as_string(hide_password=False)
    file = sqlite_path(url)
    stamp = None if file is None or lake.folder.path is None else stamp_of(file)
    present = None if rebuild else _usable(lake)
    if present is None or not is_remembered(lake, present.generation, stamp):
        with open_source(url) as warehouse:
            if present is None or not holds_the_same(present, warehouse):
                with lake.lock():
                    return _Sync(warehouse, lake, on_progress).run(started, rebuild=rebuild)
        remember(lake, present.generation, stamp)
    if lake.has_expired(present):
        _tidy(lake)
    return _report(present, started)


def _usable(lake: Lake) -> Manifest | None:
    """Return the lake's manifest, unless the lake must be rebuilt."""
    try:
        manifest = lake.manifest()
    except DamagedLakeError:
        return None
    return None if manifest is None or manifest.revision != REVISION or lake.damage(manifest) else manifest


def holds_the_same(manifest: Manifest, warehouse: WarehouseRows) -> bool:
    """Return whether there is nothing to do."""
    with warehouse.snapshot():
        # A new measurement shows in the highest id, which saves computing the digests twice.
        if highest_id(warehouse) > max((segment.last_id for segment in manifest.segments), default=-1):
            return False
        if manifest.warehouse != warehouse_uuid(warehouse) or manifest.fingerprints != fingerprints(warehouse):
            return False
        return manifest.blocks == measurement_blocks(warehouse)


def _tidy(lake: Lake) -> None:
    """Delete files without readers; a process that holds the lake's lock does this itself."""
    try:
        with lake.lock(timeout_s=0):
            present = lake.manifest()
            if present is not None:
                lake.sweep(present)
    except LakeError:
        return


class _Sync:
    """One sync, which holds the lock."""

    def __init__(self, warehouse: WarehouseRows, lake: Lake, on_progress: Callable[[float], None]) -> None:
        self._warehouse = warehouse
        self._lake = lake
        self._on_progress = on_progress
        self._generation = 0

    def run(self, started: float, *, rebuild: bool) -> SyncReport:
        """Bring the lake up to date and return the report."""
        from diode_store.lake.compact import merge_small
        from diode_store.lake.diff import compare

        before, instead_of, rebuilt = self._base(rebuild=rebuild)
        synced_at = time.time()
        with self._warehouse.snapshot():
            prints, blocks = fingerprints(self._warehouse), measurement_blocks(self._warehouse)
            difference = compare(self._warehouse, self._lake, before, blocks)
        copied = self._copy(difference.missing)
        present = [*difference.segments, *copied]
        segments, merged = merge_small(self._lake, present, self._generation, TIMINGS_PER_SEGMENT)
        after = replace(
            before,
            generation=self._generation,
            fingerprints=prints,
            blocks=blocks,
            segments=tuple(segments),
            snapshots=self._snapshots(before, prints),
            synced_at=synced_at,
        )
        after = self._lake.advance(before, after, instead_of=instead_of)
        return _report(
            after,
            started,
            left_out=tuple(self._warehouse.left_out),
            added=sum(s.measurement_count for s in copied),
            added_timings=sum(s.timing_count for s in copied),
            dropped=difference.dropped,
            merged=merged,
            rebuilt=rebuilt,
        )

    def _base(self, *, rebuild: bool) -> tuple[Manifest, int, str | None]:
        """Return the state to continue from, the generation it replaces, and why the lake is rebuilt, if it is."""
        with self._warehouse.snapshot():
            uuid = warehouse_uuid(self._warehouse)
        try:
            manifest = self._lake.manifest()
        except DamagedLakeError as error:
            self._generation = self._lake.next_generation(None)
            return Manifest(uuid, REVISION), 0, str(error).partition(";")[0]
        self._generation = self._lake.next_generation(manifest)
        if manifest is None:
            return Manifest(uuid, REVISION), 0, None
        reason = "it was asked for" if rebuild else _why_unusable(manifest, uuid, self._lake)
        if reason is None:
            return manifest, manifest.generation, None
        there = self._lake.folder.sizes()
        now = time.time()
        retired = {name: (now, manifest.generation) for name in manifest.files() if name in there}
        fresh = Manifest(uuid, REVISION, manifest.generation, retired={**manifest.retired, **retired})
        return fresh, manifest.generation, reason

    def _copy(self, missing: Any) -> list[Segment]:
        """Write the measurements with the ids ``missing`` to new segments."""
        if not len(missing):
            return []
        from diode_store.lake.copy import CopyJob
        from diode_store.lake.worker import copy_shared

        copied = []
        for segment in copy_shared(
            self._warehouse, self._lake, CopyJob(missing, self._generation, TIMINGS_PER_SEGMENT)
        ):
            self._on_progress(segment.timing_count)
            copied.append(segment)
        return sorted(copied, key=lambda segment: segment.first_id)

    def _snapshots(self, before: Manifest, prints: dict[str, str]) -> dict[str, str]:
        """Write the changed snapshots, after the facts, so that the snapshots have everything the facts refer to."""
        from diode_store.lake.parquet_files import table_of, write

        files = dict(before.snapshots)
        changed = {
            table: columns
            for table, columns in SNAPSHOTS.items()
            if table not in files or before.fingerprints.get(table) != prints[table]
        }
        with self._warehouse.snapshot():
            found = {
                t: table_of(columns, self._warehouse.batches(columns, select(t))) for t, columns in changed.items()
            }
        for table, rows in found.items():
            files[table] = self._lake.new_name(self._generation, table)
            write(self._lake.folder, files[table], SNAPSHOTS[table], rows)
        return files


def _why_unusable(manifest: Manifest, uuid: str, lake: Lake) -> str | None:
    if manifest.warehouse != uuid:
        return "it was the lake of another warehouse"
    if manifest.revision != REVISION:
        return f"it was made at schema revision {manifest.revision}"
    return lake.damage(manifest)


def _report(manifest: Manifest, started: float, *, left_out: tuple[str, ...] = (), **what: Any) -> SyncReport:
    return SyncReport(
        measurements=sum(s.measurement_count for s in manifest.segments),
        timings=sum(s.timing_count for s in manifest.segments),
        segments=len(manifest.segments),
        seconds=time.monotonic() - started,
        left_out=(*(line for segment in manifest.segments for line in segment.left_out), *left_out),
        **{"added": 0, "added_timings": 0, "dropped": 0, "merged": 0, "rebuilt": None, **what},
    )
