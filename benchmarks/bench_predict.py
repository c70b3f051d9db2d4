"""Measure what a decision costs: features, scores and choice of 1,500 candidates, beside NVIDIA's nvMatmulHeuristics.

    python benchmarks/bench_predict.py [--model NAME.pt] [--dataset NAME]

One core, one mm (1024 x 1024 by 1024 x 1024, bf16) on an H200; needs no GPU. The candidates are those of Inductor's
EXHAUSTIVE list, the first ones twice to make 1,500. Listing them takes Inductor longer than all of this, and has to
come first. The times are for problems of one list, ranked one after another as in a compile. The first problem of a
list has its own row. nvMatmulHeuristics (`torch-diode[heuristics]`) lists Triton kernels for the same problems, in
turns with us. On a busy machine the minimum of 200 times is the most reliable figure.

All members score only the best of a list. The last table shows the cost on every bundled problem, for the first one,
three and five choices. The comparison is with all members scoring all candidates: how often choices differ, and how
much slower the last of them is predicted to be. The table also has the regret on the measured candidates.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import shipped_data
import torch
from torch._inductor import config as inductor_config

from diode_integration import choices as hook
from diode_integration.inductor.candidates import KnownLists
from diode_integration.install import install
from diode_store.devices.descriptor import describe
from diode_store.devices.known import known_device
from diode_store.records import is_vendor_template
from diode_trainer import artifact, scoring
from diode_trainer.data.from_file import load_measurements
from diode_trainer.features import ModelInputs
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.policy import Mode, Policy, Spread, select
from diode_trainer.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, Measurement, ProblemShape
    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.judging.metrics import Report
    from diode_trainer.scoring import Prediction

_SIZE = 1024
_CANDIDATES = 1500
_REPEATS = 200
_FIRST = (1, 3, 5)
_HEURISTIC_KERNELS = 64
"""Number of kernels to request; the package returns a dozen or fewer."""
_ROUNDING = 1e-5
"""Largest relative difference of tied predictions."""
_TOTAL = "decision, adaptive mode"
_HEURISTICS = "nvMatmulHeuristics' list"


class _Parts:
    """Separate steps of ``Scorer.predict``."""

    def __init__(self, scorer: Any, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> None:
        self._scorer, self._columns = scorer, columns
        self._work = Work(shape, describe(hardware))
        self._listed = scorer._listed(columns, self._work.kind(columns))  # noqa: SLF001 - what is measured
        self._inputs = self.features()
        self._finalists = self.scout()

    def features(self) -> ModelInputs:
        """Return the features that depend on the problem."""
        return ModelInputs(self._work, self._listed.features)

    def scout(self) -> Any:
        """Return the scout's finalists."""
        scores = self._scorer._scout.score_list(self._inputs, self._listed.begun)  # noqa: SLF001 - as above
        return self._listed.finalists_of(scores, scoring._FINALISTS)[0]  # noqa: SLF001 - as above

    def members(self) -> Any:
        """Return the members' predictions for the finalists."""
        return self._scorer._members.score_all(self._inputs.rows(self._finalists))  # noqa: SLF001 - as above


def _heuristics(shapes: Iterator[ProblemShape]) -> Callable[[], object] | None:
    """Return a function that asks nvMatmulHeuristics for its list; None if it is not installed."""
    try:
        import nvMatmulHeuristics
    except ImportError:
        return None
    interface = nvMatmulHeuristics.NvMatmulHeuristicsInterfaceEx(
        backend=nvMatmulHeuristics.NvMatmulHeuristicsTarget.TRITON,
        flags=nvMatmulHeuristics.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        load_discovery_implicitly=True,
        gpu=nvMatmulHeuristics.NvMatmulHeuristicsNvidiaGpu["H200_SXM"],
    )
    layouts = nvMatmulHeuristics.NvMatmulHeuristicsMatmulLayout

    def ask() -> object:
        shape = next(shapes)
        layout = layouts[f"{shape.layout.upper()}_ROW_MAJOR"]
        problem = interface.makeNvMatmulHeuristicsProblem(shape.m, shape.n, shape.k, layout, shape.b)
        return interface.get(problem, _HEURISTIC_KERNELS, precision="TST")

    return ask


class Bench(hook.DiodeInductorChoices):
    """Measures inside the hook, while Inductor's graph is alive."""

    times: dict[str, tuple[float, float]]
    listed: int
    columns: ConfigColumns

    def _list(self, offer: Any, product: Any, asked: Any) -> Any:
        listing = super()._list(offer, product, asked)
        predictor, problem, hardware = asked
        model, shape, listed = predictor.model, problem.shape, listing.ranked.columns
        self.listed = len(listed)
        self.columns = columns = listed.take(np.arange(_CANDIDATES) % len(listed))
        vendor = columns.template_mask(is_vendor_template)
        scorer, calibration = model.scorer, model.card.calibration

        def choose(prediction: Prediction, policy: Policy) -> object:
            distinct = prediction.without_repeats()
            spread = Spread(distinct.finalists, distinct.member_logs, calibration)
            return select(distinct.runtime_us, vendor, policy, spread)

        def list_again() -> ConfigColumns:
            return super(Bench, self)._list(offer, product, asked).ranked.columns

        def list_anew() -> ConfigColumns:
            self._known_lists = KnownLists()
            return list_again()

        def first_of_a_list() -> Prediction:
            scorer._listed.cache_clear()  # noqa: SLF001 - what is measured
            return model.predict(shape, hardware, replace(columns))

        def decide(policy: Policy) -> Callable[[], object]:
            return lambda: choose(model.predict(next(shapes), hardware, columns), policy)

        adaptive, top_k, zero = (Policy(mode=mode) for mode in (Mode.ADAPTIVE, Mode.TOP_K, Mode.ZERO))
        # Consecutive questions are about different problems, so that no cache of a problem helps.
        shapes = itertools.cycle(replace(shape, m=_SIZE + 16 * step) for step in range(16))
        prediction = model.predict(shape, hardware, columns)
        parts = _Parts(scorer, shape, hardware, columns)
        together = {_TOTAL: decide(adaptive), _HEURISTICS: _heuristics(shapes)}
        alone: dict[str, Callable[[], object]] = {
            "  features": parts.features,
            "  scout": parts.scout,
            "  members": parts.members,
            "  choice": lambda: choose(prediction, adaptive),
            "the first of its list": lambda: choose(first_of_a_list(), adaptive),
            "decision, top-k mode": decide(top_k),
            "decision, zero mode": decide(zero),
            "scores, all members score all": lambda: model.predict_us(shape, hardware, columns, exact=True),
            "listing, of a known class": list_again,
            "listing, the first of its class": list_anew,
        }
        self.times = _times({name: ask for name, ask in together.items() if ask is not None})
        for name, ask in alone.items():
            self.times |= _times({name: ask})
        return listing


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="checkpoint; the best shipped model by default")
    shipped_data.add_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = artifact.load(options.model) if options.model else artifact.load_shipped()
    loading = _median(lambda: artifact.load(model.path), repeats=5)
    handler = Bench(model=model, hardware=known_device("NVIDIA H200"), observe=True, enable_fallback=False)
    matrix = torch.randn(_SIZE, _SIZE, dtype=torch.bfloat16)
    with install(handler), torch.no_grad(), inductor_config.patch(fx_graph_cache=False):
        torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")(matrix, matrix)
    print(f"{handler.listed} listed, {_CANDIDATES} ranked; loading the model takes {loading * 1e3:.1f} ms")
    print(f"{'milliseconds':34s}   least  median")
    for name, (least, median) in handler.times.items():
        print(f"{name:34s} {least * 1e3:7.3f} {median * 1e3:7.3f}")
    if _HEURISTICS in handler.times:
        least, median = (a / b for a, b in zip(handler.times[_TOTAL], handler.times[_HEURISTICS], strict=True))
        print(f"{'ratio, ours to its':34s} {least:7.2f} {median:7.2f}")
    else:
        print("nvMatmulHeuristics is not installed: `pip install 'torch-diode[heuristics]'`")
    _show_changes(model, handler.columns, shipped_data.measurements(options.dataset))
    return 0


def _show_changes(model: TimingModel, columns: ConfigColumns, measurements: list[Measurement]) -> None:
    """Print what the first choices for the bundled problems lose if not all members score all candidates."""
    dataset = load_measurements(measurements, "the bundled measurements")
    exact, fast = (_judged(model, dataset, exact=exact) for exact in (True, False))
    lost = np.array([_lost(model, example, columns) for example in dataset])  # (m, len(_FIRST))
    print(
        f"{len(dataset)} bundled problems, each with these {_CANDIDATES} candidates and with those that were measured:"
    )
    for count, loss in zip(_FIRST, lost.T, strict=True):
        others = f"others on {(loss > _ROUNDING).sum()} problems, predicted {loss.mean():.4%} slower"
        regrets = [f"{judged.regret[count].geomean:.6f}" for judged in (fast, exact)]
        print(f"first {count}: {others}; regret@{count} as tried {regrets[0]}, by all {regrets[1]}")


def _judged(model: TimingModel, dataset: ExampleSet, *, exact: bool) -> Report:
    predicted = [model.predict(e.shape, e.hardware, e.columns, exact=exact) for e in dataset]
    return summarise(judge_problems(dataset.examples, predicted))


def _lost(model: TimingModel, example: Examples, columns: ConfigColumns) -> list[float]:
    """Return how much slower the last of the first choices is predicted to be than if all members score all."""
    asked = replace(columns, allow_tf32=np.full(len(columns), example.shape.tf32))
    exact, fast = (model.predict_us(example.shape, example.hardware, asked, exact=exact) for exact in (True, False))
    by_all, order = np.sort(exact), np.argsort(fast, kind="stable")
    return [float(exact[order[:count]].max() / by_all[count - 1]) - 1 for count in _FIRST]


def _times(functions: dict[str, Callable[[], object]]) -> dict[str, tuple[float, float]]:
    """Return the minimum and the median seconds of each function, timed in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(_REPEATS):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - started)
    return {name: (min(taken), statistics.median(taken)) for name, taken in seconds.items()}


def _median(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
