"""Merge small segments into large ones, and remove dropped measurements."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diode_store.errors import LakeError
from diode_store.lake.lake import OURS, TIMINGS_PER_SEGMENT
from diode_store.values.batching import in_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_store.lake.lake import Lake, Manifest, Segment

SMALL_SEGMENT = 250_000
"""Number of timings below which a segment is small; a sync merges small segments once there are ``TOO_MANY_SMALL``."""
TOO_MANY_SMALL = 8
MOST_DROPPED = 1000
"""Number of dropped measurements above which a sync rewrites a segment; every query must look each one up."""
_NEARLY_FULL = 0.75
"""Share of a full segment's timings from which a segment is not merged."""


@dataclass(frozen=True)
class Compaction:
    """Report of a compaction, or of its dry run."""

    segments_before: int
    segments_after: int
    rewritten: int
    """Segments merged into another one."""
    dropped: int
    """Measurements removed physically."""
    timings: int
    """Number of rewritten timings."""
    bytes_before: int
    """Size of the lake's named files before."""
    bytes_after: int
    """Size of the lake's named files afterwards; unchanged after a dry run."""
    files_deleted: int
    """Deleted files: retired files and leftovers of killed syncs."""
    seconds: float


def merge_small(
    lake: Lake, segments: Sequence[Segment], generation: int, most_timings: int
) -> tuple[list[Segment], int]:
    """Merge small segments once there are many; return all segments and the number of rewritten ones."""
    small = [s for s in segments if s.timing_count < SMALL_SEGMENT]
    chosen = small if len(small) >= TOO_MANY_SMALL else []
    chosen += [s for s in segments if len(s.dropped) > MOST_DROPPED and s not in chosen]
    groups = in_batches(chosen, lambda segment: segment.timing_count, most_timings)
    merged = [_merged(lake, group, generation) for group in groups]
    return in_order([*(s for s in segments if s not in chosen), *merged]), len(chosen)


def compact(
    lake: Lake,
    *,
    dry_run: bool = False,
    most_timings: int | None = None,
    on_progress: Callable[[float], None] = lambda _timings: None,
) -> Compaction:
    """Merge segments that are too small, remove dropped measurements, and delete files without readers.

    Args:
        lake: the lake to compact; its warehouse is not needed.
        dry_run: change nothing and report what a compaction would do.
        most_timings: maximum timings of one segment; the default is a sync's.
        on_progress: called with the number of newly written timings.

    Raises:
        LakeError: there is no lake, or it is damaged or cannot be written.
    """
    limit = most_timings or TIMINGS_PER_SEGMENT
    started = time.monotonic()
    if lake.manifest() is None:
        raise LakeError(f"{lake} holds no lake; run `diode sync`")
    if dry_run:
        present = _whole(lake)
        return _report(present, present, plan(present.segments, limit), 0, started)
    with lake.lock():
        before = _whole(lake)
        groups = plan(before.segments, limit)
        after, files = before, set(lake.folder.sizes())
        if groups:
            generation = lake.next_generation(before)
            merged = []
            for group in groups:
                merged.append(_merged(lake, group, generation))
                on_progress(merged[-1].timing_count)
            rewritten = {segment for group in groups for segment in group}
            kept = [segment for segment in before.segments if segment not in rewritten]
            after = replace(before, generation=generation, segments=tuple(in_order([*kept, *merged])))
            after = lake.advance(before, after, instead_of=before.generation)
        else:
            after = lake.sweep(before)
        gone = [name for name in files - lake.folder.sizes().keys() if name.endswith(OURS)]
        return _report(before, after, groups, len(gone), started)


def plan(segments: Sequence[Segment], most_timings: int) -> list[list[Segment]]:
    """Return groups of segments, each to be merged into one."""
    small = [s for s in segments if s.timing_count < most_timings * _NEARLY_FULL]
    groups = list(in_batches(small, lambda segment: segment.timing_count, most_timings))
    groups = [group for group in groups if len(group) > 1 or group[0].dropped]
    rewritten = {segment for group in groups for segment in group}
    return [*groups, *([s] for s in segments if s.dropped and s not in rewritten)]


def in_order(segments: Sequence[Segment]) -> list[Segment]:
    """Return segments in the order of their measurements."""
    return sorted(segments, key=lambda segment: (segment.first_id, segment.last_id))


def _whole(lake: Lake) -> Manifest:
    manifest = lake.manifest()
    damage = f"{lake} holds no lake" if manifest is None else lake.damage(manifest)
    if manifest is None or damage:
        raise LakeError(f"{lake}: {damage}; run `diode sync`")
    return manifest


def _merged(lake: Lake, group: Sequence[Segment], generation: int) -> Segment:
    from diode_store.lake.copy import segment_of
    from diode_store.lake.layout import FACTS
    from diode_store.lake.parquet_files import merge, read

    names = {table: lake.new_name(generation, table) for table in FACTS}
    rows = 0
    for table, name in names.items():
        parts = [(getattr(segment, table), segment.dropped) for segment in in_order(group)]
        rows = merge(lake.folder, name, table, parts)
    left_out = tuple(line for segment in group for line in segment.left_out)
    return segment_of(names, read(lake.folder, names["measurements"], ("id",))["id"], rows, left_out)


def _report(
    before: Manifest, after: Manifest, groups: Sequence[Sequence[Segment]], deleted: int, started: float
) -> Compaction:
    rewritten = [segment for group in groups for segment in group]
    return Compaction(
        segments_before=len(before.segments),
        segments_after=len(before.segments) - len(rewritten) + len(groups),
        rewritten=len(rewritten),
        dropped=sum(len(segment.dropped) for segment in rewritten),
        timings=sum(segment.timing_count for segment in rewritten),
        bytes_before=sum(before.sizes.values()),
        bytes_after=sum(after.sizes.values()),
        files_deleted=deleted,
        seconds=time.monotonic() - started,
    )
