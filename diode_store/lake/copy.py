"""Copies measurements and their timings from the warehouse to segments of the lake.

A segment is read in one snapshot and written while the next one is read. The standard library's SQLite hands over rows
one by one, which keeps one processor busy, so ``diode_store.lake.worker`` leaves large copies to processes that read
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
"""Ids that are at most so far apart are read in one go; what lies between them is left out afterwards."""


@dataclass(frozen=True)
class CopyJob:
    """Measurements to copy."""

    ids: NDArray[np.int64]
    """In order."""
    generation: int
    """The state of the lake that the segments will be part of."""
    most_timings: int
    """In one segment."""


def copy(source: Facts, lake: Lake, job: CopyJob) -> Iterator[Segment]:
    """Write the measurements of ``job`` to new segments; deleted ones are left out."""
    with ThreadPoolExecutor(1) as writer:
        writing: deque[Future[Segment]] = deque()
        for facts in _chunks(source, job):
            if writing:
                yield writing.popleft().result()
            writing.append(writer.submit(_write, lake, job.generation, facts))
        if writing:
            yield writing.popleft().result()


def _write(lake: Lake, generation: int, facts: dict[str, pa.Table]) -> Segment:
    names = {table: lake.new_name(generation, table) for table in FACTS}
    for table, rows in facts.items():
        write(lake.folder, names[table], FACTS[table], rows)
    return segment_of(names, facts["measurements"]["id"], facts["timings"].num_rows)


def segment_of(names: dict[str, str], ids: pa.ChunkedArray, timing_count: int) -> Segment:
    """Return the segment of two files."""
    ends = pc.min_max(ids).as_py()
    return Segment(
        measurements=names["measurements"],
        timings=names["timings"],
        measurement_count=len(ids),
        timing_count=timing_count,
        first_id=ends["min"],
        last_id=ends["max"],
    )


def _chunks(source: Facts, job: CopyJob) -> Iterator[dict[str, pa.Table]]:
    """Yield the rows of one segment after the other; each is of one state of the database."""
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
            # One measurement alone has more timings than a segment should.
            job = CopyJob(job.ids, job.generation, job.most_timings * 2)


def _timings(source: Facts, first: int, last: int, room: int) -> tuple[pa.Table, int]:
    """Read about ``room`` timings of the measurements from ``first`` on; return them and up to where they are whole."""
    found = _read(source, "timings", first, last, f"LIMIT {room:d}")
    if found.num_rows < room:
        return found, last
    end = found["measurement_id"][-1].as_py() - 1
    return found.filter(pc.less_equal(found["measurement_id"], end)), end


def _read(source: Facts, table: str, first: int, last: int, limit: str = "") -> pa.Table:
    columns = FACTS[table]
    key = next(iter(columns))
    sql = f"SELECT {', '.join(columns)} FROM {table} WHERE {key} BETWEEN {first:d} AND {last:d} ORDER BY 1, 2 {limit}"  # noqa: S608 - our own
    return table_of(columns, source.batches(columns, sql))


def _wanted(facts: dict[str, pa.Table], job: CopyJob) -> dict[str, pa.Table]:
    """Leave out what lies between the measurements of ``job``, or came while it ran: the next sync compares that."""
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
