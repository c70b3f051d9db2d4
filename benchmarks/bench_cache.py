"""Measure how fast measurements get from the warehouse to the cache, against bare reading of the same rows.

Makes a warehouse of ``--timings`` timings (``scale.py``), or copies ``--database``, and measures

- the first sync from SQLite; the baseline reads the same rows with ``sqlite3`` and ``fetchmany`` and drops them;
- a sync with nothing to do, which runs before every query;
- freshness: from a commit of 10,000 timings to the answer of a query that counts them;
- with ``--postgres``, the first sync from its own server; the baseline drops the bytes of a binary COPY.

On a busy machine, compare the processor seconds, which include child processes.

    python benchmarks/bench_cache.py --timings 2000000 --postgres
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import duckdb  # noqa: F401 - imported before the clock starts, as in a process that queries
import shipped_data
from scale import fill

import diode_store.cache.change  # noqa: F401 - likewise
from diode_store.cache.cache import Cache
from diode_store.cache.layout import FACTS
from diode_store.cache.sync import sync
from diode_store.query import analytics

if TYPE_CHECKING:
    from collections.abc import Callable

FRESH_TIMINGS = 10_000
GOAL_ROWS, GOAL_FRESH_S = 1_500_000, 0.12
_COLUMNS = ", ".join(FACTS["timings"])


class Took(NamedTuple):
    """Cost of some work."""

    wall_s: float
    cpu_s: float

    def line(self, name: str, rows: int) -> str:
        """Return a line of the report."""
        return (
            f"{name:<34}{self.wall_s:8.2f} s {rows / self.wall_s:12,.0f} rows/s"
            f"{self.cpu_s:8.2f} CPU s {rows / self.cpu_s:12,.0f} rows/CPU s"
        )


def main() -> None:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--timings", type=int, default=2_000_000, help="approximate timings; 100000000 takes an hour")
    parser.add_argument("--database", type=Path, help="existing warehouse, which is copied first")
    parser.add_argument("--rounds", type=int, default=7, help="repetitions of freshness; the median counts")
    parser.add_argument("--postgres", action="store_true", help="measure PostgreSQL too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        database = root / "warehouse.db"
        if options.database:
            shutil.copy(options.database, database)
            shipped_data.make_warehouse(str(database))
        else:
            fill(str(database), options.timings)
        on_sqlite(database, Cache(root / "sqlite.cache"), options.rounds)
        if options.postgres:
            on_postgres(database, Cache(root / "postgres.cache"))


def on_sqlite(database: Path, cache: Cache, rounds: int) -> None:
    """Measure everything on a SQLite file."""
    rows = 0

    def read() -> None:
        nonlocal rows
        with closing(sqlite3.connect(database)) as connection:
            cursor = connection.execute(f"SELECT {_COLUMNS} FROM timings ORDER BY 1, 2")  # noqa: S608 - our own names
            while found := cursor.fetchmany(1000):
                rows += len(found)

    baseline = took(read)
    copied = took(lambda: sync(str(database), cache))
    idle = [took(lambda: sync(str(database), cache)) for _ in range(rounds)]
    with closing(sqlite3.connect(database)) as connection:
        (measurements,) = connection.execute("SELECT count(*) FROM measurements").fetchone()
    print(f"SQLite: {rows:,} timings of {measurements:,} measurements; {len(os.sched_getaffinity(0))} processors")
    print(baseline.line("fetchmany alone (baseline)", rows))
    print(copied.line("first sync", rows))
    print(
        f"first sync / baseline: {baseline.wall_s / copied.wall_s:.2f} by the clock (goal {GOAL_ROWS:,} rows/s), ",
        end="",
    )
    print(f"{baseline.cpu_s / copied.cpu_s:.2f} by processor seconds; {size(cache) / rows:.1f} bytes a timing")
    print(f"nothing to do: {median(idle)}")
    fresh = [freshness(database) for _ in range(rounds)]
    print(f"fresh after {FRESH_TIMINGS:,} timings: {median(fresh)}  (goal {GOAL_FRESH_S} s)")


def freshness(database: Path) -> Took:
    """Commit some measurements; return the time until a query counts their timings."""
    with closing(sqlite3.connect(database)) as connection, connection:
        (last,) = connection.execute("SELECT max(id) FROM measurements").fetchone()
        # The first measurements again, under new ids and uids.
        (until,) = connection.execute(
            "SELECT measurement_id FROM timings ORDER BY measurement_id LIMIT 1 OFFSET ?", (FRESH_TIMINGS,)
        ).fetchone()
        names = ", ".join(name for name in FACTS["measurements"] if name not in {"id", "uid"})
        others = ", ".join(name for name in FACTS["timings"] if name != "measurement_id")
        connection.execute(
            f"INSERT INTO measurements (id, uid, {names}) SELECT id + ?, randomblob(16), {names} "  # noqa: S608 - our own names
            "FROM measurements WHERE id < ?",
            (last, until),
        )
        connection.execute(
            f"INSERT INTO timings (measurement_id, {others}) SELECT measurement_id + ?, {others} "  # noqa: S608 - our own names
            "FROM timings WHERE measurement_id < ?",
            (last, until),
        )
    found: list[int] = []

    def ask() -> None:
        with closing(analytics.connect(str(database), database.with_name("sqlite.cache"))) as connection:
            query = "SELECT count(*) FROM timings WHERE measurement_id > $1"
            found.append(connection.execute(query, [last]).fetchall()[0][0])

    result = took(ask)
    assert found[0] >= FRESH_TIMINGS // 2, found  # noqa: S101 - a benchmark of a wrong answer is worth nothing
    return result


def on_postgres(database: Path, cache: Cache) -> None:
    """Measure the first sync of the same rows from a PostgreSQL server."""
    import psycopg

    from postgres_server import PostgresServer

    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer.in_temp_folder({"shared_buffers": "512MB"}))
        url = server.create_database("cache")
        shipped_data.make_warehouse(url)
        connection = stack.enter_context(psycopg.connect(url.replace("+psycopg", ""), autocommit=True))
        rows = fill_postgres(database, connection)

        def read() -> None:
            with connection.cursor().copy(
                f"COPY (SELECT {_COLUMNS} FROM timings ORDER BY 1, 2) TO STDOUT (FORMAT binary)"  # noqa: S608 - our own names
            ) as stream:
                for _ in stream:
                    pass

        baseline = took(read)
        copied = took(lambda: sync(url, cache))
        idle = took(lambda: sync(url, cache))
    print(f"PostgreSQL: {rows:,} timings; processor seconds without the server's")
    print(baseline.line("binary COPY alone (baseline)", rows))
    print(copied.line("first sync", rows))
    print(
        f"first sync / baseline: {baseline.wall_s / copied.wall_s:.2f} by the clock; nothing to do: {idle.wall_s:.3f} s"
    )


def fill_postgres(database: Path, connection: object) -> int:
    """Copy every table of a SQLite warehouse to PostgreSQL; return the number of timings."""
    import psycopg

    assert isinstance(connection, psycopg.Connection)  # noqa: S101 - for the type checker
    rows = 0
    with closing(sqlite3.connect(database)) as source:
        for table in ("hardware", "environments", "problems", "configs", "measurements", "timings"):
            cursor = source.execute(f"SELECT * FROM {table}")  # noqa: S608 - our own names
            names = [column[0] for column in cursor.description]
            flags = _flags(connection, table)
            with connection.cursor().copy(f"COPY {table} ({', '.join(names)}) FROM STDIN") as sink:
                for row in cursor:
                    sink.write_row([_value(value, name in flags) for name, value in zip(names, row, strict=True)])
                    rows += table == "timings"
    connection.execute("VACUUM ANALYZE")
    return rows


def _flags(connection: object, table: str) -> set[str]:
    query = "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND data_type = 'boolean'"
    return {row[0] for row in connection.execute(query, (table,))}  # type: ignore[attr-defined]


def _value(value: object, is_flag: bool) -> object:  # noqa: FBT001 - one caller
    if is_flag and value is not None:
        return bool(value)
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def took(work: Callable[[], object]) -> Took:
    """Run ``work``, and return its cost, including processes it waited for."""
    before, begin = os.times(), time.perf_counter()
    work()
    wall_s, after = time.perf_counter() - begin, os.times()
    return Took(wall_s, sum(after[:4]) - sum(before[:4]))


def median(all_took: list[Took]) -> str:
    """Return the medians of several."""
    wall_s, cpu_s = (statistics.median(column) for column in zip(*all_took, strict=True))
    return f"{wall_s:.3f} s, {cpu_s:.3f} CPU s (median of {len(all_took)})"


def size(cache: Cache) -> int:
    """Return the bytes of a cache."""
    return sum(path.stat().st_size for path in cache.path.iterdir())


if __name__ == "__main__":
    main()
