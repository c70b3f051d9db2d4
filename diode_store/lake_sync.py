"""Bring the lake up to date with the warehouse.

A sync compares *sets* of measurements, never the highest id: of two PostgreSQL transactions the one with the lower
id may commit last. Equal digests of both sets end it at once, which is what happens before most queries; only a
sync with something to do loads Arrow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from diode_store.batching import in_batches
from diode_store.errors import LakeError
from diode_store.lake import Lake, Manifest, Segment, has_expired
from diode_store.lake_source import fingerprints, measurement_uids, open_source, select, warehouse_uuid
from diode_store.lake_tables import FACTS, REVISION, SNAPSHOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

    from diode_store.lake_source import Source

TIMINGS_PER_SEGMENT = 1_000_000
SMALL_SEGMENT = 250_000
"""Segments with fewer timings are merged once there are ``TOO_MANY_SMALL`` of them."""
TOO_MANY_SMALL = 8


@dataclass(frozen=True)
class SyncReport:
    """What a sync did."""

    measurements: int
    """Measurements that the lake holds now."""
    timings: int
    """Timings that it holds now."""
    added: int
    """Measurements copied."""
    added_timings: int
    dropped: int
    """Measurements that left, because the warehouse no longer has them."""
    merged: int
    """Small segments that became part of larger ones."""
    segments: int
    rebuilt: str | None
    """Why the lake was made anew, if it was."""
    seconds: float


def sync(
    source: str | sa.Engine,
    lake: Lake,
    *,
    rebuild: bool = False,
    on_progress: Callable[[float], None] = lambda _timings: None,
) -> SyncReport:
    """Copy what ``lake`` lacks and drop what the warehouse no longer has.

    Args:
        source: the warehouse: its URL, the path of an SQLite file, or an engine.
        lake: where to copy to.
        rebuild: copy everything anew.
        on_progress: called with the number of timings just copied.

    Raises:
        SchemaError: there is no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        LakeError: the lake cannot be written.
    """
    started = time.monotonic()
    url = source if isinstance(source, str) else source.url.render_as_string(hide_password=False)
    with open_source(url) as warehouse:
        present = None if rebuild else _up_to_date(warehouse, lake)
        if present is not None and not has_expired(present):
            return _report(present, started)
        with lake.lock():
            return _Sync(warehouse, lake, on_progress).run(started, rebuild=rebuild)


def _up_to_date(warehouse: Source, lake: Lake) -> Manifest | None:
    """Return the lake's manifest if there is nothing to do."""
    try:
        manifest = lake.manifest()
    except LakeError:
        return None
    if manifest is None or lake.damage(manifest):
        return None
    with warehouse.snapshot():
        if manifest.revision != REVISION or manifest.warehouse != warehouse_uuid(warehouse):
            return None
        return manifest if manifest.fingerprints == fingerprints(warehouse) else None


class _Sync:
    """One sync that has the lock."""

    def __init__(self, warehouse: Source, lake: Lake, on_progress: Callable[[float], None]) -> None:
        self._warehouse = warehouse
        self._lake = lake
        self._on_progress = on_progress
        self._next_number = 1

    def run(self, started: float, *, rebuild: bool) -> SyncReport:
        """Bring the lake up to date and say what that took."""
        before, rebuilt = self._base(rebuild=rebuild)
        before = self._lake.sweep(before)
        synced_at = time.time()
        with self._warehouse.snapshot():
            prints = fingerprints(self._warehouse)
            wanted = dict(measurement_uids(self._warehouse))
        present, dropped = self._drop(before.segments, wanted)
        copied = list(self._copy(wanted, {number for ids in present.values() for number in ids}))
        segments, merged = self._merge([*present, *copied])
        after = replace(
            before,
            fingerprints=prints,
            segments=tuple(segments),
            snapshots=self._snapshots(before, prints),
            synced_at=synced_at,
            next_number=self._next_number,
        )
        self._publish(before, after)
        return _report(
            after,
            started,
            added=sum(s.measurement_count for s in copied),
            added_timings=sum(s.timing_count for s in copied),
            dropped=dropped,
            merged=merged,
            rebuilt=rebuilt,
        )

    def _base(self, *, rebuild: bool) -> tuple[Manifest, str | None]:
        """Return the state to go on from, and why it is a fresh one although there was another."""
        with self._warehouse.snapshot():
            uuid = warehouse_uuid(self._warehouse)
        self._next_number = self._lake.highest_number() + 1
        fresh = Manifest(uuid, REVISION)
        try:
            manifest = self._lake.manifest()
        except LakeError as error:
            return fresh, str(error).partition(";")[0]
        if manifest is None:
            return fresh, None
        reason = "it was asked for" if rebuild else _why_unusable(manifest, uuid, self._lake)
        if reason is None:
            self._next_number = max(self._next_number, manifest.next_number)
            return manifest, None
        now = time.time()
        retired = {name: now for name in manifest.files() if (self._lake.path / name).exists()}
        return replace(fresh, retired={**manifest.retired, **retired}), reason

    def _drop(self, segments: tuple[Segment, ...], wanted: dict[int, bytes]) -> tuple[dict[Segment, set[int]], int]:
        """Drop what the warehouse no longer has; return the segments left with their measurements' ids."""
        left: dict[Segment, set[int]] = {}
        dropped = 0
        for segment in segments:
            held = self._held(segment)
            gone = {number for number, uid in held.items() if wanted.get(number) != uid}
            dropped += len(gone)
            if len(gone) < len(held):
                left[self._without(segment, gone)] = held.keys() - gone
        return left, dropped

    def _held(self, segment: Segment) -> dict[int, bytes]:
        from diode_store.lake_files import read

        table = read(self._lake.path / segment.measurements, ("id", "uid"))
        pairs = zip(table["id"].to_pylist(), table["uid"].to_pylist(), strict=True)
        dropped = set(segment.dropped)
        return {number: uid for number, uid in pairs if number not in dropped}

    def _without(self, segment: Segment, gone: set[int]) -> Segment:
        if not gone:
            return segment
        from diode_store.lake_files import count_timings

        return replace(
            segment,
            measurement_count=segment.measurement_count - len(gone),
            timing_count=segment.timing_count - count_timings(self._lake.path / segment.timings, gone),
            dropped=tuple(sorted({*segment.dropped, *gone})),
        )

    def _copy(self, wanted: dict[int, bytes], present: set[int]) -> Iterator[Segment]:
        """Write what is missing to new segments of about ``TIMINGS_PER_SEGMENT`` timings."""
        runs = _runs(wanted, present)
        for chunk in self._chunks(runs):
            with self._warehouse.snapshot():
                segment = _segment(*(self._write_fact(table, chunk) for table in FACTS))
            # All of it may have been deleted since we looked.
            if segment.measurement_count:
                self._on_progress(segment.timing_count)
                yield segment

    def _chunks(self, runs: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Cut ``runs`` of ids into lists that stand for about ``TIMINGS_PER_SEGMENT`` timings each."""
        chunk: list[tuple[int, int]] = []
        timings = 0
        for run in runs:
            start = run[0]
            for number, count in self._timing_counts(run):
                timings += count
                if timings >= TIMINGS_PER_SEGMENT:
                    yield [*chunk, (start, number)]
                    chunk, timings, start = [], 0, number + 1
            if start <= run[1]:
                chunk.append((start, run[1]))
        if chunk:
            yield chunk

    def _timing_counts(self, run: tuple[int, int]) -> list[tuple[int, int]]:
        with self._warehouse.snapshot():
            return list(
                self._warehouse.rows(_ranged("timings", "measurement_id, count(*)", run, "GROUP BY 1 ORDER BY 1"))
            )

    def _write_fact(self, table: str, chunk: list[tuple[int, int]]) -> tuple[str, int]:
        from diode_store.lake_files import write_rows

        columns = FACTS[table]
        queries = (_ranged(table, ", ".join(columns), run, "ORDER BY 1, 2") for run in chunk)
        rows = (row for query in queries for row in self._warehouse.rows(query))
        name = self._name(table)
        return name, write_rows(self._lake.path / name, columns, rows)

    def _merge(self, segments: list[Segment]) -> tuple[list[Segment], int]:
        """Merge small segments into larger ones once there are many: each file costs a query time."""
        small = [s for s in segments if s.timing_count < SMALL_SEGMENT]
        if len(small) < TOO_MANY_SMALL:
            return segments, 0
        kept = [s for s in segments if s.timing_count >= SMALL_SEGMENT]
        groups = in_batches(small, lambda segment: segment.timing_count, TIMINGS_PER_SEGMENT)
        return [*kept, *(self._merged(group) for group in groups)], len(small)

    def _merged(self, group: list[Segment]) -> Segment:
        from diode_store.lake_files import merge

        def write(table: str) -> tuple[str, int]:
            name = self._name(table)
            parts = [(self._lake.path / getattr(segment, table), segment.dropped) for segment in group]
            return name, merge(self._lake.path / name, table, parts)

        return _segment(*(write(table) for table in FACTS))

    def _snapshots(self, before: Manifest, prints: dict[str, str]) -> dict[str, str]:
        """Write the snapshots that changed; after the facts, so that they hold all that the facts refer to."""
        from diode_store.lake_files import write_rows

        files = dict(before.snapshots)
        with self._warehouse.snapshot():
            for table, columns in SNAPSHOTS.items():
                if table in files and before.fingerprints.get(table) == prints[table]:
                    continue
                files[table] = self._name(table)
                write_rows(self._lake.path / files[table], columns, self._warehouse.rows(select(table)))
        return files

    def _name(self, table: str) -> str:
        self._next_number += 1
        return f"{self._next_number - 1:06d}-{table}.parquet"

    def _publish(self, before: Manifest, after: Manifest) -> None:
        now = time.time()
        gone = before.files() - after.files()
        sizes = {name: (self._lake.path / name).stat().st_size for name in sorted(after.files())}
        self._lake.publish(replace(after, sizes=sizes, retired={**before.retired, **dict.fromkeys(sorted(gone), now)}))


def _why_unusable(manifest: Manifest, uuid: str, lake: Lake) -> str | None:
    if manifest.warehouse != uuid:
        return "it was the lake of another warehouse"
    if manifest.revision != REVISION:
        return f"it was made at schema revision {manifest.revision}"
    return lake.damage(manifest)


def _segment(measurements: tuple[str, int], timings: tuple[str, int]) -> Segment:
    """Return the segment of two files, each given as name and number of rows."""
    return Segment(measurements[0], timings[0], measurements[1], timings[1])


def _runs(wanted: dict[int, bytes], present: set[int]) -> list[tuple[int, int]]:
    """Return what of ``wanted`` (in order) is missing, as (first, last) of stretches without a present one."""
    stretches = groupby(wanted, key=present.__contains__)
    members = (list(stretch) for is_present, stretch in stretches if not is_present)
    return [(stretch[0], stretch[-1]) for stretch in members]


def _ranged(table: str, columns: str, run: tuple[int, int], rest: str) -> str:
    key = next(iter(FACTS[table]))
    return f"SELECT {columns} FROM {table} WHERE {key} BETWEEN {run[0]:d} AND {run[1]:d} {rest}"  # noqa: S608 - our own


def _report(manifest: Manifest, started: float, **what: Any) -> SyncReport:
    return SyncReport(
        measurements=sum(s.measurement_count for s in manifest.segments),
        timings=sum(s.timing_count for s in manifest.segments),
        segments=len(manifest.segments),
        seconds=time.monotonic() - started,
        **{"added": 0, "added_timings": 0, "dropped": 0, "merged": 0, "rebuilt": None, **what},
    )
