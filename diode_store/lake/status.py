"""Content and size of a lake, from its manifest and its folder."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from diode_store.errors import LakeError
from diode_store.lake import readers as lake_readers
from diode_store.lake.compact import SMALL_SEGMENT
from diode_store.lake.lake import FORMAT, OURS

if TYPE_CHECKING:
    from diode_store.lake.lake import Lake


@dataclass(frozen=True)
class LakeStatus:
    """State of a lake at one moment."""

    lake: str
    format: int
    revision: str
    """Schema revision of the copied warehouse."""
    warehouse: str
    """Uuid of the copied warehouse."""
    generation: int
    """Number of the lake's state; every change increases it."""
    synced_at: datetime
    """Time of this state in the warehouse."""
    measurements: int
    timings: int
    dropped: int
    """Deleted measurements that are still in a file; no query sees them."""
    segments: int
    small_segments: int
    """Segments that a compaction would merge."""
    bytes: int
    """Size of this state's files."""
    retired_files: int
    """Files kept for readers of an older state."""
    retired_bytes: int
    other_files: int
    """Files that no state names, from a running or killed sync."""
    generations_read: tuple[int, ...]
    """States that connections of this machine are reading; empty for a lake at a URL, whose readers are unknown."""
    damage: str | None
    """Damage of the files, if any; the next sync repairs it."""


def lake_status(lake: Lake) -> LakeStatus:
    """Return the status of ``lake`` without changing it.

    Raises:
        LakeError: there is no lake, or its manifest is damaged.
    """
    manifest = lake.manifest()
    if manifest is None:
        raise LakeError(f"{lake} holds no lake; run `diode sync`")
    there = lake.folder.sizes()
    parquet = {name for name in there if name.endswith(OURS)}
    return LakeStatus(
        lake=str(lake),
        format=FORMAT,
        revision=manifest.revision,
        warehouse=manifest.warehouse,
        generation=manifest.generation,
        synced_at=datetime.fromtimestamp(manifest.synced_at, UTC),
        measurements=sum(segment.measurement_count for segment in manifest.segments),
        timings=sum(segment.timing_count for segment in manifest.segments),
        dropped=sum(len(segment.dropped) for segment in manifest.segments),
        segments=len(manifest.segments),
        small_segments=sum(segment.timing_count < SMALL_SEGMENT for segment in manifest.segments),
        bytes=sum(manifest.sizes.values()),
        retired_files=len(manifest.retired),
        retired_bytes=sum(there.get(name, 0) for name in manifest.retired),
        other_files=len(parquet - manifest.files() - manifest.retired.keys()),
        generations_read=() if lake.folder.path is None else tuple(lake_readers.held(lake.folder.path)),
        damage=lake.damage(manifest),
    )
