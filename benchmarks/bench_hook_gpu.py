"""Measure what the hook costs and gains on a GPU: compile seconds and kernel time beside stock max-autotune.

    PYTHONPATH=.:collectors:trainer:integration python benchmarks/bench_hook_gpu.py --output results.jsonl

Each layer is compiled from empty Inductor and Triton caches, with warm compile workers. The ways are stock
max-autotune, the hook with three candidates, and the hook in zero mode. Kernels are timed with CUDA events after an L2
flush, behind a queued device sleep that hides the launch. Needs torch, triton, numpy and msgpack only.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.device import use_torchs_assembler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


use_torchs_assembler()

import torch  # noqa: E402 - reads the environment set above
from compiling import from_nothing, own_code  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402
from torch._inductor.utils import fresh_cache  # noqa: E402

from diode_collectors.inductor.adapter import config_of_choice  # noqa: E402
from diode_integration.choices import DiodeInductorChoices  # noqa: E402

MODE = "max-autotune-no-cudagraphs"
_FLUSH_BYTES = 256 * 2**20
"""Larger than any L2 cache."""
_SLEEP_CYCLES = 1_000_000
"""Some 0.5 ms: longer than the host needs to launch a compiled call."""
_ROUNDS = 3
_TOLERANCE = 2e-2
"""Largest error relative to the largest value; bf16 has 8 bits of mantissa."""


@dataclass(frozen=True)
class Layer:
    """A matrix product of a known model."""

    name: str
    op: str
    b: int
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Result:
    """Result of compiling one layer in one way. Names say if times are in seconds; the others are in microseconds."""

    layer: Layer
    variant: str
    compile_seconds: float
    kernel_us: float
    eager_us: float
    max_relative_error: float
    timed_choices: int
    """Number of candidates that Inductor benchmarked; 0 if one was kept."""
    chosen: str
    predicted_us: float | None = None
    reason: str = ""
    hook_seconds: float = 0.0
    where: dict[str, str] = field(default_factory=dict)


_LLAMA = {"q_o": (4096, 4096), "k_v": (1024, 4096), "gate_up": (14336, 4096), "down": (4096, 14336)}
"""N and K of the linear layers of Llama-3-8B."""
_EXTRA = (  # biases, attention and sizes that are no powers of two
    Layer("bias 512x4096x4096", "addmm", 1, 512, 4096, 4096),
    Layer("bias 4096x4096x1024", "addmm", 1, 4096, 4096, 1024),
    Layer("attention scores 256x512x512x128", "bmm", 256, 512, 512, 128),
    Layer("attention values 256x512x128x512", "bmm", 256, 512, 128, 512),
    Layer("ViT-B qkv 1576x2304x768", "addmm", 1, 1576, 2304, 768),
    Layer("DLRM MLP 2048x256x512", "addmm", 1, 2048, 256, 512),
    Layer("Swin values 2048x49x32x49", "bmm", 2048, 49, 32, 49),
    Layer("router 4096x64x4096", "mm", 1, 4096, 64, 4096),
)
LAYERS = (
    *(Layer(f"{name} M={m}", "mm", 1, m, n, k) for m in (16, 512, 4096) for name, (n, k) in _LLAMA.items()),
    *_EXTRA,
)


def main() -> int:
    """Run the benchmark."""
    options = _options()
    deadline = time.monotonic() + options.time_limit_s
    layers = LAYERS[: options.limit_layers]
    _warm_up()
    results: list[Result] = []
    with options.output.open("a") as output:
        for number, layer in enumerate(layers):
            for result in _measure(layer, options, exhaustive=number < options.exhaustive):
                results.append(result)
                output.write(json.dumps(asdict(result)) + "\n")
                output.flush()
                print(_line(result), file=sys.stderr)
            if time.monotonic() > deadline:
                print(f"stopped after {number + 1} of {len(layers)} layers: time limit", file=sys.stderr)
                break
    print(_report(results))
    return int(any(result.max_relative_error > _TOLERANCE for result in results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, required=True, help="file for results, one JSON line each")
    parser.add_argument("--model", type=Path, help="checkpoint; the best shipped model by default")
    parser.add_argument("--limit-layers", type=int, help="only the first N layers")
    parser.add_argument("--time-limit-s", type=float, default=math.inf, help="start no layer after this many seconds")
    parser.add_argument("--exhaustive", type=int, default=0, help="also stock EXHAUSTIVE on the first N layers (slow)")
    parser.add_argument("--repeats", type=int, default=50, help="timed calls per round (default: 50)")
    return parser.parse_args()


def _warm_up() -> None:
    """Start the compile workers, and initialize CUDA, cuBLAS, Dynamo and Triton."""
    AsyncCompile.warm_pool()
    AsyncCompile.wait_pool_ready()
    a = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    with fresh_cache(), torch.no_grad():
        torch.compile(own_code(torch.mm), mode=MODE)(a, a)
    torch.cuda.synchronize()


def _measure(layer: Layer, options: argparse.Namespace, *, exhaustive: bool) -> Iterator[Result]:
    """Compile a layer in every way, then time all in turns, so that clocks and heat affect each alike."""
    function, inputs = _problem(layer)
    variants: dict[str, dict[str, Any] | None] = {
        "stock": None,
        "hook top 3": {"top_k_configs": 3},
        "hook zero": {"mode": "zero"},
    }
    if exhaustive:
        variants["stock exhaustive"] = None
    expected = function(*inputs)
    compiled, results = {}, {}
    for name, hook in variants.items():
        call, result = _compile(layer, name, function, inputs, hook, options.model)
        error = (call(*inputs) - expected).abs().max() / expected.abs().max()
        compiled[name], results[name] = call, replace(result, max_relative_error=float(error))
    rounds: dict[str, list[float]] = {name: [] for name in ("eager", *compiled)}
    for _ in range(_ROUNDS):
        for name, call in (("eager", function), *compiled.items()):
            rounds[name].append(_time_us(call, inputs, options.repeats))
    eager = statistics.median(rounds.pop("eager"))
    for name, times in rounds.items():
        yield replace(results[name], kernel_us=statistics.median(times), eager_us=eager)


def _compile(
    layer: Layer,
    variant: str,
    function: Callable[..., torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    hook: dict[str, Any] | None,
    model: Path | None,
) -> tuple[Callable[..., torch.Tensor], Result]:
    """Compile from empty caches; return the compiled function and the result so far."""
    handler = DiodeInductorChoices(model, enable_fallback=False, **hook) if hook is not None else None
    space = {"max_autotune_gemm_search_space": "EXHAUSTIVE", "max_autotune_prune_choices_based_on_shared_mem": True}
    with from_nothing(handler) as timings, inductor_config.patch(space if variant == "stock exhaustive" else {}):
        compiled = torch.compile(own_code(function), mode=MODE)
        torch.cuda.synchronize()
        started = time.perf_counter()
        with torch.no_grad():
            compiled(*inputs)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    return _no_grad(compiled), _result(layer, variant, seconds, timings, handler)


def _result(
    layer: Layer, variant: str, seconds: float, timings: list[dict[Any, float]], handler: DiodeInductorChoices | None
) -> Result:
    decision = handler.decisions()[-1] if handler and handler.decisions() else None
    timed = timings[-1] if timings else {}
    config = config_of_choice(min(timed, key=lambda choice: timed[choice])) if timed else None
    predicted = None
    if decision is not None and decision.chosen:
        config = config or decision.chosen[0].config
        predicted = next((c.predicted_us for c in decision.chosen if c.config == config), None)
    return Result(
        layer,
        variant,
        seconds,
        kernel_us=math.nan,
        eager_us=math.nan,
        max_relative_error=math.nan,
        timed_choices=len(timed),
        chosen=config.describe() if config else "unknown",
        predicted_us=predicted,
        reason=decision.reason if decision else "",
        hook_seconds=handler.get_stats()["seconds"] if handler else 0.0,
        where=_where(),
    )


def _problem(layer: Layer) -> tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]:
    """Return the function of a layer, with the weight as Linear stores it, and its inputs."""
    torch.manual_seed(0)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    if layer.op == "bmm":
        right = tensor(layer.b, layer.n, layer.k).transpose(1, 2)
        return torch.bmm, (tensor(layer.b, layer.m, layer.k), right)
    x, w = tensor(layer.m, layer.k), tensor(layer.n, layer.k)
    if layer.op == "addmm":
        return torch.nn.functional.linear, (x, w, tensor(layer.n))
    return torch.nn.functional.linear, (x, w)


def _no_grad(compiled: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(*inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return compiled(*inputs)

    return call


def _time_us(function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], repeats: int) -> float:
    """Return the median device time of a call in microseconds."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    function(*inputs)
    for start, end in events:
        flush.zero_()
        torch.cuda._sleep(_SLEEP_CYCLES)  # noqa: SLF001 - there is no public way to keep a device busy
        start.record()
        function(*inputs)
        end.record()
        torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) * 1e3


def _where() -> dict[str, str]:
    import triton

    return {
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def _line(result: Result) -> str:
    return (
        f"{result.layer.name:34s} {result.variant:16s} compile {result.compile_seconds:6.2f} s  kernel "
        f"{result.kernel_us:8.1f} us  eager {result.eager_us:8.1f} us  error {result.max_relative_error:.1e}  "
        f"timed {result.timed_choices:4d}  {result.chosen}"
    )


def _report(results: list[Result]) -> str:
    """Return the results as a Markdown table, with geometric means of the ratios to stock."""
    variants = list(dict.fromkeys(result.variant for result in results))
    by_layer: dict[str, dict[str, Result]] = {}
    for result in results:
        by_layer.setdefault(result.layer.name, {})[result.variant] = result
    header = ["layer", "eager us", *(f"{v} {what}" for v in variants for what in ("us", "compile s")), "max error"]
    rows = [_row(name, found, variants) for name, found in by_layer.items()]
    means = ["geomean against stock", _mean(by_layer.values(), "stock", "eager_us")]
    for variant in variants:
        means += [_mean(by_layer.values(), variant, what) for what in ("kernel_us", "compile_seconds")]
    lines = [header, ["---"] * len(header), *rows, [*means, ""]]
    where = "; ".join(f"{name} {value}" for name, value in (results[0].where if results else {}).items())
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{where}"


def _row(name: str, found: dict[str, Result], variants: list[str]) -> list[str]:
    row = [name, f"{next(iter(found.values())).eager_us:.1f}"]
    for variant in variants:
        result = found.get(variant)
        row += [f"{result.kernel_us:.1f}", f"{result.compile_seconds:.2f}"] if result else ["", ""]
    return [*row, f"{max(result.max_relative_error for result in found.values()):.1e}"]


def _mean(layers: Any, variant: str, what: str) -> str:
    """Return the geometric mean of a variant's ``what`` over stock's, for the layers that have both."""
    base = "kernel_us" if what == "eager_us" else what
    ratios = [
        getattr(found[variant], what) / getattr(found["stock"], base)
        for found in layers
        if variant in found and "stock" in found
    ]
    return f"{math.exp(statistics.fmean(map(math.log, ratios))):.3f}" if ratios else ""


if __name__ == "__main__":
    sys.exit(main())
