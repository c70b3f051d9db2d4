"""What the hook costs and gains on whole models: seconds of the first call and milliseconds of the following ones.

    PYTHONPATH=.:collectors:trainer:integration python benchmarks/bench_models_gpu.py --output results.jsonl

Each model is made from its configuration with random weights and compiled from nothing (empty Inductor and Triton
caches, warmed compile workers) by plain ``torch.compile``, with ``max_autotune_gemm`` alone, with the hook in each of
its modes beside that, and all again with ``mode="max-autotune"``. Then all take turns under CUDA graphs, in an order
that is drawn for each round; eager is timed by itself. Needs a GPU, torch, triton, numpy, msgpack and transformers.
Each model is a process of its own, and its results are appended to the file, so that a run can be spread over several;
what it is compared with must be in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_collectors.inductor.device import use_torchs_assembler

if TYPE_CHECKING:
    from collections.abc import Callable


use_torchs_assembler()

import torch  # noqa: E402 - reads the environment set above
from compiling import from_nothing, own_code  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor import list_mode_options  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402
from whole_models import CASES, Workload  # noqa: E402

from diode_integration.choices import DiodeInductorChoices  # noqa: E402

_ROUNDS = 7
_CALLS = 20
"""Calls a round, timed one by one."""
PLAIN, STOCK = "torch.compile", "max_autotune_gemm"
_GEMM = {"triton.cudagraphs": True, STOCK: True}
_ALL = {**list_mode_options("max-autotune")}


class Variant(NamedTuple):
    """A way to compile; without options, the model runs as it is."""

    options: dict[str, Any] | None = None
    """Of ``torch.compile``."""
    hook: dict[str, Any] | None = None
    """Of the hook, where there is one."""


VARIANTS = {
    "eager": Variant(),
    PLAIN: Variant({"triton.cudagraphs": True}),
    STOCK: Variant(_GEMM),
    "hook zero": Variant(_GEMM, {"mode": "zero"}),
    "hook top 3": Variant(_GEMM, {"top_k_configs": 3}),
    "hook adaptive": Variant(_GEMM, {"mode": "adaptive"}),
    "max-autotune": Variant(_ALL),
    "max-autotune hook zero": Variant(_ALL, {"mode": "zero"}),
    "max-autotune hook top 3": Variant(_ALL, {"top_k_configs": 3}),
}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file that gets one JSON line a result")
    parser.add_argument("--cases", default=",".join(CASES), help="a comma list (default: all)")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="a comma list (default: all)")
    parser.add_argument("--model", type=Path, help="checkpoint; the best shipped model if not given")
    parser.add_argument("--time-limit-s", type=float, default=math.inf, help="start no model after this many seconds")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases, variants = options.cases.split(","), options.variants.split(",")
    if unknown := [name for name in cases if name not in CASES] + [name for name in variants if name not in VARIANTS]:
        parser.error(f"unknown: {', '.join(unknown)}; cases: {', '.join(CASES)}; variants: {', '.join(VARIANTS)}")
    if options.in_process:
        return _run(cases[0], variants, options)
    deadline, failed = time.monotonic() + options.time_limit_s, 0
    for number, case in enumerate(cases):
        if time.monotonic() > deadline:
            print(f"stopped after {number} of {len(cases)} models: time limit", file=sys.stderr)
            break
        run = subprocess.run([sys.executable, *sys.argv, "--in-process", "--cases", case], check=False)
        failed += run.returncode != 0
    print(_report(options.output))
    return int(bool(failed))


def _run(name: str, variants: list[str], options: argparse.Namespace) -> int:
    """Compile one model in every way, time all in turns, and append what was seen."""
    workload = CASES[name]()
    AsyncCompile.warm_pool()
    AsyncCompile.wait_pool_ready()
    with nullcontext() if workload.parameters else torch.no_grad():
        expected = _results(workload, workload.call)
        # What every first compile and every first use of the hook loads is paid for before anything is timed.
        with from_nothing(DiodeInductorChoices(options.model, mode="zero")):
            square = torch.eye(256, device="cuda", dtype=torch.bfloat16)
            torch.compile(lambda a: a @ a, options={STOCK: True})(square)
        results, compiled = {}, {}
        for variant in variants:
            compiled[variant], results[variant] = _compile(workload, VARIANTS[variant], options.model)
            torch.compiler.cudagraph_mark_step_begin()
            got = _results(workload, compiled[variant])
            errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, expected, strict=True)]
            results[variant]["max_relative_error"] = max(errors)
        rounds = _rounds_ms(workload, compiled)
    with options.output.open("a") as output:
        for variant in variants:
            spread = {"call_ms": statistics.median(rounds[variant]), "rounds_ms": rounds[variant]}
            line = {"model": name, "variant": variant, **results[variant], **spread, **_where()}
            output.write(json.dumps(line) + "\n")
    return 0


def _results(workload: Workload, call: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """Return copies of what a step computes: the output, and some of the gradients."""
    output = workload.run(call).detach().float().clone()
    some = workload.parameters[:: max(len(workload.parameters) // 8, 1)]
    results = [output, *(p.grad.float().clone() for p in some if p.grad is not None)]
    workload.forget_gradients()
    return results


def _compile(
    workload: Workload, variant: Variant, model: Path | None
) -> tuple[Callable[[torch.Tensor], torch.Tensor], dict[str, Any]]:
    """Compile from nothing; return the compiled model and what its first call showed."""
    if variant.options is None:
        return workload.call, {"first_call_s": None, "kernels_benchmarked": 0, "tuned": 0, "hook": {}}
    handler = DiodeInductorChoices(model, enable_fallback=False, **variant.hook) if variant.hook is not None else None
    with from_nothing(handler) as timings, inductor_config.patch(autotune_local_cache=False):
        # A graph break would leave frames behind that the next variant finds compiled.
        compiled = torch.compile(own_code(workload.call), options=variant.options, fullgraph=True)
        torch.cuda.synchronize()
        torch.compiler.cudagraph_mark_step_begin()
        started = time.perf_counter()
        workload.run(compiled)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    workload.forget_gradients()
    kernels = sum(map(len, timings))
    found = {"first_call_s": seconds, "kernels_benchmarked": kernels, "tuned": len(timings)}
    return compiled, {**found, "hook": _what_it_did(handler) if handler else {}}


def _what_it_did(handler: DiodeInductorChoices) -> dict[str, Any]:
    """Return the hook's statistics, and who decided on which matrix products, each counted once and by call."""
    decided = [decision for decision in handler.decisions() if decision.op != "convolution"]
    distinct = {(decision.op, str(decision.problem)): decision for decision in decided}
    calls, once = (Counter(str(d.decided_by) for d in found) for found in (decided, distinct.values()))
    left = sorted({d.describe() for d in handler.decisions() if d.abstained})
    return {**handler.get_stats(), "calls": calls, "distinct": once, "not_decided": left}


def _rounds_ms(workload: Workload, calls: dict[str, Callable[[torch.Tensor], torch.Tensor]]) -> dict[str, list[float]]:
    """Return the median device times of rounds in which all compiled ones take turns, in an order that is drawn.

    Launches leave the GPU idle in eager mode, so that what runs next finds a higher clock: it is timed by itself.
    """
    found: dict[str, list[float]] = {variant: [] for variant in calls}
    compiled = [variant for variant in calls if VARIANTS[variant].options is not None]
    draws = random.Random(0)  # noqa: S311 - not cryptography
    turns = [variant for _ in range(_ROUNDS) for variant in draws.sample(compiled, len(compiled))]
    for variant in turns + [variant for variant in calls if variant not in compiled] * _ROUNDS:
        found[variant].append(_time_ms(workload, calls[variant]))
    return found


def _time_ms(workload: Workload, call: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Return the median device time of a step."""
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        workload.run(call)
        workload.forget_gradients()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(_CALLS)]
    for start, end in events:
        torch.compiler.cudagraph_mark_step_begin()
        start.record()
        workload.run(call)
        end.record()
        workload.forget_gradients()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def _where() -> dict[str, str]:
    import transformers

    return {
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def _report(path: Path) -> str:
    """Return all results of a file as a Markdown table; the last run of a model and variant counts."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        result = json.loads(line)
        found.setdefault(result["model"], {})[result["variant"]] = result
    columns = ("model", "variant", "first call, s", "call, ms", "against stock", "against plain")
    columns += ("benchmarked", "decided", "distinct", "error")
    lines = [columns, ("---",) * len(columns)]
    for name, variants in found.items():
        for variant, result in variants.items():
            seconds = "" if result["first_call_s"] is None else f"{result['first_call_s']:.1f}"
            ratios = [_ratio(result, variants.get(base)) for base in (STOCK, PLAIN)]
            hook = result["hook"]
            shares = [_share(hook.get(of)) for of in ("calls", "distinct")]
            kernels, error = str(result["kernels_benchmarked"]), f"{result['max_relative_error']:.0e}"
            lines.append((name, variant, seconds, f"{result['call_ms']:.3f}", *ratios, kernels, *shares, error))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _ratio(result: dict[str, Any], base: dict[str, Any] | None) -> str:
    """Return the ratio of medians, and in brackets its 95% interval: that of the rounds' ratios, by bootstrap."""
    if base is None or base is result:
        return ""
    ratios = [mine / its for mine, its in zip(result["rounds_ms"], base["rounds_ms"], strict=False)]
    draws = random.Random(0)  # noqa: S311 - not cryptography
    medians = sorted(statistics.median(draws.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{result['call_ms'] / base['call_ms']:.3f} ({medians[50]:.3f} to {medians[1949]:.3f})"


def _share(counts: dict[str, int] | None) -> str:
    """Return how many of the matrix products the model decided."""
    return f"{counts.get('model', 0)} of {sum(counts.values())}" if counts else ""


if __name__ == "__main__":
    sys.exit(main())
