"""What the hook costs and gains on whole models: seconds of the first call and milliseconds of the following ones.

    PYTHONPATH=.:collectors:trainer:integration python benchmarks/bench_models_gpu.py --output results.jsonl

Each model is made from its configuration with random weights and compiled from nothing (empty Inductor and Triton
caches, warmed compile workers) by plain ``torch.compile``, with ``max_autotune_gemm`` alone, and with the hook in each
of its modes beside that. Then all take turns under CUDA graphs. Needs a GPU, torch, triton, numpy, msgpack and
transformers. Each model is a process of its own, and its results are appended to the file, so that a run can be spread
over several.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_collectors.inductor.device import use_torchs_assembler

if TYPE_CHECKING:
    from collections.abc import Callable


use_torchs_assembler()

import torch  # noqa: E402 - reads the environment set above
from compiling import from_nothing, own_code  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402

from diode_integration.choices import DiodeInductorChoices  # noqa: E402

_ROUNDS = 7
_CALLS = 20
"""Calls a round, timed one by one."""
_STOCK = "max_autotune_gemm"
VARIANTS: dict[str, dict[str, Any] | None] = {
    "torch.compile": None,
    _STOCK: None,
    "hook zero": {"mode": "zero"},
    "hook top 3": {"top_k_configs": 3},
    "hook adaptive": {"mode": "adaptive"},
}
"""The options of the hook, where there is one."""


class Case(NamedTuple):
    """A model, by the names of ``transformers``, and its input."""

    config: str
    model: str
    sizes: dict[str, int]
    dtype: torch.dtype
    batch: int
    tokens: int


CASES = {
    "llama3-8b-16": Case(
        "LlamaConfig",
        "LlamaModel",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 4,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
        torch.bfloat16,
        1,
        16,
    ),
    "bert-large": Case(
        "BertConfig",
        "BertModel",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6, "num_attention_heads": 16},
        torch.float16,
        32,
        128,
    ),
    "decoder-2304": Case(
        "LlamaConfig",
        "LlamaModel",
        {
            "hidden_size": 2304,
            "intermediate_size": 5760,
            "num_hidden_layers": 4,
            "num_attention_heads": 36,
            "num_key_value_heads": 36,
            "vocab_size": 122753,
        },
        torch.bfloat16,
        4,
        300,
    ),
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
    call, inputs = _model(CASES[name])
    AsyncCompile.warm_pool()
    AsyncCompile.wait_pool_ready()
    with torch.no_grad():
        expected = call(inputs)
        # What every first compile and every first use of the hook loads is paid for before anything is timed.
        with from_nothing(DiodeInductorChoices(options.model, mode="zero")):
            torch.compile(lambda a: a @ a, options={_STOCK: True})(torch.eye(256, device="cuda", dtype=expected.dtype))
        results, compiled = {}, {}
        for variant in variants:
            compiled[variant], results[variant] = _compile(call, inputs, variant, options.model)
            torch.compiler.cudagraph_mark_step_begin()
            got = compiled[variant](inputs).clone()
            results[variant]["max_relative_error"] = float((got - expected).abs().max() / expected.abs().max())
        rounds: dict[str, list[float]] = {variant: [] for variant in variants}
        for _ in range(_ROUNDS):
            for variant in variants:
                rounds[variant].append(_time_ms(compiled[variant], inputs))
    with options.output.open("a") as output:
        for variant in variants:
            spread = {"call_ms": statistics.median(rounds[variant]), "rounds_ms": rounds[variant]}
            output.write(
                json.dumps({"model": name, "variant": variant, **results[variant], **spread, **_where()}) + "\n"
            )
    return 0


def _model(case: Case) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """Return a model with random weights, as a function of its tokens, and tokens."""
    import transformers

    torch.manual_seed(0)
    configuration = getattr(transformers, case.config)(**case.sizes)
    torch.set_default_dtype(case.dtype)
    with torch.device("cuda"):
        model = getattr(transformers, case.model)(configuration).eval()
    torch.set_default_dtype(torch.float32)
    tokens = torch.randint(0, configuration.vocab_size, (case.batch, case.tokens), device="cuda")
    has_cache = {"use_cache": False} if hasattr(configuration, "use_cache") else {}

    def call(ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = model(ids, **has_cache).last_hidden_state
        return hidden

    return call, tokens


def _compile(
    call: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, variant: str, model: Path | None
) -> tuple[Callable[[torch.Tensor], torch.Tensor], dict[str, Any]]:
    """Compile from nothing; return the compiled model and what its first call showed."""
    hook = VARIANTS[variant]
    handler = DiodeInductorChoices(model, enable_fallback=False, **hook) if hook is not None else None
    settings = {"triton.cudagraphs": True, _STOCK: variant != "torch.compile"}
    with from_nothing(handler) as timings, inductor_config.patch(autotune_local_cache=False):
        compiled = torch.compile(own_code(call), options=settings)
        torch.cuda.synchronize()
        torch.compiler.cudagraph_mark_step_begin()
        started = time.perf_counter()
        compiled(inputs)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    stats = handler.get_stats() if handler else {}
    kernels = sum(map(len, timings))
    return compiled, {"first_call_s": seconds, "kernels_benchmarked": kernels, "tuned": len(timings), "hook": stats}


def _time_ms(call: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> float:
    """Return the median device time of a call."""
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        call(inputs)
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(_CALLS)]
    for start, end in events:
        torch.compiler.cudagraph_mark_step_begin()
        start.record()
        call(inputs)
        end.record()
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
    columns = ("model", "variant", "first call, s", "call, ms", "against stock", "benchmarked", "error")
    lines = [columns, ("---",) * len(columns)]
    for name, variants in found.items():
        stock = variants.get(_STOCK)
        for variant, result in variants.items():
            ratio = f"{result['call_ms'] / stock['call_ms']:.3f}" if stock else ""
            seconds, call = f"{result['first_call_s']:.1f}", f"{result['call_ms']:.3f}"
            kernels, error = str(result["kernels_benchmarked"]), f"{result['max_relative_error']:.0e}"
            lines.append((name, variant, seconds, call, ratio, kernels, error))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
