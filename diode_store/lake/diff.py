"""Find the measurements that the lake must copy or drop, by comparing the blocks of ids whose digests differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from diode_store.lake.parquet_files import count_timings, read
from diode_store.lake.source import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from diode_store.lake.lake import Lake, Manifest, Segment
    from diode_store.lake.source import WarehouseRows

_KEY = np.dtype([("id", "<i8"), ("uid", "S16")])
"""A measurement as one value that NumPy compares."""


@dataclass(frozen=True)
class Difference:
    """Work for a sync."""

    missing: NDArray[np.int64]
    """Ids of the measurements to copy, in order."""
    segments: list[Segment]
    """Segments to keep, with deleted measurements dropped."""
    dropped: int
    """Number of measurements deleted from the warehouse."""


def compare(source: WarehouseRows, lake: Lake, manifest: Manifest, blocks: dict[str, str]) -> Difference:
    """Compare the database, with the digests ``blocks``, with the lake's state ``manifest``."""
    changed = sorted(int(b) for b in blocks.keys() | manifest.blocks.keys() if blocks.get(b) != manifest.blocks.get(b))
    runs = _runs(changed)
    wanted = _stored(source, runs)
    segments, present, dropped = [], [], 0
    for segment in manifest.segments:
        if not any(first <= segment.last_id and segment.first_id <= last for first, last in runs):
            segments.append(segment)
            continue
        held = _held(lake, segment, runs)
        stays = np.isin(held, wanted)
        gone = held["id"][~stays].tolist()
        present.append(held["id"][stays])
        dropped += len(gone)
        if len(gone) < segment.measurement_count:
            segments.append(_without(lake, segment, gone))
    missing = np.setdiff1d(wanted["id"], np.concatenate(present) if present else np.empty(0, np.int64))
    return Difference(missing, segments, dropped)


def _runs(blocks: Iterable[int]) -> list[tuple[int, int]]:
    """Return sorted blocks as stretches of ids: (first, last)."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        first, last = block * BLOCK, block * BLOCK + BLOCK - 1
        if runs and runs[-1][1] == first - 1:
            first = runs.pop()[0]
        runs.append((first, last))
    return runs


def _stored(source: WarehouseRows, runs: Iterable[tuple[int, int]]) -> NDArray[np.void]:
    """Return the measurements of the database with ids in ``runs``."""
    parts = []
    for run in runs:
        # A block at a time: Python's rows take ten times the memory of an array.
        for first in range(run[0], run[1], BLOCK):
            rows = source.rows(
                f"SELECT id, uid FROM measurements WHERE id BETWEEN {first:d} AND {first + BLOCK - 1:d} ORDER BY id"  # noqa: S608 - our own
            )
            parts.append(np.array([(number, bytes(uid)) for number, uid in rows], _KEY))
    return np.concatenate(parts) if parts else np.empty(0, _KEY)


def _held(lake: Lake, segment: Segment, runs: Iterable[tuple[int, int]]) -> NDArray[np.void]:
    """Return the measurements of a segment with ids in ``runs``."""
    table = read(lake.folder, segment.measurements, ("id", "uid"))
    ids = table["id"].to_numpy()
    inside = np.zeros(len(ids), np.bool_)
    for first, last in runs:
        inside |= (ids >= first) & (ids <= last)
    if segment.dropped:
        inside &= ~np.isin(ids, segment.dropped)
    chosen = table.filter(pa.array(inside))
    found = np.empty(chosen.num_rows, _KEY)
    found["id"] = chosen["id"].to_numpy()
    found["uid"] = chosen["uid"].to_pylist()
    return found


def _without(lake: Lake, segment: Segment, gone: list[int]) -> Segment:
    if not gone:
        return segment
    return replace(
        segment,
        measurement_count=segment.measurement_count - len(gone),
        timing_count=segment.timing_count - count_timings(lake.folder, segment.timings, gone),
        dropped=tuple(sorted({*segment.dropped, *gone})),
    )
