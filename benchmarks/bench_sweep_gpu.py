"""Measure choices per second of ``diode-collect`` against plain ``torch.compile``, on the same problems.

The plain way is ``torch.compile`` with max-autotune and a bare feedback saver.

    python benchmarks/bench_sweep_gpu.py                       # one GPU, all cores of this host
    python benchmarks/bench_sweep_gpu.py --devices 4           # and the same with more GPUs, against one of them
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.engine import run_sweep
from diode_collectors.sweep.plan import ProblemResult, SilentListener, SweepPlan, SweepReport

CPU_SECONDS_A_CHOICE = 0.45
"""Processor seconds to compile a Triton choice on a fully loaded H200 host; the cores divided by them give a ceiling.

A compile costs less if virtual cores share physical ones that others leave idle, so the run prints its own figure too.
"""
PLAIN = [SweepProblem("mm", 8, 4096, 4096), SweepProblem("mm", 16, 2048, 8192)]
PLAIN_ROUTE = """
import json, sys, time, warnings
import torch, torch._inductor.config as config
from torch._inductor.select_algorithm import add_feedback_saver
from torch._inductor.utils import fresh_cache
warnings.simplefilter("ignore")
seen = []
add_feedback_saver(lambda timings, *_: seen.append(len(timings)))
config.patch(max_autotune_gemm_search_space="EXHAUSTIVE", max_autotune_gemm_backends="TRITON,ATEN",
             max_autotune_prune_choices_based_on_shared_mem=True).__enter__()
config.patch({"triton.num_decompose_k_splits": 0}).__enter__()
problems = json.loads(sys.argv[1])
torch.mm(torch.zeros(16, 16, device="cuda"), torch.zeros(16, 16, device="cuda"))
started = time.monotonic()
for m, n, k in problems:
    torch.compiler.reset()
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    with fresh_cache(), torch.no_grad():
        torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")(a, b)
torch.cuda.synchronize()
print("RESULT", sum(seen), time.monotonic() - started)
"""


def busy_s() -> float:
    """Return the processor seconds of all processes of this host since its start."""
    fields = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _waiting, *interrupts = fields[:8]
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


class Printer(SilentListener):
    """Prints the time of each phase."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        """Processor seconds of the host when the first problem started."""

    def on_begin(self, total: int, skipped: int) -> None:  # noqa: ARG002 - the protocol's names
        """Start to count processor time."""
        self.busy_s = busy_s()

    def on_result(self, result: ProblemResult) -> None:
        """Print one line per problem."""
        print(
            f"  {result.problem}: {result.timings} choices, {result.failures} failed, {result.estimates} estimates; "
            f"compiled {result.compile_s:.1f} s, waited {result.wait_s:.1f} s, held the GPU {result.benchmark_s:.1f} s"
            f"{' ' + ','.join(result.flags) if result.flags else ''}{' ' + (result.silent or result.error or '')}"
        )

    def on_note(self, message: str) -> None:
        """Print the message."""
        print(f"  {message}")


def plain(problems: list[SweepProblem]) -> tuple[int, float]:
    """Return the choices and seconds of the plain way."""
    shapes = json.dumps([(p.m, p.n, p.k) for p in problems])
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_PTXAS_PATH"}
    said = subprocess.run(
        [sys.executable, "-c", PLAIN_ROUTE, shapes], capture_output=True, text=True, check=True, env=environment
    )
    line = next(line for line in said.stdout.splitlines() if line.startswith("RESULT"))
    return int(line.split()[1]), float(line.split()[2])


def ours(problems: list[SweepProblem], devices: int, **options: Any) -> tuple[SweepReport, float, float]:
    """Return the report of a sweep, its seconds including the start, and its processor seconds per choice."""
    with tempfile.TemporaryDirectory() as folder:
        plan = SweepPlan(
            tuple(problems),
            Path(folder) / "spool",
            tuple(f"cuda:{i}" for i in range(devices)),
            SearchSpace("EXHAUSTIVE"),
            uuid.uuid4().hex,
            include_tma=False,
            **options,
        )
        started = time.monotonic()
        printer = Printer()
        report = run_sweep(plan, printer)
        cost_s = (busy_s() - printer.busy_s) / max(report.timings, 1)
        print(f"  {cost_s:.2f} processor seconds a choice")
        return report, time.monotonic() - started, cost_s


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1, help="number of GPUs to compare with one")
    parser.add_argument("--cores", type=int, help="cores for one GPU (default: all, with several GPUs their share)")
    parser.add_argument("--skip-plain", action="store_true", help="leave out the plain way")
    parser.add_argument("--problems", type=int, default=6, help="problems per GPU when several are compared")
    asked = parser.parse_args()
    cores = asked.cores or (len(os.sched_getaffinity(0)) // asked.devices)
    ceiling = cores / CPU_SECONDS_A_CHOICE
    if not asked.skip_plain:
        choices, seconds = plain(PLAIN)
        slow = choices / seconds
        print(f"plain route: {choices} choices in {seconds:.1f} s, {slow:.2f} choices/s")
        report, wall, _ = ours(PLAIN, 1, cores=cores)
        print(f"diode-collect: {report.timings} choices in {report.seconds:.1f} s ({wall:.1f} s with its start)")
        rate = report.choices_per_s
        print(
            f"{rate:.1f} choices/s, {report.timings / wall:.1f} with its start; ceiling {ceiling:.1f} on {cores} cores"
        )
        print(f"ratio to the plain route: {rate / slow:.2f} (with its start {report.timings / wall / slow:.2f})")
    many = [SweepProblem("mm", 8, 1024 + 128 * i, 4096) for i in range(asked.problems * asked.devices)]
    one, _, alone_s = ours(many[: asked.problems], 1, cores=cores)
    print(f"one GPU, {asked.problems} problems: {one.choices_per_s:.1f} choices/s of a ceiling of {ceiling:.1f}")
    if asked.devices > 1:
        all_, _, together_s = ours(many, asked.devices)
        ratio = all_.choices_per_s / one.choices_per_s
        print(
            f"{asked.devices} GPUs, {len(many)} problems: {all_.choices_per_s:.1f} choices/s; ratio to one {ratio:.2f}"
        )
        # With all cores busy the same compile takes longer: virtual cores share physical ones, and the clock drops.
        print(f"what the host's cores allow: {asked.devices * alone_s / together_s:.2f}")


if __name__ == "__main__":
    main()
