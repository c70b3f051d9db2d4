"""Copy parts of an SQLite warehouse to the lake by columns, in parallel processes.

Each process only reads the database. It has no other connection to the database, as ``diode_store.lake.adbc`` requires.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from diode_store.errors import LakeError, LakeValueError
from diode_store.lake.adbc import open_columns
from diode_store.lake.copy import CopyJob, copy
from diode_store.lake.lake import Lake
from diode_store.lake.opening import open_source
from diode_store.processes.child import Child, ChildError, ready
from diode_store.system.files import real_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from diode_store.lake.lake import Segment
    from diode_store.lake.source import WarehouseRows
    from diode_store.processes.parent import Parent, Say

MOST_WORKERS = 8
WORTH_A_PROCESS = 2
"""Segments from which on processes pay off: a process takes as long to start as half a segment to copy."""
_SAMPLES, _SAMPLE = 8, 64


def copy_shared(source: WarehouseRows, lake: Lake, job: CopyJob) -> Iterator[Segment]:
    """Write the measurements of ``job`` to new segments, in other processes if that is faster."""
    timings = _estimated_timings(source, job)
    segments = round(timings / job.most_timings)
    if segments < WORTH_A_PROCESS or source.file is None or lake.folder.path is None or not sys.executable:
        yield from copy(source, lake, job)
        return
    workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)), segments)
    # More ids than fit one segment would leave a small segment behind.
    pieces = np.array_split(job.ids, max(workers, round(timings / job.most_timings * 1.05)))
    limit = job.most_timings * 2
    orders = [
        (real_path(source.file), real_path(lake.path), CopyJob(piece, job.generation, limit))
        for piece in pieces
        if len(piece)
    ]
    yield from _run(orders, workers)


def _estimated_timings(source: WarehouseRows, job: CopyJob) -> float:
    """Estimate the number of timings to copy from a few samples."""
    if source.file is None or not len(job.ids):
        return 0.0
    width = min(_SAMPLE, len(job.ids))
    starts = np.linspace(0, len(job.ids) - width, _SAMPLES).astype(int)
    with source.snapshot():
        counted = [
            next(
                iter(
                    source.rows(
                        "SELECT count(*) FROM timings "  # noqa: S608 - numbers of our own
                        f"WHERE measurement_id BETWEEN {job.ids[start]:d} AND {job.ids[start + width - 1]:d}"
                    )
                )
            )[0]
            for start in starts
        ]
    return float(sum(counted)) / (_SAMPLES * width) * len(job.ids)


def _run(orders: Sequence[tuple[Path, Path, CopyJob]], workers: int) -> Iterator[Segment]:
    """Have processes carry out ``orders``, and yield segments as they are written."""
    waiting = deque(orders)
    with contextlib.ExitStack() as stack:
        try:
            busy = [stack.enter_context(Child("diode_store.lake.worker:serve")) for _ in range(workers)]
            for child in busy:
                child.send(waiting.popleft())
            while busy:
                for child in ready(busy):
                    is_last, segment = child.answer()
                    if not is_last:
                        yield segment
                    elif waiting:
                        child.send(waiting.popleft())
                    else:
                        busy.remove(child)
        except ChildError as error:
            raise LakeError(f"a process of the sync {error}; run `diode sync` again") from None


def serve(parent: Parent) -> None:
    """Copy what the sync orders. When the sync is gone, remove half-written files and end."""
    parent.on_gone = lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    parent.serve(_copy)


def _copy(order: tuple[Path, Path, CopyJob], say: Say) -> None:
    database, lake, job = order
    with open_source(str(database)):
        pass  # checks existence and schema, and closes the file before another SQLite opens it
    for segment in _copied(database, Lake(lake), job):
        say(segment)


def _copied(database: Path, lake: Lake, job: CopyJob) -> list[Segment]:
    """Copy by columns; if a value does not fit its column, copy by rows, which names a wrong value."""
    try:
        with open_columns(database) as columns:
            return list(copy(columns, lake, job))
    except LakeValueError:
        with open_source(str(database)) as rows:
            return list(copy(rows, lake, job))
