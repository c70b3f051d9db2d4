"""Whether a matrix product that is left with one kernel loses what Inductor would have fused behind it.

    PYTHONPATH=.:collectors:trainer:integration python benchmarks/bench_fusion_gpu.py --output results.jsonl

Each graph is a matrix product and what follows it (a bias, an activation, a residual, a gate, a cast, a reduction). It
is compiled with the vendor's kernels alone, with Triton alone (what follows is fused into the template, tuned, or as
the model picks it), by stock ``max_autotune_gemm``, and by the hook in zero mode. All take turns as CUDA graphs of
launches over operands that rotate through more than the L2 cache. The ways to compile a graph share the kernels that
are built, so their seconds are not compared. Needs a GPU, torch, triton, numpy and msgpack. Results are appended to the
file, so that a run can be spread over several; ``--shard 0/2`` is for two GPUs.
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

    from diode_integration.stats import Decision

use_torchs_assembler()

import torch  # noqa: E402 - reads the environment set above
import torch.nn.functional as F  # noqa: E402, N812 - as everybody calls it
from compiling import own_code, watched  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402
from torch._inductor.utils import fresh_cache  # noqa: E402

from diode_collectors.sweep.lane.graphs import OperandSets, Rotation, graph_of  # noqa: E402
from diode_integration.choices import DiodeInductorChoices  # noqa: E402

_ROUNDS = 9
_REPLAYS = 5
_GRAPH_US = 1000
"""A CUDA graph holds launches for about so long."""
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
"""Variant → options of torch.compile, and of the hook, where there is one."""
_ALONE = ("aten", "triton", "triton picked")
"""What loss is counted against: the best of both."""

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
"""What follows a product of x (M, K) and w (N, K): the tensors it takes, and the whole; b is (N,), r (M, N), v as w.

Against ``nothing`` the others show what a kernel behind the vendor's costs.
"""


@dataclass(frozen=True)
class Graph:
    """A product and what follows it."""

    epilogue: str
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        """Such as ``gelu 4096x4096x1024`` (M x N x K)."""
        return f"{self.epilogue} {self.m}x{self.n}x{self.k}"

    def inputs(self) -> list[torch.Tensor]:
        """Return its tensors, in bf16, with products of about 1."""
        generator = torch.Generator("cuda").manual_seed(0)
        sizes = {"x": (self.m, self.k), "w": (self.n, self.k), "b": (self.n,), "r": (self.m, self.n)}
        sizes["v"] = sizes["w"]
        new = partial(torch.randn, device="cuda", dtype=torch.bfloat16, generator=generator)
        return [new(*sizes[name]) * (self.k**-0.5 if name in "wv" else 1) for name in EPILOGUES[self.epilogue][0]]


GRAPHS = {graph.name: graph for shape in SHAPES for epilogue in EPILOGUES for graph in [Graph(epilogue, *shape)]}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file that gets one JSON line a graph")
    parser.add_argument(
        "--cases", default="", help="a comma list of texts that a graph's name has one of (default: all)"
    )
    parser.add_argument("--variants", default=",".join(VARIANTS), help="a comma list (default: all)")
    parser.add_argument("--model", type=Path, help="checkpoint; the best shipped model if not given")
    parser.add_argument("--shard", default="0/1", help="which part of how many, such as 0/2")
    parser.add_argument("--time-limit-s", type=float, default=math.inf, help="start no graph after this many seconds")
    parser.add_argument("--report", action="store_true", help="print the table of what the file holds, and run nothing")
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
    """Compile and time each graph, and append what was seen."""
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
    """Compile, with nothing known but how kernels are built; return what came of it, and what was decided."""
    handler = DiodeInductorChoices(model, enable_fallback=False, **hook) if hook is not None else None
    forgetful = inductor_config.patch(autotune_local_cache=False, fx_graph_cache=False)
    with watched(handler) as timings, forgetful:
        compiled = torch.compile(own_code(function), options=settings, fullgraph=True)
        compiled(*inputs)
        torch.cuda.synchronize()
    decided = [_plain(decision) for decision in handler.decisions()] if handler else []
    return compiled, {"benchmarked": sum(map(len, timings)), "decisions": decided}


def _plain(decision: Decision) -> dict[str, Any]:
    """Return what was chosen for one product, and the predictions that it was chosen by."""
    chosen = [(choice.config.describe(), choice.config.is_vendor, choice.predicted_us) for choice in decision.chosen]
    said = {"decided_by": decision.decided_by, "vendor_us": decision.vendor_us, "reason": decision.reason}
    return {**said, "chosen": chosen}


def _replay(compiled: Callable[..., torch.Tensor], sets: OperandSets, stream: torch.cuda.Stream) -> Callable[[], float]:
    """Return what times a CUDA graph of launches and gives the microseconds of one."""
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
    """Return all results of a file as a Markdown table; the last run of a graph counts."""
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
    """Return the ratio to the best of those alone; each round's apart, since a hot GPU's clock falls between them."""
    mine = variants.get(of, {}).get("rounds_us", [])
    theirs = [variants[name]["rounds_us"] for name in _ALONE if name in variants]
    ratios = [[a / b for a, b in zip(mine, its, strict=False)] for its in theirs]
    return max((statistics.median(found) for found in ratios if found), default=math.nan)


def _taken(zero: dict[str, Any] | None) -> str:
    """Return whose kernels zero mode took."""
    if zero is None:
        return ""
    vendors = [is_vendor for decision in zero["decisions"] for _, is_vendor, _ in decision["chosen"][:1]]
    return " + ".join("vendor" if is_vendor else "template" for is_vendor in vendors)


def _summary(losses: Iterable[float]) -> str:
    known = [loss for loss in losses if loss > 0]
    return f"{statistics.geometric_mean(known):.3f}; {max(known):.3f}" if known else ""


if __name__ == "__main__":
    sys.exit(main())
