"""Copy measurements and their timings from the warehouse to segments of the lake.

Each segment is read in one snapshot and written while the next one is read. The standard library's SQLite returns row
by row, which keeps one processor busy. Therefore ``diode_store.lake.worker`` gives large copies to processes that read
columns.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diode_store.lake.lake import Lake, Segment
from diode_store.lake.layout import FACTS
from diode_store.lake.parquet_files import table_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from diode_store.lake.source import Facts

_ADJACENT = 1000
"""Largest gap between ids that are read together; a later step removes the measurements in the gap."""


@dataclass(frozen=True)
class CopyJob:
    """Measurements to copy."""

    ids: NDArray[np.int64]
    """Sorted ids."""
    generation: int
    """Generation of the lake that will have the segments."""
    most_timings: int
    """Maximum timings in one segment."""


def copy(source: Facts, lake: Lake, job: CopyJob) -> Iterator[Segment]:
    """Write the measurements of ``job`` to new segments, without deleted ones."""
    with ThreadPoolExecutor(1) as writer:
        writing: deque[Future[Segment]] = deque()
        for facts in _chunks(source, job):
            if writing:
                yield writing.popleft().result()
            left_out = tuple(dict.fromkeys(source.left_out))
            source.left_out.clear()
            writing.append(writer.submit(_write, lake, job.generation, facts, left_out))
        if writing:
            yield writing.popleft().result()


def _write(lake: Lake, generation: int, facts: dict[str, pa.Table], left_out: tuple[str, ...]) -> Segment:
    names = {table: lake.new_name(generation, table) for table in FACTS}
    for table, rows in facts.items():
        write(lake.folder, names[table], FACTS[table], rows)
    return segment_of(names, facts["measurements"]["id"], facts["timings"].num_rows, left_out)


def segment_of(
    names: dict[str, str], ids: pa.ChunkedArray, timing_count: int, left_out: tuple[str, ...] = ()
) -> Segment:
    """Return the segment of two files."""
    ends = pc.min_max(ids).as_py()
    return Segment(
        measurements=names["measurements"],
        timings=names["timings"],
        measurement_count=len(ids),
        timing_count=timing_count,
        first_id=ends["min"],
        last_id=ends["max"],
        left_out=left_out,
    )


def _chunks(source: Facts, job: CopyJob) -> Iterator[dict[str, pa.Table]]:
    """Yield the rows of each segment; the rows of a segment are from one state of the database."""
    runs = deque(_runs(job.ids))
    while runs:
        parts: dict[str, list[pa.Table]] = {table: [] for table in FACTS}
        room = job.most_timings
        with source.snapshot():
            while runs and room > 0:
                first, last = runs.popleft()
                timings, end = _timings(source, first, last, room)
                if end < last:
                    runs.appendleft((end + 1, last))
                    if end < first:
                        break
                parts["timings"].append(timings)
                parts["measurements"].append(_read(source, "measurements", first, end))
                room -= timings.num_rows
                if end < last:
                    break
        facts = _wanted({table: pa.concat_tables(found) for table, found in parts.items() if found}, job)
        if facts and facts["measurements"].num_rows:
            yield facts
        elif not facts:
            # A single measurement exceeds a segment's timings.
            job = CopyJob(job.ids, job.generation, job.most_timings * 2)


def _timings(source: Facts, first: int, last: int, room: int) -> tuple[pa.Table, int]:
    """Read about ``room`` timings from measurement ``first`` on; return them and the last measurement read whole."""
    known = len(source.left_out)
    found = _read(source, "timings", first, last, f"LIMIT {room:d}")
    if found.num_rows + len(source.left_out) - known < room:
        return found, last
    if not found.num_rows:
        return found, first - 1
    end = found["measurement_id"][-1].as_py() - 1
    return found.filter(pc.less_equal(found["measurement_id"], end)), end


def _read(source: Facts, table: str, first: int, last: int, limit: str = "") -> pa.Table:
    columns = FACTS[table]
    key = next(iter(columns))
    sql = f"SELECT {', '.join(columns)} FROM {table} WHERE {key} BETWEEN {first:d} AND {last:d} ORDER BY 1, 2 {limit}"  # noqa: S608 - our own
    return table_of(columns, source.batches(columns, sql))


def _wanted(facts: dict[str, pa.Table], job: CopyJob) -> dict[str, pa.Table]:
    """Leave out measurements outside ``job``, also those stored while it ran: the next sync compares them."""
    if not facts:
        return {}
    ids = facts["measurements"]["id"].to_numpy()
    if len(ids) and not _is_among(ids, job.ids).all():
        facts["measurements"] = facts["measurements"].filter(pa.array(_is_among(ids, job.ids)))
    owners = facts["timings"]["measurement_id"].to_numpy()
    ids = facts["measurements"]["id"].to_numpy()
    first_rows = np.flatnonzero(np.diff(owners, prepend=-1))
    if not _is_among(owners[first_rows], ids).all():
        facts["timings"] = facts["timings"].filter(pa.array(_is_among(owners, ids)))
    return facts


def _is_among(ids: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(ids), np.bool_)
    places = np.searchsorted(ordered, ids).clip(max=len(ordered) - 1)
    return np.asarray(ordered[places] == ids)


def _runs(ids: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return (first, last) of stretches of ids without large gaps."""
    if not len(ids):
        return []
    breaks = np.flatnonzero(np.diff(ids) > _ADJACENT) + 1
    return [(int(part[0]), int(part[-1])) for part in np.split(ids, breaks)]
