"""What a decision costs: features and scores of 1,500 candidates, beside all members of the model scoring all of them.

    python benchmarks/bench_predict.py [--model NAME.pt] [--dataset NAME]

One core, one mm (1024 x 1024 by 1024 x 1024, bf16) on an H200, no GPU needed. To make 1,500, the first candidates of
Inductor's EXHAUSTIVE list are asked twice. That list takes Inductor longer than all of this, and has to come first.

All members score only the best of a list. What that costs is shown on every bundled problem: how often the first one,
three and five of 1,500 candidates are others than if all members score all, how much slower the last of them is
predicted to be, and the regret on the candidates that were measured.
"""

from __future__ import annotations

import argparse
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
from diode_integration.candidates import KnownLists
from diode_integration.install import install
from diode_integration.policy import Mode, Policy, Spread, select
from diode_store.devices import known_device
from diode_store.records import is_vendor_template
from diode_trainer import artifact
from diode_trainer.data.from_file import load_measurements
from diode_trainer.features import model_inputs
from diode_trainer.judging.judgement import judge_problems, summarise

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_store.columns import ConfigColumns
    from diode_store.records import Measurement, Problem
    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.judging.metrics import Report

_SIZE = 1024
_CANDIDATES = 1500
_REPEATS = 50
_FIRST = (1, 3, 5)
_ROUNDING = 1e-5
"""Predictions that differ by less are ties."""
_BASELINE = "all members score all (baseline)"


class Bench(hook.DiodeInductorChoices):
    """Measures inside the hook, where Inductor's graph is alive."""

    seconds: dict[str, float]
    listed: int
    columns: ConfigColumns

    def _list(self, offer: Any, problem: Problem, predictor: Any, hardware: Any, largest: Problem | None = None) -> Any:
        listing = super()._list(offer, problem, predictor, hardware, largest)
        model, shape = predictor.model, problem.shape
        listed = listing.ranked.columns
        self.listed = len(listed)
        self.columns = columns = listed.take(np.arange(_CANDIDATES) % len(listed))
        vendor = columns.template_mask(is_vendor_template)
        policy, adaptive = Policy(), Policy(mode=Mode.ADAPTIVE)

        def decide(policy: Policy) -> object:
            """Choose as the hook does."""
            prediction = model.predict(shape, hardware, columns).without_repeats()
            spread = Spread(prediction.finalists, prediction.member_logs, model.card.calibration)
            return select(prediction.runtime_us, vendor, policy, spread)

        def list_again() -> ConfigColumns:
            return super(Bench, self)._list(offer, problem, predictor, hardware).ranked.columns

        def list_anew() -> ConfigColumns:
            self._known_lists = KnownLists()
            return list_again()

        self.seconds = {
            _BASELINE: _median(lambda: select(model.predict_us(shape, hardware, columns, exact=True), vendor, policy)),
            "listing, the first of its class": _median(list_anew),
            "listing, of a known class": _median(list_again),
            "features": _median(lambda: model_inputs(shape, hardware, columns)),
            "features and scores": _median(lambda: model.predict_us(shape, hardware, columns)),
            "features, scores and choice": _median(
                lambda: select(model.predict_us(shape, hardware, columns), vendor, policy)
            ),
            "the same in top-k mode": _median(lambda: decide(policy)),
            "the same in adaptive mode": _median(lambda: decide(adaptive)),
        }
        return listing


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="checkpoint; the best shipped model if not given")
    shipped_data.add_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = artifact.load(options.model) if options.model else artifact.load_shipped()
    loading = _median(lambda: artifact.load(model.path), repeats=5)
    handler = Bench(model=model, hardware=known_device("NVIDIA H200"), observe=True, enable_fallback=False)
    matrix = torch.randn(_SIZE, _SIZE, dtype=torch.bfloat16)
    with install(handler), torch.no_grad(), inductor_config.patch(fx_graph_cache=False):
        torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")(matrix, matrix)
    baseline = handler.seconds[_BASELINE]
    print(f"{handler.listed} listed, {_CANDIDATES} ranked; loading the model takes {loading * 1e3:.1f} ms")
    for name, seconds in handler.seconds.items():
        print(f"{name:32s} {seconds * 1e3:8.3f} ms   {seconds / baseline:6.3f} of the baseline")
    _show_changes(model, handler.columns, shipped_data.measurements(options.dataset))
    return 0


def _show_changes(model: TimingModel, columns: ConfigColumns, measurements: list[Measurement]) -> None:
    """Print what the first choices for the bundled problems lose when not all members score all."""
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
    """Return by how much the slowest of the first few is predicted to be slower than if all members score all."""
    asked = replace(columns, allow_tf32=np.full(len(columns), example.shape.tf32))
    exact, fast = (model.predict_us(example.shape, example.hardware, asked, exact=exact) for exact in (True, False))
    by_all, order = np.sort(exact), np.argsort(fast, kind="stable")
    return [float(exact[order[:count]].max() / by_all[count - 1]) - 1 for count in _FIRST]


def _median(function: Callable[[], object], repeats: int = _REPEATS) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
