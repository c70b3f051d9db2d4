"""Processes that copy parts of an SQLite warehouse to the lake by columns, in parallel.

Each is an interpreter of its own (``python -m diode_store.lake.worker``) that only reads the database, told what to
do by one line of JSON on stdin for each job, and answering one line a segment. It ends when its stdin does, so none
outlives the sync by more than one job. It has no other connection to the database, as ``diode_store.lake.adbc`` asks.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.errors import DatabaseError, DiodeError, LakeError, LakeValueError, first_line
from diode_store.lake.adbc import open_columns
from diode_store.lake.copy import CopyJob, copy
from diode_store.lake.lake import Lake, Segment
from diode_store.lake.opening import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.lake.source import WarehouseRows

MOST_WORKERS = 8
WORTH_A_PROCESS = 2
"""Segments from which on starting processes pays: each takes as long to start as half a segment to copy."""
_SAMPLES, _SAMPLE = 8, 64


def copy_shared(source: WarehouseRows, lake: Lake, job: CopyJob) -> Iterator[Segment]:
    """Write the measurements of ``job`` to new segments, in other processes where that is faster."""
    timings = _estimated_timings(source, job)
    segments = round(timings / job.most_timings)
    if segments < WORTH_A_PROCESS or source.file is None or lake.folder.path is None or not sys.executable:
        yield from copy(source, lake, job)
        return
    workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)), segments)
    # More ids than a segment takes at a guess would leave a small one behind.
    pieces = np.array_split(job.ids, max(workers, round(timings / job.most_timings * 1.05)))
    limit = job.most_timings * 2
    lines = [_line(source.file, lake, CopyJob(piece, job.generation, limit)) for piece in pieces if len(piece)]
    yield from _run(lines, workers)


def _estimated_timings(source: WarehouseRows, job: CopyJob) -> float:
    """Return about how many timings there are to copy, by a few samples."""
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


def _line(file: Path, lake: Lake, job: CopyJob) -> str:
    ids = base64.b64encode(job.ids.astype("<i8").tobytes()).decode()
    what = {"generation": job.generation, "most_timings": job.most_timings}
    return json.dumps({"database": str(file.resolve()), "lake": str(lake.path.resolve()), "ids": ids, **what})


def _run(lines: list[str], workers: int) -> Iterator[Segment]:
    """Have processes do ``lines`` and yield their segments as they come."""
    jobs: SimpleQueue[str] = SimpleQueue()
    for line in lines:
        jobs.put(line)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_process()) for _ in range(workers)]
        executor = stack.enter_context(ThreadPoolExecutor(workers))
        found: SimpleQueue[Segment | None] = SimpleQueue()
        futures = [executor.submit(_feed, process, jobs, found) for process in processes]
        try:
            for _ in futures:
                while (segment := found.get()) is not None:
                    yield segment
            for future in as_completed(futures):
                future.result()
        finally:
            # After an error: do not wait for work that no longer counts.
            for process in processes:
                process.terminate()


@contextlib.contextmanager
def _process() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "diode_store.lake.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def _feed(process: subprocess.Popen[str], jobs: SimpleQueue[str], found: SimpleQueue[Segment | None]) -> None:
    """Give one process job after job."""
    assert process.stdin is not None  # noqa: S101 - for the type checker
    assert process.stdout is not None  # noqa: S101 - likewise
    try:
        while True:
            line = jobs.get_nowait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(line + "\n")
                process.stdin.flush()
            while not (answer := _answer(process.stdout.readline())).get("done"):
                found.put(Segment(**{**answer, "dropped": tuple(answer["dropped"])}))
    except Empty:
        pass
    except BaseException:
        # Nothing that is begun from now on would count.
        with contextlib.suppress(Empty):
            while True:
                jobs.get_nowait()
        raise
    finally:
        found.put(None)


def _answer(line: str) -> dict[str, Any]:
    if not line:
        raise LakeError("a process of the sync was killed (out of memory?); run `diode sync` again")
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        raise LakeError(f"a process of the sync said {line.strip()!r}; keep Python's start-up silent") from None
    if "error" in answer:
        raise (DatabaseError if answer["kind"] == "DatabaseError" else LakeError)(answer["error"])
    return answer


def main() -> None:
    """Do the jobs that come on stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sync itself was interrupted, and ends us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            for answer in _answers(json.loads(line)):
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()


def _answers(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    ids = np.frombuffer(base64.b64decode(order["ids"]), "<i8").astype(np.int64)
    job = CopyJob(ids, order["generation"], order["most_timings"])
    try:
        yield from map(asdict, _copied(Path(order["database"]), Lake(Path(order["lake"])), job))
    except DiodeError as error:
        yield {"error": str(error), "kind": type(error).__name__}
    except Exception as error:  # noqa: BLE001 - whatever it is, the sync reports it, rather than a lack of memory
        yield {"error": f"a process of the sync failed: {type(error).__name__}: {first_line(error)}", "kind": ""}
    else:
        yield {"done": True}


def _copied(database: Path, lake: Lake, job: CopyJob) -> list[Segment]:
    """Copy by columns; what cannot be read so, by rows, which takes any number of bytes and names a wrong value."""
    with open_source(str(database)):
        pass  # checks that it exists with the current schema; closed before another SQLite opens it
    try:
        with open_columns(database) as columns:
            return list(copy(columns, lake, job))
    except LakeValueError:
        with open_source(str(database)) as rows:
            return list(copy(rows, lake, job))


if __name__ == "__main__":
    main()
