"""Measure what a collector costs a compile: the same product compiled with and without one.

    python benchmarks/bench_collector_overhead.py [--repeats N]

One mm (1024 x 1024 by 1024 x 1024, float32) with Inductor's DEFAULT list of about 20 Triton kernels is compiled from
empty caches, in turns with and without a collector that spools. No GPU is needed: Inductor really lists and generates
the kernels, but nothing compiles or times them. On a GPU these steps take nearly all of a compile, so the share
printed here is far above the share there.

The difference of two compiles is lost in their noise. So the share is the time inside the collector's callbacks, plus
the processor time of its writer thread. A collector lives for several compiles, as in a process that compiles a model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from torch._inductor.utils import fresh_cache

from diode_collectors.feedback.collector import FeedbackCollector
from inductor_harness import compile_and_run, triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZE = 1024
_REPEATS = 5
_COMPILES = 5
"""Number of compiles per collector."""
_LIMIT = 0.01


class TimedCollector(FeedbackCollector):
    """A collector that records how long Inductor waited for it, and what its writer used."""

    def __init__(self, directory: str) -> None:
        """Spool in a folder below ``directory``."""
        self.inside_s = self.writer_s = 0.0
        super().__init__(directory)
        self._saver = self._timed(self._saver)
        self._offered._preprocess = self._timed(self._offered._preprocess)  # noqa: SLF001 - what Inductor calls

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.inside_s += time.perf_counter() - started

        return timed

    def _write_all(self) -> None:
        super()._write_all()
        self.writer_s = time.thread_time()


def main() -> int:
    """Run the benchmark; the exit code is 1 if the share is over one percent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=_REPEATS, help=f"rounds of {_COMPILES} compiles of each kind")
    options = parser.parse_args()
    torch.set_num_threads(1)
    matrix = torch.randn(_SIZE, _SIZE)
    compile_all(matrix)  # what torch imports on its first compile
    record_all(matrix)  # what we import and detect once a process
    without, with_collector, inside, writer, choices = [], [], [], [], 0
    for _ in range(options.repeats):
        without += compile_all(matrix)
        seconds, collector = record_all(matrix)
        with_collector += seconds
        inside.append(collector.inside_s / _COMPILES)
        writer.append(collector.writer_s / _COMPILES)
        choices = collector.stats.timings // collector.stats.recorded
    return report(choices, *map(statistics.median, (without, with_collector, inside, writer)), spread=spread(without))


def compile_all(matrix: torch.Tensor) -> list[float]:
    """Return the seconds of several compiles from empty caches."""
    with triton_choices_on_cpu():
        return [_compile_s(matrix) for _ in range(_COMPILES)]


def record_all(matrix: torch.Tensor) -> tuple[list[float], TimedCollector]:
    """Return the seconds of several compiles from empty caches with a collector, and the collector."""
    with tempfile.TemporaryDirectory() as folder, triton_choices_on_cpu(), TimedCollector(folder) as collector:
        seconds = [_compile_s(matrix) for _ in range(_COMPILES)]
    return seconds, collector


def _compile_s(matrix: torch.Tensor) -> float:
    with fresh_cache():
        started = time.perf_counter()
        compile_and_run(torch.mm, matrix, matrix)
        return time.perf_counter() - started


def spread(seconds: list[float]) -> float:
    """Return half the distance of the quartiles as a share of the median."""
    quartiles = statistics.quantiles(seconds, n=4)
    return (quartiles[2] - quartiles[0]) / 2 / quartiles[1]


def report(choices: int, without: float, with_collector: float, inside: float, writer: float, *, spread: float) -> int:
    """Print medians in milliseconds, and their ratios to the compile without a collector."""
    print(f"mm with {choices} choices, compiled from nothing; medians per compile")
    print(f"compile without a collector (baseline)   {without * 1e3:9.2f} ms   1.0000   +- {spread:.3f} (quartiles)")
    print(f"compile with a collector                 {with_collector * 1e3:9.2f} ms   {with_collector / without:.4f}")
    print(f"  inside its callbacks                   {inside * 1e3:9.2f} ms   {inside / without:.4f}")
    print(f"  processor time of its writer thread    {writer * 1e3:9.2f} ms   {writer / without:.4f}")
    share = (inside + writer) / without
    print(f"overhead: {share:.2%} of this compile, in which no kernel is compiled or timed; the limit is {_LIMIT:.0%}")
    return int(share > _LIMIT)


if __name__ == "__main__":
    sys.exit(main())
