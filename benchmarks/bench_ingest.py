"""Measure how fast sealed segments become committed rows on SQLite, against a bare ``executemany`` in the same run.

The first bundled data set is repeated with new uids until there are ``--timings`` timings. These are sealed as spool
segments and ingested into a new warehouse: read, checked, unpacked, decoded and committed durably. The baseline writes
the same rows into the same table by ``sqlite3.executemany``, from tuples in memory. It uses one transaction with the
same durability, so no ingestion can be faster.

    python benchmarks/bench_ingest.py
"""

from __future__ import annotations

import argparse
import hashlib
import sqlite3
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import shipped_data

from diode_collectors.ingest import garbage
from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.records import Measurement

COLUMNS = "measurement_id, config_id, runtime_us, outcome, is_estimate, repeats, p10_us, p90_us"


def main() -> None:
    """Measure, and print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--timings", type=int, default=400_000, help="fewest timings to ingest")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; the median counts")
    options = parser.parse_args()
    bundled = shipped_data.measurements()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        spool_bytes = seal(bundled, options.timings, root / "sealed")
        rounds = [one_round(root / "sealed", root / str(number)) for number in range(options.rounds)]
    count = rounds[0].timings
    first, cpu, again, bare = (
        statistics.median(getattr(one, name) for one in rounds) for name in ("first_s", "cpu_s", "again_s", "bare_s")
    )
    print(f"{count:,} timings in {spool_bytes / 1e6:.1f} MB of sealed, compressed segments; median of {options.rounds}")
    print(f"spool to committed  {first:6.2f} s  {count / first:10,.0f} timings/s  ({cpu:.2f} processor seconds)")
    print(f"bare executemany    {bare:6.2f} s  {count / bare:10,.0f} timings/s  (baseline)")
    print(f"ratio               {bare / first:6.2f}    of the baseline's rate")
    print(f"the same again      {again:6.2f} s  {count / again:10,.0f} timings/s  {first / again:.1f} times as fast")


@dataclass(frozen=True)
class Round:
    """Times of one round."""

    timings: int
    first_s: float
    """Seconds from the spool to the commit."""
    cpu_s: float
    """Processor seconds of the first ingestion."""
    again_s: float
    """Seconds of the same segments once more, when all are known."""
    bare_s: float
    """Seconds of the same rows by ``executemany``."""


def seal(bundled: list[Measurement], timings: int, directory: Path) -> int:
    """Fill a spool with enough copies of the measurements; return its bytes."""
    with SpoolWriter(directory) as writer:
        for measurement in copies(bundled, timings):
            writer.append(measurement)
    return sum(path.stat().st_size for path in Spool(directory).sealed())


def copies(bundled: list[Measurement], timings: int) -> Iterator[Measurement]:
    """Yield the measurements repeatedly under new uids, until there are enough timings."""
    written = copy = 0
    while written < timings:
        copy += 1
        for measurement in bundled:
            uid = hashlib.blake2b(measurement.uid + copy.to_bytes(4), digest_size=16).digest()
            yield replace(measurement, uid=uid)
            written += len(measurement.timings)


def one_round(sealed: Path, root: Path) -> Round:
    """Ingest a copy of the spool, then another copy, and write the same rows bare."""
    database = root / "warehouse.db"
    root.mkdir()
    shipped_data.make_warehouse(str(database))
    with Store.open(str(database)) as store, garbage.ingesting():
        timings, first_s, cpu_s = ingest(sealed, root / "first", store)
        none, again_s, _ = ingest(sealed, root / "again", store)
    assert none == 0, "a replay must add nothing"  # noqa: S101 - a benchmark of something else would be no use
    return Round(timings, first_s, cpu_s, again_s, write_bare(database, root / "bare.db"))


def ingest(sealed: Path, spool: Path, store: Store) -> tuple[int, float, float]:
    """Ingest a copy of a spool; return the new timings, the seconds and the processor seconds."""
    spool.mkdir()
    for path in Spool(sealed).sealed():
        (spool / path.name).write_bytes(path.read_bytes())
    begin, cpu = time.perf_counter(), time.process_time()
    report = ingest_once(spool, store)
    return report.timings, time.perf_counter() - begin, time.process_time() - cpu


def write_bare(database: Path, target: Path) -> float:
    """Write the ``timings`` of one warehouse into another file; return the seconds."""
    source = sqlite3.connect(database)
    (definition,) = source.execute("SELECT sql FROM sqlite_master WHERE name = 'timings'").fetchone()
    rows = source.execute(f"SELECT {COLUMNS} FROM timings").fetchall()  # noqa: S608 - our own columns
    source.close()
    connection = sqlite3.connect(target, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(definition)
    begin = time.perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    marks = ", ".join("?" * len(COLUMNS.split(",")))
    connection.executemany(f"INSERT INTO timings ({COLUMNS}) VALUES ({marks})", rows)  # noqa: S608 - likewise
    connection.execute("COMMIT")
    seconds = time.perf_counter() - begin
    connection.close()
    return seconds


if __name__ == "__main__":
    main()
