"""What a model knows after so many minutes of `diode tune`, by how they were spent: by replay of the bundled sweeps.

    python benchmarks/bench_tune.py --output results.jsonl [--new device] [--way chosen] [--time-limit-s 3000]

Some bundled problems are only judged by (listed): those timed exhaustively as deployed, and three families; so are
455 problems of 26 families and drawn ones that nothing learns from (held back). The other bundled ones stand for a
device that nobody has measured, or their TF32 ones for one that is new where the rest is known. Each way takes problems
until the minutes are spent, by what the logs of these sweeps say they cost (`bench_sweep_costs.py`), and fits a model.
The baselines are a draw of problems (drawn), and a model of all of them (everything). Beside them stand real runs:
what ten minutes of `diode tune` on an H200 had measured after each round, with kernels of each problem's own (tuned)
or with shared ones (kinds), and what thirteen had on two H200s (two GPUs). Takes hours: results are appended, and those
that are there are not made again, so that it can be spread over several runs.
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
from functools import cache, cached_property
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import numpy as np
import results
import shipped_data
from real_runs import REAL_RUNS

from diode_collectors.problems.choices import cpu_seconds
from diode_collectors.problems.problem import FLOAT32, TF32, SweepProblem
from diode_collectors.problems.search_space import GUIDED, SearchSpace
from diode_collectors.spool.reading import measurements_in
from diode_collectors.sweep.devices import CORES_ELSEWHERE
from diode_integration.tuning.choosing import choose
from diode_integration.tuning.doubt import doubts
from diode_integration.tuning.plan import split
from diode_integration.tuning.pool import SAMPLE
from diode_store.console import print_rows
from diode_store.inductor_default import GemmConfig, default_configs
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.tensors import pack
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.standing import predict
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import Beginning, fit, limited_threads
from diode_trainer.training.warm_start import EPOCHS, LEARNING_RATE, both, repeats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_store.records import Measurement
    from diode_trainer.data.dataset import Examples
    from diode_trainer.models import TimingNetwork

HELD_BACK = Path(__file__).parent / "data"
FAMILIES = frozenset({"llama3.2-3b", "vit-h14", "t5-base"})
Learn = Callable[["World", ExampleSet, int], "TimingNetwork"]
"""Makes a model of what was measured, with a seed."""
Task = tuple[str, str, float, int]
"""What is new, the way, minutes and a seed."""
_FIELDS = ("new", "way", "minutes", "seed")
"""Of a result, by which it is known."""
_DRAWN = frozenset({"", "log-normal", "uniform", "plain", "torchbench"})
"""Families of problems that are no layers of one model."""
MINUTES = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
_MOST_KNOWN = 1000
_TMA = "tma"
_SPARE = 1.2
"""How much more is chosen than the minutes are estimated to be enough for."""
_CONFIG = ("block_m", "block_n", "block_k", "num_stages", "num_warps")


@dataclass(frozen=True, eq=False)
class World:
    """A device that is new, and what is known of others."""

    pool: tuple[Examples, ...]
    """What can be measured."""
    tested: dict[str, tuple[Examples, ...]]
    """What is judged by."""
    known: tuple[Examples, ...] = ()

    @cached_property
    def base(self) -> TimingNetwork:
        """Return a model of what is known."""
        return fit(pack(ExampleSet(self.known)), make_recipe("deep"), seed=0).network


def _device(measurements: list[Measurement]) -> World:
    """Nothing is known."""
    listed, pool = _parted(measurements)
    return World(tuple(pool), {"listed": tuple(listed), "held back": _held_back()})


def _tf32(measurements: list[Measurement]) -> World:
    """TF32 is new; the rest is known, and nothing of it is judged by."""
    listed, pool = _parted(measurements)
    new, judged, held_back = (
        tuple(example for example in examples if example.shape.arithmetic == TF32)
        for examples in (pool, listed, _held_back())
    )
    known = [example for example in pool if example.shape.arithmetic != TF32]
    drawn = np.random.default_rng(0).permutation(len(known))[:_MOST_KNOWN]
    return World(new, {"listed": judged, "held back": held_back}, tuple(known[i] for i in drawn))


WORLDS: dict[str, Callable[[list[Measurement]], World]] = {"device": _device, TF32: _tf32}


def listed_and_held_back() -> dict[str, tuple[Examples, ...]]:
    """Return what is judged by where a device is new, by name."""
    return _world("device").tested


def _parted(measurements: list[Measurement]) -> tuple[list[Examples], list[Examples]]:
    """Return the problems that are judged by, and the others, each as it is timed today if it was."""
    exhaustive = {m.problem.shape for m in measurements if m.search_space == "EXHAUSTIVE"}
    dataset = load_measurements(measurements, "the bundled measurements")
    judged = {example.shape for example in dataset if example.shape in exhaustive or example.family in FAMILIES}
    tested = [example for example in dataset if example.shape in judged and example.regime in shipped_data.DEPLOYED]
    pool: dict[Any, Examples] = {}
    for example in dataset:
        is_slow = example.shape.arithmetic == FLOAT32  # the standard set has none
        if (
            example.shape not in judged
            and not is_slow
            and (example.regime in shipped_data.DEPLOYED or example.shape not in pool)
        ):
            pool[example.shape] = example
    return tested, list(pool.values())


def _held_back() -> tuple[Examples, ...]:
    measurements = [m for path in sorted(HELD_BACK.glob("*-held-back*.seg")) for m in measurements_in(path)]
    return load_measurements(measurements, str(HELD_BACK)).examples


class Spending:
    """Measures problems of a world until minutes are spent."""

    def __init__(self, world: World, minutes: float, seed: int) -> None:
        """Measure nothing yet; ``seed`` draws problems and configs."""
        self.world, self.budget_s, self.seed = world, 60 * minutes, seed
        self.measured: dict[int, Examples] = {}
        self._draws = np.random.default_rng(seed)
        self.problems = [SweepProblem.of_shape(example.shape) for example in world.pool]
        self._costs_s = [_seconds(min(len(example), SAMPLE + SAMPLE // 4 + 1)) for example in world.pool]

    def drawn(self, wanted: Callable[[Examples], bool] = lambda _example: True) -> None:
        """Take problems as they come, of those that are wanted."""
        order = self._draws.permutation(len(self.problems)).tolist()
        self._measure([i for i in order if wanted(self.world.pool[i])], self.budget_s)

    def covering(self) -> None:
        """Take those that are like many others, whatever models think."""
        self._measure(self._chosen(self.budget_s, None), self.budget_s)

    def chosen(self, learn: Learn, network: TimingNetwork | None = None, *, picks: bool = False) -> None:
        """Take what `diode tune` takes: in rounds, also by what the model of the rounds before is unsure of.

        Args:
            learn: makes that model.
            network: in its place in the first round.
            picks: also have it pick half of the kernels, those that it believes fastest.
        """
        for each in split(self.budget_s, f"{GUIDED}:{SAMPLE}"):
            if self.measured:
                network = learn(self.world, self.new(), self.seed)
            order = self._chosen(each.budget_s, network)
            self._measure(order, each.budget_s, Scorer(network) if picks and network is not None else None)

    def new(self) -> ExampleSet:
        """Return what is measured."""
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
    """Return a problem with the vendor's kernels and as many others as `diode tune` times.

    Half of these are DEFAULT's, or those that a model picks, and the rest are drawn.
    """
    columns, space = example.columns, SearchSpace(GUIDED, SAMPLE)
    order = draws.permutation(len(example))
    rank = _later_than_default(example) if picker is None else predict(picker, [example])[0]
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
    """Return which configs are not of Inductor's DEFAULT list, shape (n,)."""
    default = default_configs(example.shape)
    rows = np.stack([getattr(example.columns, name) for name in _CONFIG], axis=1).tolist()
    return np.array([GemmConfig(*row) not in default for row in rows])


def _seconds(choices: int) -> float:
    return cpu_seconds(choices) / CORES_ELSEWHERE


def _scratch(_world: World, new: ExampleSet, seed: int) -> TimingNetwork:
    return fit(pack(new), make_recipe("deep"), seed=seed).network


def _warm(world: World, new: ExampleSet, seed: int) -> TimingNetwork:
    """Go on from what is known, as `diode-train --warm-start` does."""
    known = ExampleSet(world.known)
    recipe = make_recipe("deep", epochs=EPOCHS, learning_rate=LEARNING_RATE)
    beginning = Beginning(world.base, repeats(len(new), len(known)))
    return fit(pack(both(new, known)), recipe, seed=seed, beginning=beginning).network


@dataclass(frozen=True)
class Way:
    """How minutes are spent, and what is made of what was measured."""

    spend: Callable[[Spending], None]
    learn: Learn = _scratch


def _is_layer(example: Examples) -> bool:
    """Whether a problem is a layer of a model, not drawn."""
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
"""Where something is known."""
WAYS = _WAYS | _WARM_WAYS
EVERYTHING, NOTHING = "everything", "nothing"


def main() -> int:
    """Spend, fit, judge, append and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file that gets one JSON line a result")
    parser.add_argument("--new", choices=WORLDS, action="append", help="what is new; default: each")
    parser.add_argument(
        "--way", choices=[*WAYS, *REAL_RUNS, EVERYTHING, NOTHING], action="append", help="default: each"
    )
    parser.add_argument("--minutes", type=float, action="append", help=f"default: {', '.join(map(str, MINUTES))}")
    parser.add_argument("--seeds", type=int, default=2, help="draws, from 0")
    parser.add_argument("--time-limit-s", type=float, default=math.inf, help="begin no fit after so many seconds")
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
    """Return what there is to fit, the quickest first."""
    is_known = new == TF32
    minutes = options.minutes or MINUTES
    asked = options.way or [*WAYS, *REAL_RUNS, EVERYTHING, NOTHING]
    ways = [way for way in asked if way in WAYS and (is_known or way not in _WARM_WAYS)]
    ends = [(way, 0.0) for way in asked if way == EVERYTHING or (way == NOTHING and is_known)]
    real = [(way, each) for way, run in REAL_RUNS.items() for each in run.minutes if way in asked and not is_known]
    listed = [*((way, each) for each in minutes for way in ways), *real, *ends]
    return [(new, way, each, seed) for way, each in listed for seed in range(1 if way == NOTHING else options.seeds)]


def _run(task: Task, output: Path, deadline: float) -> None:
    """Do one task in a process of its own, unless it is too late to begin."""
    if time.time() < deadline:
        new, *rest = task
        with limited_threads():
            results.append(output, dict(zip(_FIELDS, task, strict=True)) | _judged(_world(new), *rest))


@cache
def _world(new: str) -> World:
    return WORLDS[new](shipped_data.measurements([*shipped_data.DATASETS]))


def _judged(world: World, way: str, minutes: float, seed: int) -> dict[str, Any]:
    """Spend, fit and judge; return the figures."""
    started = time.perf_counter()
    new = ExampleSet(world.pool)
    if way == NOTHING:
        new, network = ExampleSet(()), world.base
    elif way == EVERYTHING:
        network = _scratch(world, ExampleSet((*world.known, *world.pool)), seed)
    elif way in REAL_RUNS:
        new = REAL_RUNS[way].until(minutes)
        network = _scratch(world, new, seed)
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


def regrets(tested: Sequence[Examples], predicted: list[NDArray[np.float64]]) -> dict[str, float]:
    """Return regret@k by k as text."""
    report = summarise(judge_problems(tested, predicted, vendor=True))
    return {str(k): regret.geomean for k, regret in report.regret.items()}


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in _FIELDS)


def _show(lines: list[dict[str, Any]]) -> None:
    """Print regret@1 and @5 in the mean over seeds, and the loss at @1 over a draw's."""
    found: dict[tuple[str, float], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        found[line["new"], line["minutes"]][line["way"]].append(line)
    for new in dict.fromkeys(line["new"] for line in lines):
        for tested in ("listed", "held back"):
            ends = found.get((new, 0.0), {})
            said = "; ".join(f"{way}: {_cell(of, (), tested)}" for way, of in ends.items())
            judged = next(line[tested]["judged"] for line in lines if line["new"] == new)
            minutes = sorted({each for name, each in found if name == new and each})
            ways = [way for way in (*WAYS, *REAL_RUNS) if any(found[new, each].get(way) for each in minutes)]
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
