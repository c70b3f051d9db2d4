r"""Compare how well two clocks pick among the kernels that the hook keeps: Inductor's benchmark, and the hook's own.

    PYTHONPATH=.:collectors:trainer:integration python benchmarks/bench_clock_gpu.py \
        --shapeset benchmarks/data/h200-2026-11-held-back.txt --output clock.jsonl --time-limit 240

Each problem is compiled once with the hook in top-k mode. Both clocks time the same compiled kernels, in alternating
order. A sweep's clock then judges both picks in two runs. Several processes compile, and one at a time holds the GPU.
Problems of three size classes take turns until each class has enough. Needs a GPU, torch and triton. Results are
appended to the file, so a run can be resumed; ``--report`` only prints the table.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.device import use_torchs_assembler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from diode_collectors.problems.problem import SweepProblem

use_torchs_assembler()

import compiling  # noqa: E402, F401 - forgets what the environment asks the hook for
import results  # noqa: E402
import torch  # noqa: E402 - reads the environment set above
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor import select_algorithm  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402
from torch._inductor.utils import fresh_cache  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402

from diode_collectors.inductor.adapter import config_of_choice  # noqa: E402
from diode_collectors.inductor.graphs import OperandSets  # noqa: E402
from diode_collectors.inductor.running import captured, rotation_of  # noqa: E402
from diode_collectors.inductor.timer import GpuTimer  # noqa: E402
from diode_collectors.problems.shapesets import read_shapeset  # noqa: E402
from diode_collectors.sweep.lane.benchmark import Candidate, time_all  # noqa: E402
from diode_collectors.sweep.lane.exclusive import DeviceLock  # noqa: E402
from diode_collectors.sweep.lane.takeover import product  # noqa: E402
from diode_integration.choices import DiodeInductorChoices  # noqa: E402
from diode_integration.decide.clock import Clock  # noqa: E402
from diode_integration.inductor import benchmark  # noqa: E402
from diode_integration.inductor.entry import CallMark, RankedCall, mark_of  # noqa: E402
from diode_store.timing.noise import BANDS_US, band_of  # noqa: E402

_CLASSES = ("under 10 us", "10 to 30 us", "30 us and more")
_ANY_RATIO = 1e9
_BYTES_A_US, _LAUNCH_US = 3e6, 2.0
_FLOPS_A_US = {"fp32": 45e6, "tf32": 350e6}
_FLOPS_A_US_OF_OTHERS = 650e6
_JUDGEMENTS = 2
_SETTINGS = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON,ATEN",
    "max_autotune_prune_choices_based_on_shared_mem": True,
    "max_autotune_report_choices_stats": False,
    "fx_graph_cache": False,
    "autotune_local_cache": False,
    "benchmark_epilogue_fusion": False,
    "benchmark_template_fusion": False,
    "triton.num_decompose_k_splits": 0,
    "shape_padding": False,
}


class _EnoughError(Exception):
    """Ends a compile once everything is measured."""


@dataclass
class Judge:
    """Replaces Inductor's benchmark of a list of choices, and lets both clocks time it."""

    handler: DiodeInductorChoices
    lock: DeviceLock
    stock: Any
    """Inductor's ``benchmark_choices``."""
    prepare: Any
    """Inductor's ``benchmark_in_current_process``."""
    found: dict[str, Any] = field(default_factory=dict)
    _timer: GpuTimer | None = None
    _asked: int = 0

    def in_current_process(self, kind: Any, *given: Any, **named: Any) -> Any:
        """Hold the GPU while inputs are made and kernels are timed."""
        with self.lock:
            return self.prepare.__func__(kind, *given, **named)

    def benchmark(self, kind: Any, choices: Sequence[Any], tensors: Any, *_: Any, **__: Any) -> dict[Any, float]:
        """Let both clocks time the choices, judge the picks, and end the compile.

        Raises:
            _EnoughError: always, at the end.
        """
        for choice in choices:  # neither clock pays for the first load
            captured(choice, lambda choice=choice: kind.benchmark_choice(choice, tensors))()
        torch.cuda.synchronize()
        clocks: dict[str, Callable[[], dict[Any, float] | None]] = {
            Clock.INDUCTOR: lambda: self.stock.__func__(kind, choices, tensors),
            Clock.DEPLOYED: lambda: self._deployed(kind, choices, tensors),
        }
        self._asked += 1
        names = {choice: f"{place}: {config_of_choice(choice).describe()}" for place, choice in enumerate(choices)}
        for name in list(clocks)[:: -1 if self._asked % 2 else 1]:
            started = time.perf_counter()
            timings = clocks[name]()
            seconds = time.perf_counter() - started
            if timings is None:
                raise RuntimeError(f"no times by the clock {name}: {self.handler.get_stats()}")
            us = {names[choice]: 1e3 * ms for choice, ms in timings.items()}
            self.found[name] = {"seconds": seconds, "us": us, "pick": min(us, key=us.__getitem__)}
        self.found["predicted"] = {names[choice]: _predicted_us(choice) for choice in choices}
        self.found["reference"] = {names[choice]: us for choice, us in self._reference(kind, choices, tensors).items()}
        raise _EnoughError

    def _deployed(self, kind: Any, choices: Sequence[Any], tensors: Any) -> dict[Any, float] | None:
        self.handler.clock = Clock.DEPLOYED
        try:
            return benchmark.time_choices(kind, choices, tensors)
        finally:
            self.handler.clock = Clock.INDUCTOR  # else the hook's own wrap would come before this one

    def _reference(self, kind: Any, choices: Sequence[Any], tensors: Any) -> dict[Any, float]:
        """Return each choice's microseconds by a sweep's clock: the geometric mean of two runs."""
        timer = self._timer = self._timer or GpuTimer()
        both = [tensors.get_benchmark_tensors(is_extern).unpack() for is_extern in (True, False)]
        sets = OperandSets([tensor for inputs, output in both for tensor in (*inputs, output)])
        found: dict[Any, list[float]] = {choice: [] for choice in choices}
        for seed in range(_JUDGEMENTS):
            candidates = [_candidate(kind, choice, tensors, sets) for choice in choices]
            self.found["regime"] = time_all(candidates, timer, seed=seed).method.regime
            for choice, candidate in zip(choices, candidates, strict=True):
                found[choice].append(candidate.median_us if candidate.times_us else math.inf)
        timer.release()
        return {choice: math.exp(statistics.fmean(map(math.log, us))) for choice, us in found.items()}


def _candidate(kind: Any, choice: Any, tensors: Any, sets: OperandSets) -> Candidate:
    is_vendor = bool(kind._is_extern(choice))  # noqa: SLF001 - how Inductor itself marks it
    inputs, output = tensors.get_benchmark_tensors(is_vendor).unpack()

    def prepare() -> Callable[[], object]:
        return captured(choice, lambda: kind.benchmark_choice(choice, tensors))

    return Candidate(choice.name, is_vendor, prepare, rotation=rotation_of(choice, [*inputs, output], sets))


def _predicted_us(choice: Any) -> float | None:
    mark = mark_of(choice, CallMark)
    if mark is None or mark.index is None or not isinstance(mark.call, RankedCall):
        return None
    return float(mark.call.ranking.kernels_us[mark.index])


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapeset", type=Path, action="append", default=[], help="file of problems; repeatable")
    parser.add_argument("--output", type=Path, required=True, help="file for results, one JSON line per problem")
    parser.add_argument("--problems", type=int, default=100, help="problems of each size class (default: 100)")
    parser.add_argument("--time-limit", type=float, default=240, help="start no problem after this many seconds")
    parser.add_argument("--kept", type=int, default=3, help="templates that the hook keeps (default: 3)")
    parser.add_argument("--lanes", type=int, default=4, help="processes that compile (default: 4)")
    parser.add_argument("--model", help="checkpoint or name of a model; the hook's choice by default")
    parser.add_argument("--hardware", help="rank as if on this device, such as 'NVIDIA H200'")
    parser.add_argument("--report", action="store_true", help="only print the table of the results")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.lane is not None:
        _run_lane(options)
        return 0
    if not options.report:
        _run_lanes(options)
    print(_report(options.output))
    return 0


def _run_lanes(options: argparse.Namespace) -> None:
    """Let several processes compile, each with its share of the cores."""
    deadline = time.time() + options.time_limit
    threads = max(len(os.sched_getaffinity(0)) // options.lanes, 1)
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(threads), "BENCH_DEADLINE": str(deadline)}
    lanes = [
        subprocess.Popen([sys.executable, *sys.argv, "--lane", str(lane)], env=environment)
        for lane in range(options.lanes)
    ]
    for lane in lanes:
        lane.wait()


@torch.no_grad()
def _run_lane(options: argparse.Namespace) -> None:
    deadline = float(os.environ["BENCH_DEADLINE"])
    problems = list(_in_turn(problem for path in options.shapeset for problem in read_shapeset(path)))
    done = {line["problem"] for line in results.read(options.output)}
    mine = [problem for problem in problems[options.lane :: options.lanes] if str(problem) not in done]
    handler = DiodeInductorChoices(
        options.model,
        mode="top_k",
        top_k_configs=options.kept,
        performance_threshold=_ANY_RATIO,
        hardware=options.hardware,
        unknown="stock",
        clock=Clock.INDUCTOR,
        spool="",
        enable_fallback=False,
    )
    known = inductor_config.get_config_copy()
    with ExitStack() as stack:
        stack.enter_context(fresh_cache())
        stack.enter_context(inductor_config.patch({name: v for name, v in _SETTINGS.items() if name in known}))
        stack.enter_context(V.set_choices_handler(handler))
        judge = _judging(handler, stack)
        AsyncCompile.warm_pool()
        AsyncCompile.wait_pool_ready()
        for place, problem in enumerate([*mine[:1], *mine]):
            if time.time() > deadline:
                return
            if _count(options.output, _estimated_us(problem)) >= options.problems:
                continue
            line = _measured(problem, judge)
            if place:  # the first problem loads libraries and clocks, and is measured again
                results.append(options.output, line)


def _judging(handler: DiodeInductorChoices, stack: ExitStack) -> Judge:
    """Install a judge in place of Inductor's benchmark."""
    kind = select_algorithm.AlgorithmSelectorCache
    stock, prepare = kind.__dict__["benchmark_choices"], kind.__dict__["benchmark_in_current_process"]
    judge = Judge(handler, DeviceLock(Path(tempfile.gettempdir()), "bench-clock"), stock, prepare)
    stack.callback(setattr, kind, "benchmark_choices", stock)
    stack.callback(setattr, kind, "benchmark_in_current_process", prepare)
    stack.callback(benchmark.disengage)
    select_algorithm.PRINT_AUTOTUNE = False
    kind.benchmark_choices = classmethod(judge.benchmark)
    kind.benchmark_in_current_process = classmethod(judge.in_current_process)
    return judge


def _measured(problem: SweepProblem, judge: Judge) -> dict[str, Any]:
    judge.found = {}
    started = time.perf_counter()
    error = None
    try:
        torch.compiler.reset()
        torch.set_float32_matmul_precision("high" if problem.allow_tf32 else "highest")
        a, b, bias = _inputs(problem)
        torch.compile(product(problem.op, b, bias))(a)
        error = "nothing was benchmarked"
    except Exception as raised:  # noqa: BLE001 - one problem that fails must not cost the others
        if "reference" not in judge.found:
            error = f"{type(raised).__name__}: {raised}"[:500]
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    line = {"problem": str(problem), "compile_s": time.perf_counter() - started, **device}
    return {**line, **judge.found} if error is None else {**line, "error": error}


def _inputs(problem: SweepProblem) -> tuple[Any, Any, Any]:
    """Return A, B and the bias of a problem; None without a bias."""
    specs = [(spec.size, spec.stride) for spec in problem.problem().inputs]
    made = [torch.empty_strided(*spec, dtype=getattr(torch, problem.dtype), device="cuda") for spec in specs]
    return made[-2], made[-1], made[0] if len(made) > 2 else None  # noqa: PLR2004 - a bias comes first


def _estimated_us(problem: SweepProblem) -> float:
    """Estimate the time of the fastest kernel on a Hopper GPU."""
    rate = _FLOPS_A_US.get(problem.short_dtype, _FLOPS_A_US_OF_OTHERS)
    return max(problem.memory_bytes / _BYTES_A_US, problem.flops / rate) + _LAUNCH_US


def _in_turn(problems: Iterable[SweepProblem]) -> Iterator[SweepProblem]:
    """Yield problems in turns over the size classes, by the estimate."""
    classes: list[list[SweepProblem]] = [[] for _ in BANDS_US]
    for problem in dict.fromkeys(problems):
        classes[band_of(_estimated_us(problem))].append(problem)
    for group in classes:
        random.Random(0).shuffle(group)  # noqa: S311 - an order is no secret
    for place in range(max(map(len, classes))):
        yield from (group[place] for group in classes if place < len(group))


def _count(path: Path, us: float) -> int:
    """Return the number of problems in the file of the class of ``us``."""
    return sum(band_of(min(line["reference"].values())) == band_of(us) for line in _judged(path))


def _judged(path: Path) -> list[dict[str, Any]]:
    return [line for line in results.read(path) if "reference" in line and len(line["reference"]) > 1]


def _report(path: Path) -> str:
    """Return the results as a Markdown table by size class."""
    judged = _judged(path)
    head = ("fastest", "problems", "kernels", *(f"regret, {name}" for name in ("Inductor", "deployed", "prediction")))
    columns = (*head, "picks differ", "s a problem, Inductor", "deployed")
    rows = [columns, ("---",) * len(columns)]
    groups = [
        (name, [line for line in judged if band_of(min(line["reference"].values())) == place])
        for place, name in enumerate(_CLASSES)
    ]
    rows += [_row(name, lines) for name, lines in [*groups, ("all", judged)] if lines]
    errors = [f"{line['problem']}: {line['error']}" for line in results.read(path) if "error" in line]
    note = "regret: geometric mean of the pick's time over the best of the kept kernels' (worst), by a sweep's clock"
    shown = [f"{len(errors)} problems were not judged, such as {errors[0]}"] if errors else []
    return "\n".join([*("| " + " | ".join(row) + " |" for row in rows), note, *shown])


def _row(name: str, lines: list[dict[str, Any]]) -> tuple[str, ...]:
    picks = [
        [line["inductor"]["pick"] for line in lines],
        [line["deployed"]["pick"] for line in lines],
        [min(line["predicted"], key=lambda key: line["predicted"][key] or math.inf) for line in lines],
    ]
    regrets = [
        [line["reference"][pick] / min(line["reference"].values()) for line, pick in zip(lines, of, strict=True)]
        for of in picks
    ]
    differ = statistics.fmean(a != b for a, b in zip(*picks[:2], strict=True))
    seconds = [statistics.fmean(line[clock]["seconds"] for line in lines) for clock in ("inductor", "deployed")]
    return (
        name,
        str(len(lines)),
        f"{statistics.fmean(len(line['reference']) for line in lines):.1f}",
        *(f"{statistics.geometric_mean(regret):.4f} ({max(regret):.2f})" for regret in regrets),
        f"{differ:.0%}",
        *(f"{value:.3f}" for value in seconds),
    )


if __name__ == "__main__":
    sys.exit(main())
