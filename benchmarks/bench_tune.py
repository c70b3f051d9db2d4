"""Replay bundled sweeps to show what a model learns in so many minutes of `diode tune`, by how they are spent.

    python benchmarks/bench_tune.py --output results.jsonl [--new device] [--way chosen] [--time-limit-s 3000]

Nothing learns from the test problems (`worlds.py`). The other bundled problems stand for an unknown device, or their
TF32 problems for an unknown dtype. Each way takes problems until the minutes are spent, by the costs in the logs of
sweeps (`bench_sweep_costs.py`), and fits a model. The baselines are a random draw of problems (drawn) and models of all
problems (everything; if something is known, also all that is new).

Beside them stand real runs (`real_runs.py`): the measurements of `diode tune` after each round. These ran on an H200,
on two, and on two H100s (`--new H100`) with a known H200. Their models start from random weights, or from a model of
the H200 (warm). Takes hours. Results are appended, and existing ones are not repeated, so a run can be resumed.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import numpy as np
import results
from real_runs import DEVICE, H100, REAL_RUNS
from worlds import WORLDS, World, world

from diode_collectors.problems.choices import cpu_seconds
from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.search_space import GUIDED, SearchSpace
from diode_collectors.sweep.devices import CORES_ELSEWHERE
from diode_store.candidates.default_space import GemmConfig, default_configs
from diode_store.command_line.console import print_rows
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.tensors import pack
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.standing import predict
from diode_trainer.scoring import Prediction, Scorer
from diode_trainer.training.train import Beginning, fit, limited_threads
from diode_trainer.training.warm_start import EPOCHS, LEARNING_RATE, both, repeats
from diode_tuning.choosing import choose
from diode_tuning.doubt import doubts
from diode_tuning.pool import SAMPLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_trainer.data.dataset import Examples
    from diode_trainer.models import TimingNetwork

Learn = Callable[[World, ExampleSet, int], "TimingNetwork"]
"""Fits a model to measurements, with a seed."""
Task = tuple[str, str, float, int]
"""Novelty, way, minutes and seed."""
_FIELDS = ("new", "way", "minutes", "seed")
"""Fields that identify a result."""
_DRAWN = frozenset({"", "log-normal", "uniform", "plain", "torchbench"})
"""Families of problems that are not layers of one model."""
MINUTES = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
_FEW_KNOWN = 1000
_TMA = "tma"
_MOST_ROUNDS = 3
_SPARE = 1.2
"""Ratio of the chosen problems' cost to the budget."""
_CONFIG = ("block_m", "block_n", "block_k", "num_stages", "num_warps")


class Spending:
    """Measures problems of a world until the minutes are spent."""

    def __init__(self, world: World, minutes: float, seed: int) -> None:
        """Start without measurements; ``seed`` draws problems and configs."""
        self.world, self.budget_s, self.seed = world, 60 * minutes, seed
        self.measured: dict[int, Examples] = {}
        self._draws = np.random.default_rng(seed)
        self.problems = [SweepProblem.of_shape(example.shape) for example in world.pool]
        self._costs_s = [_seconds(min(len(example), SAMPLE + SAMPLE // 4 + 1)) for example in world.pool]

    def drawn(self, wanted: Callable[[Examples], bool] = lambda _example: True) -> None:
        """Take wanted problems at random."""
        order = self._draws.permutation(len(self.problems)).tolist()
        self._measure([i for i in order if wanted(self.world.pool[i])], self.budget_s)

    def covering(self) -> None:
        """Take problems that are like many others, whatever models predict."""
        self._measure(self._chosen(self.budget_s, None), self.budget_s)

    def chosen(self, learn: Learn, network: TimingNetwork | None = None, *, picks: bool = False) -> None:
        """Choose as `diode tune` does, in rounds of at least a minute, with the doubts of the model so far.

        If a round is expected to measure few problems, there are fewer rounds; a single round is ``covering``.

        Args:
            learn: fits the model of a round.
            network: model of the first round.
            picks: let the model pick half of the kernels, its fastest predictions.
        """
        rounds = min(max(int(self.budget_s // 60), 1), _MOST_ROUNDS)
        for _ in range(rounds):
            if self.measured:
                network = learn(self.world, self.new(), self.seed)
            order = self._chosen(self.budget_s / rounds, network)
            self._measure(order, self.budget_s / rounds, Scorer(network) if picks and network is not None else None)

    def new(self) -> ExampleSet:
        """Return the measurements."""
        return ExampleSet(tuple(self.measured.values()))

    def _chosen(self, budget_s: float, network: TimingNetwork | None) -> list[int]:
        left = [i for i in range(len(self.problems)) if i not in self.measured]
        some = [self.problems[i] for i in left]
        counts = None if network is None else doubts(Scorer(network), some, self.world.pool[0].hardware)
        costs_s, known = [self._costs_s[i] for i in left], [self.problems[i] for i in self.measured]
        return [left[i] for i in choose(some, costs_s, _SPARE * budget_s, counts=counts, measured=known)]

    def _measure(self, order: Sequence[int], budget_s: float, picker: Scorer | None = None) -> None:
        spent_s = 0.0
        for i in order:
            if spent_s >= budget_s:
                return
            self.measured[i] = _sampled(self.world.pool[i], self._draws, picker)
            spent_s += _seconds(len(self.measured[i]))


def _sampled(example: Examples, draws: np.random.Generator, picker: Scorer | None) -> Examples:
    """Return a problem with its vendor kernels, and as many others as `diode tune` times.

    Half of these are in the DEFAULT list, or a model's picks; the rest are drawn.
    """
    columns, space = example.columns, SearchSpace(GUIDED, SAMPLE)
    order = draws.permutation(len(example))
    rank = _later_than_default(example) if picker is None else predict(picker, [example])[0].runtime_us
    is_tma = columns.template_mask(lambda name: _TMA in name)
    kept = [np.flatnonzero(example.is_vendor)]
    for group, size in ((~is_tma & ~example.is_vendor, space.sample or 0), (is_tma, space.tma_sample)):
        drawn = order[group[order]]
        first = drawn[np.argsort(rank[drawn], kind="stable")][: size // 2]
        kept += [first, drawn[~np.isin(drawn, first)][: size - len(first)]]
    rows = np.sort(np.concatenate(kept))
    arrays = {name: getattr(example, name)[rows] for name in ("runtime_us", "is_vendor", "is_estimate")}
    return replace(example, columns=columns.take(rows), **arrays)


def _later_than_default(example: Examples) -> NDArray[np.bool_]:
    """Return a mask of the configs outside Inductor's DEFAULT list, shape (n,)."""
    default = default_configs(example.shape)
    rows = np.stack([getattr(example.columns, name) for name in _CONFIG], axis=1).tolist()
    return np.array([GemmConfig(*row) not in default for row in rows])


def _seconds(choices: int) -> float:
    return cpu_seconds(choices) / CORES_ELSEWHERE


def _scratch(_world: World, new: ExampleSet, seed: int, members: int | None = None) -> TimingNetwork:
    return fit(pack(new), make_recipe("deep", members=members), seed=seed).network


def _warm(world: World, new: ExampleSet, seed: int, most_known: int | None = None) -> TimingNetwork:
    """Continue from the known model as `diode-train --warm-start` does, with at most ``most_known`` known problems."""
    known = ExampleSet(world.known[:most_known])
    recipe = make_recipe("deep", epochs=EPOCHS, learning_rate=LEARNING_RATE)
    beginning = Beginning(world.base, repeats(len(new), len(known)))
    return fit(pack(both(new, known)), recipe, seed=seed, beginning=beginning).network


@dataclass(frozen=True)
class Way:
    """A way to spend minutes, and to learn from the measurements."""

    spend: Callable[[Spending], None]
    learn: Learn = _scratch


def _is_layer(example: Examples) -> bool:
    """Return whether a problem is a layer of a model, not drawn."""
    family = example.family or ""
    return not (family in _DRAWN or family.startswith("drawn"))


_WAYS = {
    "drawn": Way(Spending.drawn),
    "layers alone": Way(lambda spending: spending.drawn(_is_layer)),
    "no layers": Way(lambda spending: spending.drawn(lambda example: not _is_layer(example))),
    "covering": Way(Spending.covering),
    "chosen": Way(lambda spending: spending.chosen(_scratch)),
    "picked": Way(lambda spending: spending.chosen(_scratch, picks=True)),
}
_WARM_WAYS = {
    "drawn, warm": Way(Spending.drawn, _warm),
    "chosen, warm": Way(lambda spending: spending.chosen(_warm, spending.world.base), _warm),
}
"""Ways for worlds in which something is known."""
WAYS = _WAYS | _WARM_WAYS
_OF_REAL: dict[str, Learn] = {
    "": _scratch,
    ", 12 members": partial(_scratch, members=12),
    ", warm": _warm,
    f", warm, {_FEW_KNOWN} known": partial(_warm, most_known=_FEW_KNOWN),
}
REAL_WAYS = {
    name + suffix: (name, learn)
    for name, run in REAL_RUNS.items()
    for suffix, learn in _OF_REAL.items()
    if "warm" not in suffix or run.new == H100
}
"""Real run and way to learn from it, by name."""
_EVERYTHING = {"everything": None, "everything, 12 members": 12}
"""Number of members by name; None for the recipe's."""
ALL_NEW, NOTHING = "all that is new", "nothing"
_ENDS = (*_EVERYTHING, ALL_NEW, NOTHING)
"""Models of everything, of everything new without the known, and of the known alone."""


def main() -> int:
    """Spend, fit, judge, append and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file for results, one JSON line each")
    parser.add_argument("--new", choices=WORLDS, action="append", help="what is new; all by default")
    parser.add_argument("--way", choices=[*WAYS, *REAL_WAYS, *_ENDS], action="append", help="all by default")
    parser.add_argument("--minutes", type=float, action="append", help=f"default: {', '.join(map(str, MINUTES))}")
    parser.add_argument("--seeds", type=int, default=2, help="number of draws")
    parser.add_argument("--time-limit-s", type=float, default=math.inf, help="start no fit after this many seconds")
    options = parser.parse_args()
    deadline = time.time() + options.time_limit_s
    there = {_key(line) for line in results.read(options.output)}
    tasks = [task for name in options.new or WORLDS for task in _tasks(name, options) if task not in there]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_run, task, options.output, deadline) for task in tasks]):
            done.result()
    _show(results.read(options.output))
    return 0


def _tasks(new: str, options: argparse.Namespace) -> list[Task]:
    """Return the fits to make, the quickest first."""
    is_known = new != DEVICE
    minutes = options.minutes or MINUTES
    asked = options.way or [*WAYS, *REAL_WAYS, *_ENDS]
    ways = [way for way in asked if way in WAYS and (is_known or way not in _WARM_WAYS)]
    ends = [(way, 0.0) for way in asked if way in _EVERYTHING or (way in _ENDS and is_known)]
    runs = [(way, REAL_RUNS[name]) for way, (name, _) in REAL_WAYS.items() if way in asked]
    real = [(way, each) for way, run in runs for each in run.minutes if run.new == new]
    listed = [*((way, each) for each in minutes for way in ways), *real, *ends]
    return [(new, way, each, seed) for way, each in listed for seed in range(1 if way == NOTHING else options.seeds)]


def _run(task: Task, output: Path, deadline: float) -> None:
    """Do one task, unless the deadline has passed."""
    if time.time() < deadline:
        new, *rest = task
        with limited_threads():
            results.append(output, dict(zip(_FIELDS, task, strict=True)) | _judged(world(new), *rest))


def _judged(world: World, way: str, minutes: float, seed: int) -> dict[str, Any]:
    """Spend, fit and judge; return the figures."""
    started = time.perf_counter()
    new = ExampleSet(world.pool)
    if way == NOTHING:
        new, network = ExampleSet(()), world.base
    elif way == ALL_NEW:
        network = _scratch(world, new, seed)
    elif way in _EVERYTHING:
        network = _scratch(world, ExampleSet((*world.known, *world.pool)), seed, _EVERYTHING[way])
    elif way in REAL_WAYS:
        name, learn = REAL_WAYS[way]
        new = REAL_RUNS[name].until(minutes)
        network = learn(world, new, seed)
    else:
        spending = Spending(world, minutes, seed)
        WAYS[way].spend(spending)
        new = spending.new()
        network = WAYS[way].learn(world, new, seed)
    seconds, scorer = round(time.perf_counter() - started), Scorer(network)
    figures: dict[str, Any] = {"problems": len(new), "timings": new.timings, "s": seconds}
    for name, tested in world.tested.items():
        figures[name] = {"judged": len(tested), **regrets(tested, predict(scorer, tested))}
    return figures


def regrets(tested: Sequence[Examples], predicted: Sequence[Prediction]) -> dict[str, float]:
    """Return regret@k by k as text."""
    report = summarise(judge_problems(tested, predicted, vendor=True))
    return {str(k): regret.geomean for k, regret in report.regret.items()}


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in _FIELDS)


def _show(lines: list[dict[str, Any]]) -> None:
    """Print the mean over seeds of regret@1 and @5, and the loss at @1 relative to a random draw's."""
    found: dict[tuple[str, float], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        found[line["new"], line["minutes"]][line["way"]].append(line)
    for new in dict.fromkeys(line["new"] for line in lines):
        for tested in ("listed", "held back"):
            ends = found.get((new, 0.0), {})
            said = "; ".join(f"{way}: {_cell(of, (), tested)}" for way, of in ends.items())
            judged = next(line[tested]["judged"] for line in lines if line["new"] == new)
            minutes = sorted({each for name, each in found if name == new and each})
            ways = [way for way in (*WAYS, *REAL_WAYS) if any(found[new, each].get(way) for each in minutes)]
            rows = []
            for each in minutes:
                of = found[new, each]
                problems = "/".join(sorted({str(line["problems"]) for line in of.get("drawn", ())}))
                cells = (_cell(of.get(way, ()), of.get("drawn", ()), tested) for way in ways)
                rows.append((f"{each:g}", problems, *cells))
            title = f"new: {new}; {judged} problems {tested}: regret@1, @5, the loss at @1 over a draw's. {said}"
            print_rows(("minutes", "problems drawn", *ways), rows, title=title)


def _cell(lines: Sequence[dict[str, Any]], drawn: Sequence[dict[str, Any]], tested: str) -> str:
    if not lines:
        return ""
    first, fifth = _regret(lines, tested, "1"), _regret(lines, tested, "5")
    ratio = f" {(first - 1) / (_regret(drawn, tested, '1') - 1):.2f}" if drawn else ""
    return f"{first:.4f} {fifth:.4f}{ratio}"


def _regret(lines: Sequence[dict[str, Any]], tested: str, k: str) -> float:
    return geometric_mean([line[tested][k] for line in lines])


if __name__ == "__main__":
    sys.exit(main())
