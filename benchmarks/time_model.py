"""Compile one model in several ways, time all in turns, and append a line to a file; see ``bench_models_gpu.py``."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_collectors.inductor.device import use_torchs_assembler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

use_torchs_assembler()

import torch  # noqa: E402 - reads the environment set above
from compiling import from_nothing, own_code  # noqa: E402
from model_cases import PLAIN  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor import list_mode_options  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402
from whole_models import DEVICE, WORKLOADS, Workload  # noqa: E402

from diode_collectors.inductor.device import detect_environment  # noqa: E402
from diode_collectors.matmul import collect_to_spool  # noqa: E402
from diode_integration.choices import DiodeInductorChoices  # noqa: E402

_ROUNDS = 9
_BLOCKS = 5
"""Blocks of calls in a turn; their median counts."""
_BLOCK_MS = 30
_FEWEST_CALLS, _MOST_CALLS = 5, 150
"""Calls of a block. The device queues about a thousand launches, and a call has a few."""
_CYCLES_PER_MS = 2_000_000
_GEMM = {"triton.cudagraphs": True, "max_autotune_gemm": True}
_ALL = {**list_mode_options("max-autotune")}


class Way(NamedTuple):
    """A way to compile; without options, the model runs as it is."""

    options: dict[str, Any] | None = None
    """Options of ``torch.compile``."""
    hook: dict[str, Any] | None = None
    """Options of the hook, where there is one."""


WAYS = {
    "eager": Way(),
    "plain": Way({"triton.cudagraphs": True}),
    "stock": Way(_GEMM),
    "zero": Way(_GEMM, {"mode": "zero"}),
    "adaptive": Way(_GEMM, {"mode": "adaptive"}),
    "top_k": Way(_GEMM, {"top_k_configs": 3}),
    "plain-picks": Way({"triton.cudagraphs": True}, {"mode": "zero"}),
    "max-autotune": Way(_ALL),
    "max-autotune-zero": Way(_ALL, {"mode": "zero"}),
    "max-autotune-adaptive": Way(_ALL, {"mode": "adaptive"}),
    "max-autotune-top_k": Way(_ALL, {"top_k_configs": 3}),
}


def main() -> int:
    """Measure one model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=list(WORKLOADS))
    parser.add_argument("--way", required=True, help="comma list, in the order of compiling")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--warm-up", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--spool", type=Path)
    parser.add_argument("--picks", type=Path)
    options = parser.parse_args()
    line = {"model": options.model, "repeat": options.repeat, "warm_up": options.warm_up, **_where()}
    with collect_to_spool(options.spool) if options.spool else nullcontext():
        line["ways"] = found = _measure(options)
    with options.output.open("a") as output:
        output.write(json.dumps(line) + "\n")
    print(options.model, *(_summary(way, found[way]) for way in found), sep="; ", file=sys.stderr)
    return 0


def _measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Compile in every way, then time all; a way that fails is reported and left out."""
    workload = WORKLOADS[options.model]()
    torch.set_float32_matmul_precision(workload.fp32_precision)  # the process runs no other model
    AsyncCompile.warm_pool()
    AsyncCompile.wait_pool_ready()
    with nullcontext() if workload.parameters else torch.no_grad():
        expected = _results(workload, workload.call)
        # The first compile and the first use of the hook load and cache much; this is not timed.
        with from_nothing(DiodeInductorChoices(options.checkpoint, mode="zero")):
            square = torch.eye(256, device=DEVICE, dtype=torch.bfloat16)
            torch.compile(lambda a: a @ a, options={"max_autotune_gemm": True})(square)
        if options.warm_up:
            _compile(workload, WAYS[PLAIN], options)
        found: dict[str, dict[str, Any]] = {}
        compiled = {}
        for way in options.way.split(","):
            try:
                compiled[way], found[way] = _compile(workload, WAYS[way], options)
                found[way]["max_relative_error"] = _error(_results(workload, compiled[way]), expected)
            except Exception as error:  # one way that fails costs a cell, not the model
                if way == PLAIN:
                    raise
                compiled.pop(way, None)
                found[way] = {"failed": f"{type(error).__name__}: {error}"[:500]}
        for way, rounds_ms in _rounds_ms(workload, compiled).items():
            found[way] |= {"call_ms": statistics.median(rounds_ms), "rounds_ms": rounds_ms}
    return found


def _results(workload: Workload, call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Return copies of the results of a step: the output, and some of the gradients."""
    torch.compiler.cudagraph_mark_step_begin()
    output = workload.run(call).detach().float().clone()
    some = workload.parameters[:: max(len(workload.parameters) // 8, 1)]
    results = [output, *(p.grad.float().clone() for p in some if p.grad is not None)]
    workload.forget_gradients()
    return results


def _error(got: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Return the largest difference, relative to the largest expected value."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, expected, strict=True))


def _compile(
    workload: Workload, way: Way, options: argparse.Namespace
) -> tuple[Callable[..., torch.Tensor], dict[str, Any]]:
    """Compile from empty caches; return the compiled model and the results of its first call."""
    if way.options is None:
        return workload.call, {"first_call_s": None, "kernels_benchmarked": 0, "hook": {}}
    handler = None
    if way.hook is not None:
        handler = DiodeInductorChoices(options.checkpoint, picks=options.picks, enable_fallback=False, **way.hook)
    skips, benchmarks = counters["inductor"]["cudagraph_skips"], _benchmarks()
    with from_nothing(handler) as timings, inductor_config.patch(autotune_local_cache=False):
        # A graph break would leave frames behind that the next way finds compiled.
        compiled = torch.compile(own_code(workload.call), options=way.options, fullgraph=True)
        torch.cuda.synchronize()
        torch.compiler.cudagraph_mark_step_begin()
        started = time.perf_counter()
        workload.run(compiled)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    workload.forget_gradients()
    return compiled, {
        "first_call_s": round(seconds, 3),
        "kernels_benchmarked": sum(map(len, timings)),
        "benchmarked": _by_template(choice for found in timings for choice in found),
        "tuned": len(timings),
        "inductor_benchmarks": _benchmarks() - benchmarks,
        "cudagraph_skips": counters["inductor"]["cudagraph_skips"] - skips,
        "hook": _what_it_did(handler) if handler else {},
    }


def _benchmarks() -> int:
    """Return how often Inductor's own benchmarker timed anything on the GPU, fused kernels too."""
    counted = counters["inductor"].items()
    return sum(count for name, count in counted if name.startswith("benchmarking.") and name.endswith(".benchmark_gpu"))


def _by_template(choices: Iterable[Any]) -> dict[str, int]:
    """Return how many kernels of each template or vendor call were benchmarked."""
    return dict(Counter(re.sub(r"(_\d+)+$", "", str(getattr(choice, "name", choice))) for choice in choices))


def _what_it_did(handler: DiodeInductorChoices) -> dict[str, Any]:
    """Return the hook's statistics, and who decided on each matrix product, counted once and by call."""
    decided = [decision for decision in handler.decisions() if decision.problem is not None]
    distinct = {(decision.op, str(decision.problem)): decision for decision in decided}
    calls, once = (Counter(str(d.decided_by) for d in found) for found in (decided, distinct.values()))
    undecided = sorted({d.describe() for d in handler.decisions() if d.abstained})
    return {**handler.get_stats(), "calls": calls, "distinct": once, "not_decided": undecided}


def _rounds_ms(workload: Workload, calls: dict[str, Callable[..., torch.Tensor]]) -> dict[str, list[float]]:
    """Return the times of rounds in which all compiled ways take turns, in a random order.

    Eager mode is timed separately: its launches leave the GPU idle, so the next way would find a higher clock.
    """
    found: dict[str, list[float]] = {way: [] for way in calls}
    compiled = [way for way in calls if WAYS[way].options is not None]
    times = {way: _Turn(workload, calls[way], hidden=way in compiled) for way in calls}
    draws = random.Random(0)  # noqa: S311 - not cryptography
    turns = [way for _ in range(_ROUNDS) for way in draws.sample(compiled, len(compiled))]
    for way in turns + [way for way in calls if way not in compiled] * _ROUNDS:
        found[way].append(round(times[way].time_ms(), 6))
    return found


class _Turn:
    """Times blocks of calls. A device sleep in front of each block hides the launches of compiled calls.

    A call under CUDA graphs is checked and launched in a fraction of a millisecond. Without the sleep, blocks of short
    calls would time this fraction, which is the same in all ways.
    """

    def __init__(self, workload: Workload, call: Callable[..., torch.Tensor], *, hidden: bool) -> None:
        self._workload, self._call = workload, call
        self._calls, self._host_ms = _FEWEST_CALLS, 0.0
        self._sleep_ms = _BLOCK_MS if hidden else 0.0
        self._block_ms()
        call_ms, launch_ms = self._block_ms() / self._calls, self._host_ms / self._calls
        self._calls = min(max(round(_BLOCK_MS / call_ms), _FEWEST_CALLS), _MOST_CALLS)
        if hidden:  # one launch is ahead of the first call; where launches take longer than calls, more are
            ahead_ms = max(launch_ms, launch_ms * self._calls - call_ms * (self._calls - 1))
            self._sleep_ms = 1 + 1.5 * ahead_ms

    def time_ms(self) -> float:
        """Return the time of a call: the median of blocks, after one that warms up."""
        return statistics.median([self._block_ms() / self._calls for _ in range(_BLOCKS + 1)][1:])

    def _block_ms(self) -> float:
        """Return the device time of a block of calls."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        if self._sleep_ms:
            torch.cuda._sleep(int(self._sleep_ms * _CYCLES_PER_MS))  # noqa: SLF001 - the only device sleep there is
        start.record()
        started = time.perf_counter()
        for _ in range(self._calls):
            torch.compiler.cudagraph_mark_step_begin()
            self._workload.run(self._call)
            self._workload.forget_gradients()
        self._host_ms = 1000 * (time.perf_counter() - started)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)


def _where() -> dict[str, Any]:
    """Return the environment of the figures."""
    import transformers

    environment = detect_environment()
    return {
        "device": torch.cuda.get_device_name(),
        "torch": environment.torch,
        "triton": environment.triton,
        "driver": environment.driver,
        "transformers": transformers.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "date": time.strftime("%Y-%m-%d"),
    }


def _summary(way: str, found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"{way} failed: {found['failed']}"
    return f"{way} {found['first_call_s']} s, {found['call_ms']:.4f} ms, {found['kernels_benchmarked']} benchmarked"


if __name__ == "__main__":
    sys.exit(main())
