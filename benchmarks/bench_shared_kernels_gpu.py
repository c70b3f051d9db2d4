"""Measure how `diode-collect --share-kernels` changes the times of kernels, and what it saves, on a GPU.

    PYTHONPATH=.:collectors:trainer:integration python benchmarks/bench_shared_kernels_gpu.py --output shared.jsonl

Each problem is timed by the same kernels three times: as Inductor writes them, with sizes as arguments, and again as
Inductor writes them, to show the noise. Then a problem of slightly different sizes is timed, which finds all kernels
compiled. The table shows the ratios of the two kinds of times, the loss of choosing by shared kernels, and the compile
seconds. Problems whose rows are not a multiple of 16 bytes share no kernels, so they are left out. Results are
appended, and existing ones are not repeated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import numpy as np
import results

from diode_collectors.inductor.device import use_torchs_assembler
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.plan import DEFAULT_MODE
from diode_store.candidates.default_space import LARGEST_BLOCK
from diode_store.candidates.operands import has_whole_rows
from diode_store.command_line.console import print_rows

if TYPE_CHECKING:
    from diode_collectors.sweep.lane.measuring import Measured, Measuring
    from diode_store.records import KernelConfig

PROBLEMS = (
    "mm:512x3072x1024/nt/bf16",
    "mm:16x11008x4096/nt/bf16",
    "mm:2048x5120x1280/nn/bf16",
    "bmm:200x77x40:64/nt/bf16",
    "addmm:1024x3072x768/nt/bf16",
    "mm:300x1032x1024/nt/tf32",
    "bmm:1024x64x1024:24/nn/bf16",
    "mm:4096x4096x4096/nt/bf16",
    "mm:1024x768x4096/tn/bf16",
    "mm:64x2048x512/nn/fp16",
    "mm:8192x512x520/nt/bf16",
    "mm:32x4096x16384/nt/bf16",
)
_SPACE = "SAMPLE:28"
_COMPILE_WORKERS = 15


def main() -> int:
    """Time, append and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file for results, one JSON line per problem")
    parser.add_argument("--problem", action="append", help="problem as in diode-collect; repeatable (default: twelve)")
    parser.add_argument("--time-limit-s", type=float, default=300.0, help="start no problem after this many seconds")
    options = parser.parse_args()
    problems = [parse_problem(text) for text in options.problem or PROBLEMS]
    if odd := [str(problem) for problem in problems if not has_whole_rows(problem)]:
        parser.error(f"rows must be a multiple of 16 bytes, else no kernel is shared: leave out {', '.join(odd)}")
    there = {line["problem"] for line in results.read(options.output)}
    left = [problem for problem in problems if str(problem) not in there]
    deadline = time.time() + options.time_limit_s
    if left:
        _time(left, options.output, deadline)
    _show(results.read(options.output))
    return 0


def _time(problems: list[SweepProblem], output: Path, deadline: float) -> None:
    use_torchs_assembler()  # before torch is imported
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    from diode_collectors.sweep.lane.measuring import Measuring, MeasuringOptions

    config.compile_threads = _COMPILE_WORKERS
    AsyncCompile.wait_pool_ready()
    with tempfile.TemporaryDirectory() as folder:
        options = MeasuringOptions(
            device="cuda:0",
            space=SearchSpace.parse(_SPACE),
            sweep_id="bench",
            seed=0,
            include_tma=True,
            mode=DEFAULT_MODE,
            lock_folder=Path(folder),
            share_kernels=True,
        )
        with Measuring(options) as measuring:
            measuring.measure(parse_problem("mm:64x128x128/nn/bf16"))  # has Inductor and its workers load
            for problem in problems:
                if time.time() < deadline:
                    results.append(output, _compared(measuring, problem, Path(folder) / "kernels"))


def _compared(measuring: Measuring, problem: SweepProblem, kernels: Path) -> dict[str, Any]:
    """Return the times of a problem's kernels, both ways, and the compile seconds."""
    measuring.kernels = None
    own = measuring.measure(problem)
    measuring.kernels = kernels
    shared = measuring.measure(problem)
    kin = measuring.measure(_kin(problem))
    measuring.kernels = None
    again = measuring.measure(problem)
    times = [_times(each) for each in (own, shared, again)]
    configs = [config for config in times[0] if all(config in found for found in times)]
    return {
        "problem": str(problem),
        "vendor": [config.is_vendor for config in configs],
        **{
            name: [of[config] for config in configs] for name, of in zip(("own", "shared", "again"), times, strict=True)
        },
        "compile_s": [round(each.compile_s, 2) for each in (own, shared, kin, again)],
        "kernels": len(configs),
    }


def _kin(problem: SweepProblem) -> SweepProblem:
    """Return a problem of other sizes with equally large blocks."""
    return replace(problem, m=problem.m + 8) if problem.m >= LARGEST_BLOCK else replace(problem, n=problem.n + 8)


def _times(measured: Measured) -> dict[KernelConfig, float]:
    """Return the measured times of kernels in microseconds, without those given up early."""
    if measured.measurement is None:
        return {}
    timings = measured.measurement.timings
    return {t.config: t.runtime_us for t in timings if t.runtime_us is not None and not t.is_estimate}


def _show(lines: list[dict[str, Any]]) -> None:
    rows, lost, compile_s = [], [], np.zeros(2)
    for line in lines:
        own, shared, again = (np.array(line[name]) for name in ("own", "shared", "again"))
        ours = ~np.array(line["vendor"], dtype=bool)
        ratio, noise = np.log(shared / own)[ours], np.log(again / own)[ours]
        lost.append(float(own[shared.argmin()] / own.min()))
        own_s, _, kin_s, _ = line["compile_s"]
        compile_s += (own_s, kin_s)
        figures = (np.median(ratio), ratio.std(), np.median(noise), noise.std(), lost[-1] - 1)
        said = (f"{100 * figure:+.1f}%" for figure in figures)
        rows.append((line["problem"], f"{own.min():.1f}", *said, f"{own_s:.1f}", f"{kin_s:.1f}"))
    columns = ("problem", "fastest, us", "shift", "scatter", "again", "scatter", "loses", "compiles, s", "kin, s")
    print_rows(columns, rows, title="Kernels whose sizes are arguments, beside Inductor's own")
    if lines:
        ratio = compile_s[0] / max(compile_s[1], 1e-9)
        print(f"choosing by the shared ones loses {100 * (geometric_mean(lost) - 1):.2f}% in the mean;")
        print(f"a problem of slightly other sizes compiles in 1/{ratio:.1f} of the time")


if __name__ == "__main__":
    sys.exit(main())
