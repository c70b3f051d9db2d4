"""Measure what a model learns of something new from 10, 30, 100 or all of its problems, with and without a warm start.

    python benchmarks/bench_warm_start.py --output results.jsonl [--new tf32] [--way continued] [--time-limit-s 3000]

By replay of the bundled measurements: a dtype, an op or a layout is left out, like an unknown device, and brought back
problem by problem. A quarter of its problems only test. The baseline is a fit to the new problems alone (scratch). The
others start with a model of the rest (fine-tuned), learn from the rest and repeated new problems (joint), or do both
for a few epochs (continued). Takes hours. Results are appended, and existing ones are not repeated, so a run can be
resumed.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import numpy as np
import results
import shipped_data

from diode_store.command_line.console import print_rows
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.splits import folds
from diode_trainer.data.tensors import pack
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.standing import predict
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import Beginning, Fit, fit, limited_threads
from diode_trainer.training.warm_start import EPOCHS, LEARNING_RATE, both, repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.models import TimingNetwork

NEW: dict[str, Callable[[Examples], bool]] = {
    "tf32": lambda example: example.shape.arithmetic == "tf32",
    "bmm": lambda example: example.shape.op in {"bmm", "baddbmm"},
    "nn": lambda example: example.shape.layout == "nn",
}
"""Left-out dtype, op or layout, by name."""
COUNTS = ("0", "10", "30", "100", "all")
_FIELDS = ("new", "seed", "count", "way")
"""Fields that identify a result."""
_PARTS = 4
"""Number of parts of the new problems; one part only tests."""


@dataclass(frozen=True, eq=False)
class Replay:
    """Something left out, with one draw of its test problems."""

    known: ExampleSet
    pool: ExampleSet
    """New problems to learn from, in the order in which they are brought back."""
    tested: tuple[Examples, ...]
    seed: int

    @cached_property
    def base(self) -> TimingNetwork:
        """Return a model of the known problems."""
        return fit(pack(self.known), make_recipe("deep"), seed=self.seed).network


def _scratch(_replay: Replay, new: ExampleSet, seed: int) -> Fit:
    return fit(pack(new), make_recipe("deep"), seed=seed)


def _fine_tuned(replay: Replay, new: ExampleSet, seed: int) -> Fit:
    recipe = make_recipe("deep", epochs=40, learning_rate=1e-3, weight_decay=0.05, averaging=0.95)
    return fit(pack(new), recipe, seed=seed, beginning=Beginning(replay.base))


def _joint(replay: Replay, new: ExampleSet, seed: int) -> Fit:
    beginning = Beginning(repeats=repeats(len(new), len(replay.known)))
    return fit(pack(both(new, replay.known)), make_recipe("deep"), seed=seed, beginning=beginning)


def _continued(replay: Replay, new: ExampleSet, seed: int) -> Fit:
    """Continue from the known model as `diode-train --warm-start` does."""
    recipe = make_recipe("deep", epochs=EPOCHS, learning_rate=LEARNING_RATE)
    beginning = Beginning(replay.base, repeats(len(new), len(replay.known)))
    return fit(pack(both(new, replay.known)), recipe, seed=seed, beginning=beginning)


WAYS: dict[str, Callable[[Replay, ExampleSet, int], Fit]] = {
    "scratch": _scratch,
    "fine-tuned": _fine_tuned,
    "joint": _joint,
    "continued": _continued,
}


def main() -> int:
    """Fit, judge, append and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file for results, one JSON line each")
    parser.add_argument("--new", choices=NEW, action="append", help="what to leave out; all by default")
    parser.add_argument("--way", choices=WAYS, action="append", help="all by default")
    parser.add_argument("--problems", choices=COUNTS, action="append", help="all by default")
    parser.add_argument("--seeds", type=int, default=2, help="number of draws")
    parser.add_argument("--time-limit-s", type=float, default=math.inf, help="start no fit after this many seconds")
    shipped_data.add_option(parser)
    options = parser.parse_args()
    deadline = time.monotonic() + options.time_limit_s
    dataset = load_measurements(shipped_data.measurements(options.dataset), "the bundled measurements")
    there = {_key(line) for line in results.read(options.output)}
    tasks = [(new, seed) for seed in range(options.seeds) for new in options.new or NEW]

    def run(task: tuple[str, int]) -> None:
        replay = _replay(dataset, *task)
        for count in options.problems or COUNTS:
            for way in ("base",) if count == "0" else options.way or WAYS:
                key = (*task, count, way)
                if key not in there and time.monotonic() < deadline:
                    figures = _judged(replay, count, way)
                    results.append(options.output, dict(zip(_FIELDS, key, strict=True)) | figures)

    with limited_threads(), ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, tasks))
    _show(results.read(options.output))
    return 0


def _replay(dataset: ExampleSet, name: str, seed: int) -> Replay:
    """Leave something out; the seed draws its test problems and the order of the others."""
    is_new = np.array([NEW[name](example) for example in dataset])
    known, new = dataset.subset(np.flatnonzero(~is_new)), dataset.subset(np.flatnonzero(is_new))
    fold = folds(new, _PARTS, seed)[0]
    order = np.random.default_rng(seed).permutation(fold.train)
    return Replay(known, new.subset(order), new.subset(fold.test).examples, seed)


def _judged(replay: Replay, count: str, way: str) -> dict[str, Any]:
    """Fit and judge one way; return the figures."""
    started = time.perf_counter()
    new = replay.pool.subset(range(len(replay.pool) if count == "all" else int(count)))
    network = replay.base if way == "base" else WAYS[way](replay, new, replay.seed).network
    seconds, scorer = time.perf_counter() - started, Scorer(network)
    predicted = predict(scorer, replay.tested)
    figures: dict[str, Any] = {"seconds": round(seconds, 1), "problems": len(new), "judged": len(replay.tested)}
    for name, vendor in (("all", True), ("triton", False)):
        report = summarise(judge_problems(replay.tested, predicted, vendor=vendor))
        figures[name] = {str(k): regret.geomean for k, regret in report.regret.items()}
    return figures


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in _FIELDS)


def _show(lines: list[dict[str, Any]]) -> None:
    """Print the mean over seeds of regret@1 for all choices (Triton choices in brackets), and its ratio."""
    found: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        found[line["new"], line["count"]][line["way"]].append(line)
    rows = []
    for (new, count), ways in found.items():
        cells = [_cell(ways.get(way, []), ways.get("scratch", [])) for way in WAYS]
        if count == "0":
            cells = [_cell(ways["base"], ()), *cells[1:]]
        problems = "/".join(sorted({str(line["problems"]) for of in ways.values() for line in of}))
        rows.append((new, count if count != "all" else f"all ({problems})", *cells))
    title = (
        "regret@1 (Triton alone), its loss over scratch's, seconds a fit, seeds; with 0 problems: the model of the rest"
    )
    print_rows(("left out", "problems", *WAYS), rows, title=title)


def _cell(lines: Sequence[dict[str, Any]], scratch: Sequence[dict[str, Any]]) -> str:
    if not lines:
        return ""
    whole, triton = _regret(lines, "all"), _regret(lines, "triton")
    seconds = sum(line["seconds"] for line in lines) / len(lines)
    ratio = f" {(whole - 1) / (_regret(scratch, 'all') - 1):.2f}" if scratch else ""
    return f"{whole:.3f} ({triton:.3f}){ratio} {seconds:.0f} s, {len(lines)}"


def _regret(lines: Sequence[dict[str, Any]], of: str) -> float:
    return geometric_mean([line[of]["1"] for line in lines])


if __name__ == "__main__":
    sys.exit(main())
