"""What a model's choices cost on problems it has not seen, beside choices that need no model; takes minutes.

    python benchmarks/bench_regret.py [--model-type deep]

Fits the recipe of ``diode-train`` to each part but one of five of the bundled measurements, and judges it by the part
left out: over all problems, and over those alone that were timed exhaustively, where the best of all is known. The
baselines are in the same tables: the vendor's kernel, Inductor's DEFAULT list, a fixed ranking, chance.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from diode_collectors.spool.spool import Spool
from diode_store.console import print_rows
from diode_store.resources import bundled_data_dir
from diode_store.wire.segments import read_segment
from diode_trainer.commands.recipes import RECIPES, make_recipe
from diode_trainer.commands.tables import HEADER, rows
from diode_trainer.data.splits import Fold, folds
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.tensors import pack
from diode_trainer.scoring import Scorer
from diode_trainer.train import fit, single_threaded
from diode_trainer.workflow import judge, predict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.train import Recipe

_FOLDS = 5
EXHAUSTIVE = "EXHAUSTIVE without TMA"
"""The search space of which every choice was timed."""


def main() -> int:
    """Fit, judge and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-type", choices=sorted(RECIPES), default="deep", help="what to fit")
    options = parser.parse_args()
    sealed = Spool(bundled_data_dir()).sealed()
    measurements = [frame.measurement() for path in sealed for frame in read_segment(path)]
    dataset = load_measurements(measurements, "the bundled measurements")
    exhaustive = {m.problem.shape for m in measurements if m.search_space == EXHAUSTIVE}
    splits = folds(dataset, _FOLDS)
    with single_threaded(), ThreadPoolExecutor(os.cpu_count()) as pool:
        fitted = list(pool.map(lambda split: unseen(dataset, split, make_recipe(options.model_type)), splits))
    is_whole = np.array([example.shape in exhaustive for example in dataset])
    show("all problems", dataset, splits, fitted, np.ones(len(dataset), dtype=np.bool_), options.model_type)
    show("problems timed exhaustively", dataset, splits, fitted, is_whole, options.model_type)
    return 0


def unseen(dataset: ExampleSet, split: Fold, recipe: Recipe) -> list[NDArray[np.float64]]:
    """Return what a fit to one part predicts for the problems of the other."""
    train = dataset.subset(split.train)
    scorer = Scorer(fit(pack(train), recipe).network, train.domain().templates)
    return predict(scorer, [dataset.examples[i] for i in split.test])


def show(
    title: str,
    dataset: ExampleSet,
    splits: tuple[Fold, ...],
    fitted: list[list[NDArray[np.float64]]],
    chosen: NDArray[np.bool_],
    name: str,
) -> None:
    """Print the tables over the ``chosen`` problems."""
    part = [Fold(split.train, split.test[chosen[split.test]]) for split in splits]
    predicted = [
        times
        for split, of_split in zip(splits, fitted, strict=True)
        for i, times in zip(split.test, of_split, strict=True)
        if chosen[i]
    ]
    evaluation = judge(dataset, part, predicted)
    print(f"\n{chosen.sum():,} {title}, pooled over {_FOLDS} folds")
    print_rows(HEADER, rows(evaluation.all_choices, name), title="All choices")
    if evaluation.triton_only is not None:
        print_rows(HEADER, rows(evaluation.triton_only, name), title="Triton choices only")


if __name__ == "__main__":
    sys.exit(main())
