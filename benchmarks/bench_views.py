"""Measure how long the views take over ten million timings, against a plain minimum over the same rows.

``benchmarks/scale.py`` makes the warehouse, unless ``--database`` names an existing one. Each question runs in its own
process: seconds are the best of ``--rounds``, memory is the peak of the process. The baseline is ``min(runtime_us)`` by
measurement over the same files. A question of a view that reads summaries is also asked "without summaries", so that
the view works everything out. Rates of training count the resulting rows; several measurements of one config are one
row.

    python benchmarks/bench_views.py --database /tmp/scale/warehouse.db
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import scale

from diode_store.cache.cache import Cache, cache_path
from diode_store.cache.sync import sync
from diode_store.query.analytics import open_cache
from diode_store.query.results import stream
from diode_store.system.settings import Settings
from diode_store.views.view_files import definition

if TYPE_CHECKING:
    import duckdb

_ALL = "SELECT count(*), sum(runtime_us), sum(len(tie_config_ids)) FROM"
QUESTIONS = {
    "baseline: min(runtime_us)": "SELECT count(*), sum(us) FROM (SELECT min(runtime_us) AS us FROM timings "
    "WHERE outcome = 'ok' AND NOT is_estimate GROUP BY measurement_id)",
    "fastest_configs, one device": f"{_ALL} fastest_configs WHERE hardware = 'NVIDIA H200'",
    "fastest_configs, everything": f"{_ALL} fastest_configs",
    "fastest_by_template, one device": "SELECT count(*) FROM fastest_by_template WHERE hardware = 'NVIDIA H200'",
    "config_rank, one device": "SELECT count(*), max(slowdown) FROM config_rank WHERE hardware = 'NVIDIA H200'",
    "vendor_gap": "SELECT count(*), avg(speedup) FROM vendor_gap",
    "coverage": "SELECT count(*), sum(timings) FROM coverage",
    "disagreements": "SELECT count(*), max(sigmas) FROM disagreements",
    "regressions, one device": "SELECT count(*), max(ratio) FROM regressions WHERE hardware = 'NVIDIA H200'",
}
TRAINING = "SELECT case_id, config_id, runtime_us, is_estimate FROM training_timings"
TRAINING_QUESTIONS = ("training rows as Arrow", "training rows as Arrow, ordered", "training stream, by problem")
LIMITS_S = {"fastest_configs, one device": 0.08, "fastest_configs, everything": 0.25, "vendor_gap": 0.1}
PLAIN = ", without summaries"


def main() -> None:
    """Measure, and print each figure beside the baseline."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--timings", type=int, default=10_000_000, help="approximate timings of a new warehouse")
    parser.add_argument("--database", type=Path, help="warehouse of scale.py; made there if missing")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of each question; the best counts")
    parser.add_argument("--ask", nargs=3, metavar=("CACHE", "QUESTION", "ROUNDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        print(json.dumps(answer(Path(options.ask[0]), options.ask[1], int(options.ask[2]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        database = options.database or Path(folder) / "warehouse.db"
        if not database.exists():
            scale.fill(str(database), options.timings)
        cache = cache_path(str(database), Settings.from_environment().cache_dir)
        report = sync(str(database), Cache(cache))
        print(f"{report.timings:,} timings of {report.measurements:,} measurements; best of {options.rounds}")
        measure(Path(str(cache)), options.rounds)


def measure(cache: Path, rounds: int) -> None:
    """Ask all questions of one cache."""
    baseline_s = 0.0
    print(f"{'':52} {'wall s':>7} {'CPU s':>7} {'ratio':>7} {'MiB':>6}")
    summarized = {f"{name}{PLAIN}" for name in QUESTIONS if re.search("^(fastest|vendor|coverage)", name)}
    asked = [each for name in QUESTIONS for each in (name, f"{name}{PLAIN}") if each in {*QUESTIONS, *summarized}]
    for question in (*asked, *TRAINING_QUESTIONS):
        found = ask(cache, question, rounds)
        baseline_s = baseline_s or found["wall_s"]
        rate = f"{found['rows'] / found['wall_s'] / 1e6:6.2f} M rows/s" if question in TRAINING_QUESTIONS else ""
        limit = f"limit {LIMITS_S[question]:g} s" if question in LIMITS_S else ""
        print(
            f"{question:52} {found['wall_s']:7.2f} {found['cpu_s']:7.2f} {found['wall_s'] / baseline_s:7.1f} "
            f"{found['peak_mib']:6.0f}  {rate}{limit}",
            flush=True,
        )


def ask(cache: Path, question: str, rounds: int) -> dict[str, float]:
    """Ask in a separate process, so that its memory is that of the question."""
    command = [sys.executable, __file__, "--ask", str(cache), question, str(rounds)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(finished.stdout)
    return found


def answer(cache: Path, question: str, rounds: int) -> dict[str, float]:
    """Return the best time of a question, its processor time, its rows and the peak of memory."""
    connection = open_cache(Cache(cache))
    if question.endswith(PLAIN):
        question = question.removesuffix(PLAIN)
        connection.execute(
            "CREATE VIEW weights AS SELECT id AS measurement_id, 1 AS weight FROM numbered_measurements "
            "WHERE superseded_by IS NULL"
        )
        for name in ("summaries", "covered"):
            connection.execute(f"CREATE OR REPLACE VIEW {name} AS {definition(name)}")
    times = []
    for _ in range(rounds):
        begin, began_cpu = time.perf_counter(), time.process_time()
        rows = rows_of(connection, question)
        times.append((time.perf_counter() - begin, time.process_time() - began_cpu))
    wall_s, cpu_s = min(times)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "rows": rows, "peak_mib": peak_mib()}


def peak_mib() -> float:
    """Return the peak of this process's memory; ``ru_maxrss`` would start at that of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return kib / 1024


def rows_of(connection: duckdb.DuckDBPyConnection, question: str) -> int:
    """Ask once; return the number of rows."""
    if question == "training stream, by problem":
        from diode_trainer.data.streaming import stream_examples

        return sum(len(examples) for examples in stream_examples(connection, "", []))
    if question in TRAINING_QUESTIONS:
        order = " ORDER BY case_id, config_id" if "ordered" in question else ""
        return sum(batch.num_rows for batch in stream(connection, TRAINING + order))
    return len(connection.execute(QUESTIONS[question]).fetchall())


if __name__ == "__main__":
    main()
