"""Measure how long `diode query` takes from the shell, against starting Python and importing DuckDB in the same run.

The first bundled data set is put into a new warehouse. Then ``diode query "SELECT * FROM fastest_configs"`` runs as a
process: interpreter, imports, the check that the cache is up to date, views, query, CSV. The first run, which also
copies the timings to the cache, has its own line.

    python benchmarks/bench_query.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import shipped_data

from diode_store.warehouse.store import Store

QUERY = "SELECT * FROM fastest_configs"
LIMIT_S = 1.0
"""Longest acceptable query, including the start of the process."""


def main() -> None:
    """Measure, and print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="repetitions; the median counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "warehouse.db")
        timings = fill(database)
        diode = str(Path(sys.executable).with_name("diode"))
        ask = [diode, "query", QUERY, "--csv", "--database", database]
        first_s, problems = seconds(ask)
        pairs = [(seconds(ask)[0], seconds([sys.executable, "-c", "import duckdb"])[0]) for _ in range(options.rounds)]
    query_s, import_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"fastest_configs: {problems - 1} problems out of {timings:,} timings; median of {options.rounds}")
    print(f"first query, with the sync   {first_s:6.3f} s")
    print(f"diode query                  {query_s:6.3f} s  (limit {LIMIT_S:g} s)")
    print(f'python -c "import duckdb"    {import_s:6.3f} s  (baseline)')
    print(f"ratio                        {query_s / import_s:6.2f}    times the baseline")
    if query_s > LIMIT_S:
        sys.exit(f"over the limit of {LIMIT_S:g} s")


def fill(database: str) -> int:
    """Make a warehouse of the bundled measurements; return the number of timings."""
    shipped_data.make_warehouse(database)
    with Store.open(database) as store:
        return store.write(shipped_data.measurements()).timings


def seconds(command: list[str]) -> tuple[float, int]:
    """Run a command; return its seconds and its number of printed lines."""
    begin = time.perf_counter()
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return time.perf_counter() - begin, finished.stdout.count(b"\n")


if __name__ == "__main__":
    main()
