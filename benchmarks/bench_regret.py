"""Measure the regret of a model on unseen problems, beside baselines without a model; takes minutes.

    python benchmarks/bench_regret.py [--model-type deep] [--split family] [--by alignment] [--dataset NAME]

Fits the recipe of ``diode-train`` on five folds of bundled measurements, by problem or by family. Judges each fold by
all of its problems, and by those that were timed exhaustively, whose true best is known. The tables include baselines:
the vendor kernel, Inductor's DEFAULT list, short lists and rankings learned from the other folds, boosted trees, and
chance.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import shipped_data

from diode_store.command_line.console import print_rows
from diode_trainer.commands.recipes import RECIPES, make_recipe
from diode_trainer.commands.tables import ERRORS_HEADER, HEADER, PARTS_HEADER, error_rows, left_out, part_rows, rows
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.held_out import Split
from diode_trainer.data.splits import Fold, split_up
from diode_trainer.data.tensors import pack
from diode_trainer.judging.baselines.compare import Forecasts, forecast
from diode_trainer.judging.slices import SLICES, slices
from diode_trainer.judging.standing import predict, standing
from diode_trainer.scoring import Prediction, Scorer
from diode_trainer.training.train import fit, limited_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.training.recipe import Recipe

_FOLDS = 5
EXHAUSTIVE = {"EXHAUSTIVE", "EXHAUSTIVE without TMA"}
"""Search spaces whose choices were all timed."""


def main() -> int:
    """Fit, judge and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-type", choices=sorted(RECIPES), default="deep", help="type of network to fit")
    parser.add_argument(
        "--split", choices=[*Split], default=Split.PROBLEM, type=Split, help="unit that a fold holds out"
    )
    parser.add_argument("--by", choices=SLICES, action="append", default=[], help="also show parts of the problems")
    shipped_data.add_option(parser)
    options = parser.parse_args()
    measurements = shipped_data.measurements(options.dataset)
    dataset = load_measurements(measurements, "the bundled measurements")
    exhaustive = {m.problem.shape for m in measurements if m.search_space in EXHAUSTIVE}
    splits = split_up(dataset, options.split, _FOLDS)
    with limited_threads(), ThreadPoolExecutor(os.cpu_count()) as pool:
        fitted = list(pool.map(lambda split: unseen(dataset, split, make_recipe(options.model_type)), splits))
    predicted = [prediction for of_split in fitted for prediction in of_split]
    outcome = Outcome(dataset, splits, predicted, forecast(dataset, splits))
    over = f"pooled over {_FOLDS} folds, a {options.split} in one of them"
    tested = np.array([i for split in splits for i in split.test])
    show(f"{len(tested):,} problems, {over}", outcome, options.model_type, options.by)
    whole = np.array([dataset.examples[i].shape in exhaustive for i in tested])
    show(f"{whole.sum():,} problems timed exhaustively, {over}", outcome.of(whole), options.model_type, ())
    return 0


def unseen(dataset: ExampleSet, split: Fold, recipe: Recipe) -> list[Prediction]:
    """Return the predictions of a fold's fit for its test problems."""
    train = dataset.subset(split.train)
    scorer = Scorer(fit(pack(train), recipe).network, train.domain().templates)
    return predict(scorer, [dataset.examples[i] for i in split.test])


@dataclass(frozen=True)
class Outcome:
    """Predictions for the test problems of all folds."""

    dataset: ExampleSet
    splits: Sequence[Fold]
    predicted: Sequence[Prediction]
    forecasts: Forecasts

    def of(self, chosen: NDArray[np.bool_]) -> Outcome:
        """Return the outcome for the ``chosen`` test problems."""
        ends = np.cumsum([len(split.test) for split in self.splits])
        parts = np.split(chosen, ends[:-1])
        forecasts = {name: [*compress(predictions, chosen)] for name, predictions in self.forecasts.predictions.items()}
        return Outcome(
            self.dataset,
            [Fold(split.train, split.test[part]) for split, part in zip(self.splits, parts, strict=True)],
            [*compress(self.predicted, chosen)],
            Forecasts(forecasts, self.forecasts.skipped),
        )


def show(title: str, outcome: Outcome, name: str, by: Sequence[str]) -> None:
    """Print the tables."""
    print(f"\n{title}")
    for choices, vendor in (("All choices", True), ("Triton choices only", False)):
        found = standing(*vars(outcome).values(), vendor=vendor)
        print(f"\n{choices}")
        print_rows(HEADER, rows(found, name))
        print_rows(ERRORS_HEADER, error_rows(found, name))
        for line in left_out(found):
            print(line)
        for slice_by, parts in slices(found.judgements, by).items():
            print_rows((slice_by, *PARTS_HEADER), part_rows(parts))


if __name__ == "__main__":
    sys.exit(main())
