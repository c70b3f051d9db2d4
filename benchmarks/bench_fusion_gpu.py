"""Measure whether a matrix product with one kept kernel loses what Inductor would have fused into its epilogue.

    PYTHONPATH=.:collectors:trainer:integration python benchmarks/bench_fusion_gpu.py --output results.jsonl

Each graph is a matrix product with an epilogue (a bias, an activation, a residual, a gate, a cast, a reduction). The
ways to compile it are vendor kernels only, Triton only, stock ``max_autotune_gemm``, and the hook in zero mode. Triton
kernels have a fused epilogue, and are tuned or picked by the model. All ways take turns as CUDA graphs of launches over
operands that rotate through more than the L2 cache. The ways share compiled kernels, so their compile times are not
compared. Needs a GPU, torch, triton, numpy and msgpack. Results are appended to the file, so a run can be resumed;
``--shard 0/2`` is for two GPUs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.device import use_torchs_assembler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from diode_integration.decide.decision import Decision

use_torchs_assembler()

import torch  # noqa: E402 - reads the environment set above
import torch.nn.functional as F  # noqa: E402, N812 - as everybody calls it
from compiling import own_code, watched  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402
from torch._inductor.utils import fresh_cache  # noqa: E402

from diode_collectors.inductor.graphs import OperandSets, Rotation, graph_of  # noqa: E402
from diode_integration.choices import DiodeInductorChoices  # noqa: E402

_ROUNDS = 9
_REPLAYS = 5
_GRAPH_US = 1000
"""Approximate duration of the launches in a CUDA graph."""
_MOST_LAUNCHES = 64
_GEMM = {"max_autotune_gemm": True}
_ATEN, _TRITON = ({**_GEMM, "max_autotune_gemm_backends": name} for name in ("ATEN", "TRITON"))
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "aten": (_ATEN, None),
    "triton": (_TRITON, None),
    "triton picked": (_TRITON, {"mode": "zero"}),
    "stock": (_GEMM, None),
    "zero": (_GEMM, {"mode": "zero"}),
}
"""Options of torch.compile and of the hook, if it is used, by variant."""
_ALONE = ("aten", "triton", "triton picked")
"""Variants whose best is the reference for losses."""

SHAPES = ((16, 4096, 4096), (512, 14336, 4096), (4096, 4096, 1024), (1200, 2304, 5760), (6000, 1280, 1280))
"""M, N, K."""


EPILOGUES: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "nothing": ("xw", F.linear),
    "bias": ("xwb", F.linear),
    "gelu": ("xw", lambda x, w: F.gelu(F.linear(x, w))),
    "bias + gelu": ("xwb", lambda x, w, b: F.gelu(F.linear(x, w, b))),
    "bias + relu": ("xwb", lambda x, w, b: F.relu(F.linear(x, w, b))),
    "silu": ("xw", lambda x, w: F.silu(F.linear(x, w))),
    "residual": ("xwr", lambda x, w, r: F.linear(x, w) + r),
    "bias + residual": ("xwbr", lambda x, w, b, r: F.linear(x, w, b) + r),
    "gate": ("xwr", lambda x, w, r: F.linear(x, w) * F.silu(r)),
    "gated product": ("xwv", lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v)),
    "cast": ("xw", lambda x, w: F.linear(x, w).float()),
    "scale + shift": ("xwb", lambda x, w, b: F.linear(x, w) * b + 1),
    "sum behind": ("xw", lambda x, w: F.gelu(F.linear(x, w)).sum(-1)),
    "norm behind": ("xwbr", lambda x, w, b, r: F.rms_norm(F.linear(x, w) + r, (w.shape[0],), b)),
}
"""Epilogues of a product of x (M, K) and w (N, K): further tensors, and the function. b is (N,), r (M, N), v like w.

The difference to ``nothing`` is the cost of a kernel after the vendor kernel.
"""


@dataclass(frozen=True)
class Graph:
    """A product with its epilogue."""

    epilogue: str
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        """Name such as ``gelu 4096x4096x1024`` (M x N x K)."""
        return f"{self.epilogue} {self.m}x{self.n}x{self.k}"

    def inputs(self) -> list[torch.Tensor]:
        """Return its tensors in bf16, scaled for products of about 1."""
        generator = torch.Generator("cuda").manual_seed(0)
        sizes = {"x": (self.m, self.k), "w": (self.n, self.k), "b": (self.n,), "r": (self.m, self.n)}
        sizes["v"] = sizes["w"]
        new = partial(torch.randn, device="cuda", dtype=torch.bfloat16, generator=generator)
        return [new(*sizes[name]) * (self.k**-0.5 if name in "wv" else 1) for name in EPILOGUES[self.epilogue][0]]


GRAPHS = {graph.name: graph for shape in SHAPES for epilogue in EPILOGUES for graph in [Graph(epilogue, *shape)]}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file for results, one JSON line per graph")
    parser.add_argument("--cases", default="", help="comma list of texts to select graphs by name (default: all)")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma list (default: all)")
    parser.add_argument("--model", type=Path, help="checkpoint; the best shipped model by default")
    parser.add_argument("--shard", default="0/1", help="shard to run, such as 0/2")
    parser.add_argument("--time-limit-s", type=float, default=math.inf, help="start no graph after this many seconds")
    parser.add_argument("--report", action="store_true", help="only print the table of the results")
    options = parser.parse_args()
    variants = options.variants.split(",")
    if unknown := [name for name in variants if name not in VARIANTS]:
        parser.error(f"unknown: {', '.join(unknown)}; variants: {', '.join(VARIANTS)}")
    if not options.report:
        index, count = map(int, options.shard.split("/"))
        wanted = [graph for name, graph in GRAPHS.items() if any(text in name for text in options.cases.split(","))]
        _run(wanted[index::count], variants, options)
    print(_report(options.output))
    return 0


@torch.no_grad()
def _run(graphs: list[Graph], variants: list[str], options: argparse.Namespace) -> None:
    """Compile and time each graph, and append the results."""
    deadline = time.monotonic() + options.time_limit_s
    AsyncCompile.warm_pool()
    AsyncCompile.wait_pool_ready()
    for number, graph in enumerate(graphs):
        if time.monotonic() > deadline:
            print(f"stopped after {number} of {len(graphs)} graphs: time limit", file=sys.stderr)
            return
        try:
            line = _measure(graph, variants, options.model)
        except Exception as error:  # noqa: BLE001 - one graph that fails must not cost the others
            line = {"graph": graph.name, "error": f"{type(error).__name__}: {error}"[:500]}
        with options.output.open("a") as output:
            output.write(
                json.dumps({**line, "device": torch.cuda.get_device_name(), "torch": torch.__version__}) + "\n"
            )


def _measure(graph: Graph, variants: list[str], model: Path | None) -> dict[str, Any]:
    function, inputs = EPILOGUES[graph.epilogue][1], graph.inputs()
    expected = function(*inputs).float()
    sets, stream = OperandSets(inputs), torch.cuda.Stream()
    found: dict[str, dict[str, Any]] = {}
    replays: dict[str, Callable[[], float]] = {}
    with fresh_cache():
        for variant in variants:
            compiled, found[variant] = _compile(function, inputs, *VARIANTS[variant], model)
            error = (compiled(*inputs).float() - expected).abs().max() / expected.abs().max()
            found[variant]["max_relative_error"] = float(error)
            replays[variant] = _replay(compiled, sets, stream)
    rounds: dict[str, list[float]] = {variant: [] for variant in variants}
    draws = random.Random(0)  # noqa: S311 - not cryptography
    for _ in range(_ROUNDS):
        for variant in draws.sample(variants, len(variants)):
            rounds[variant].append(replays[variant]())
    for variant in variants:
        found[variant].update(us=statistics.median(rounds[variant]), rounds_us=rounds[variant])
    return {"graph": graph.name, "variants": found}


def _compile(
    function: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    settings: dict[str, Any],
    hook: dict[str, Any] | None,
    model: Path | None,
) -> tuple[Callable[..., torch.Tensor], dict[str, Any]]:
    """Compile with only compiled kernels cached; return the compiled function and the decisions."""
    handler = DiodeInductorChoices(model, enable_fallback=False, **hook) if hook is not None else None
    forgetful = inductor_config.patch(autotune_local_cache=False, fx_graph_cache=False)
    with watched(handler) as timings, forgetful:
        compiled = torch.compile(own_code(function), options=settings, fullgraph=True)
        compiled(*inputs)
        torch.cuda.synchronize()
    decided = [_plain(decision) for decision in handler.decisions()] if handler else []
    return compiled, {"benchmarked": sum(map(len, timings)), "decisions": decided}


def _plain(decision: Decision) -> dict[str, Any]:
    """Return the choice for one product, with its predictions."""
    chosen = [(choice.config.describe(), choice.config.is_vendor, choice.predicted_us) for choice in decision.chosen]
    said = {"decided_by": decision.decided_by, "vendor_us": decision.vendor_us, "reason": decision.reason}
    return {**said, "chosen": chosen}


def _replay(compiled: Callable[..., torch.Tensor], sets: OperandSets, stream: torch.cuda.Stream) -> Callable[[], float]:
    """Return a function that replays a CUDA graph of launches, and returns the microseconds of one launch."""
    with torch.cuda.stream(stream):
        rotation = Rotation(sets, lambda number: partial(compiled, *sets.of(number, sets.first)))
        one = rotation.launches(1, 0)[0]
        one()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        one()
        end.record()
        end.synchronize()
        count = max(4, min(_MOST_LAUNCHES, round(_GRAPH_US / (1e3 * start.elapsed_time(end)))))
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        graph = graph_of(rotation.launches(count, l2_bytes), stream, torch.cuda.graph_pool_handle())

    def timed() -> float:
        with torch.cuda.stream(stream):
            start.record()
            for _ in range(_REPLAYS):
                graph.replay()
            end.record()
            end.synchronize()
        return float(1e3 * start.elapsed_time(end) / (count * _REPLAYS))

    return timed


def _report(path: Path) -> str:
    """Return the results of a file as a Markdown table, with the last run of each graph."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = {line["graph"]: line["variants"] for line in lines if "variants" in line}
    columns = ("graph", *(f"{name}, us" for name in VARIANTS), "zero takes", "zero's loss", "stock's loss")
    rows = [columns, ("---",) * len(columns)]
    losses: dict[str, list[float]] = {"zero": [], "stock": []}
    for name, variants in found.items():
        ratios = {of: _loss(variants, of) for of in losses}
        for of, ratio in ratios.items():
            losses[of].append(ratio)
        times = [f"{variants[variant]['us']:.1f}" if variant in variants else "" for variant in VARIANTS]
        rows.append((name, *times, _taken(variants.get("zero")), *(f"{ratio:.3f}" for ratio in ratios.values())))
    rows.append(
        (f"**{len(found)}: geometric mean; worst**", *[""] * len(VARIANTS), "", *map(_summary, losses.values()))
    )
    failed = [f"{line['graph']}: {line['error']}" for line in lines if "error" in line and line["graph"] not in found]
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + failed)


def _loss(variants: dict[str, dict[str, Any]], of: str) -> float:
    """Return the ratio to the best reference variant, by round, since a hot GPU changes its clock between rounds."""
    mine = variants.get(of, {}).get("rounds_us", [])
    theirs = [variants[name]["rounds_us"] for name in _ALONE if name in variants]
    ratios = [[a / b for a, b in zip(mine, its, strict=False)] for its in theirs]
    return max((statistics.median(found) for found in ratios if found), default=math.nan)


def _taken(zero: dict[str, Any] | None) -> str:
    """Return the kinds of kernel that zero mode took."""
    if zero is None:
        return ""
    vendors = [is_vendor for decision in zero["decisions"] for _, is_vendor, _ in decision["chosen"][:1]]
    return " + ".join("vendor" if is_vendor else "template" for is_vendor in vendors)


def _summary(losses: Iterable[float]) -> str:
    known = [loss for loss in losses if loss > 0]
    return f"{statistics.geometric_mean(known):.3f}; {max(known):.3f}" if known else ""


if __name__ == "__main__":
    sys.exit(main())
