"""Measure the loss and the benchmarks of the hook's modes on families that no model saw; takes minutes.

    python benchmarks/bench_adaptive.py [--members 6] [--folds 5] [--dataset NAME]

Each fold of families is left out of a fit with the recipe of ``diode-train``, and the hook's choices on its problems
are replayed. Inductor takes the fastest measured kernel that a mode keeps, or the only one without a benchmark. The
calibration of adaptive mode is fitted to the other folds. The baseline is zero mode: tables show the remaining share
of its loss.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import shipped_data

from diode_store.command_line.console import print_rows
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.commands.replay_tables import HEADER, certainty, row
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.held_out import Split
from diode_trainer.data.splits import split_up
from diode_trainer.data.tensors import pack
from diode_trainer.judging.calibration import calibrate_by_others, make_cases
from diode_trainer.judging.replay import Replay, by_kind, replay
from diode_trainer.judging.standing import predict
from diode_trainer.policy import Mode, Policy
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import fit, limited_threads

if TYPE_CHECKING:
    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.data.splits import Fold
    from diode_trainer.scoring import Prediction
    from diode_trainer.training.recipe import Recipe

_PRICES = (0.02, 0.01, 0.007, 0.005, 0.003, 0.002, 0.001)
_MODES = {
    "zero": Policy(mode=Mode.ZERO),
    "top 1": Policy(1),
    **{
        f"top {k}{within}{how}": Policy(k, threshold, together=not how)
        for k, threshold, within in ((3, 1.1, ""), (5, 1.1, ""), (3, 1.3, ", within 1.3"))
        for how in ("", ", by time")
    },
    "adaptive": Policy(mode=Mode.ADAPTIVE),
    **{f"adaptive, {price:.1%}": Policy(mode=Mode.ADAPTIVE, kernel_price=price) for price in _PRICES},
}
_HEADER = ("mode", *HEADER[1:], "of zero's loss")


def main() -> int:
    """Fit, replay and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, default=6, help="members of each fit, at least 2")
    parser.add_argument("--folds", type=int, default=5, help="number of folds of families")
    shipped_data.add_option(parser)
    options = parser.parse_args()
    if options.members < 2:  # noqa: PLR2004 - one has nobody to disagree with
        parser.error("--members must be at least 2")
    dataset = load_measurements(shipped_data.measurements(options.dataset), "the bundled measurements")
    splits = split_up(dataset, Split.FAMILY, options.folds)
    recipe = replace(make_recipe("deep"), members=options.members)
    with limited_threads(), ThreadPoolExecutor(os.cpu_count()) as pool:
        unseen = list(pool.map(lambda split: _unseen(dataset, split, recipe), splits))
    show(unseen)
    return 0


def show(unseen: list[Part]) -> None:
    """Print the tables of the predictions for each part."""
    calibrations = calibrate_by_others([make_cases(part.examples, part.predictions) for part in unseen])
    found = {
        name: [
            one
            for part, calibration in zip(unseen, calibrations, strict=True)
            for one in replay(part.examples, part.predictions, calibration, policy)
        ]
        for name, policy in _MODES.items()
    }
    zero = np.log(Replay.of(found["zero"]).regret.geomean)
    modes = {name: Replay.of(replayed) for name, replayed in found.items()}
    rows = [(*row(name, of), f"{np.log(of.regret.geomean) / zero:.0%}") for name, of in modes.items()]
    print_rows(_HEADER, rows, title="Problems of families that were held out")
    kinds = by_kind(found["adaptive"])
    print_rows(HEADER, [row(*item) for item in kinds.items()], title="Adaptive, by alignment and length of the list")
    print_rows(
        ("problems", "sure", "seen"),
        [(group.problems, f"{group.said_pct:.0f}%", f"{group.was_pct:.0f}%") for group in certainty(found["adaptive"])],
        title="How sure it is that the first choice is within 2% of the best, and how often it is",
    )


class Part(NamedTuple):
    """Problems of a fold, with the predictions of a fit that had not seen them."""

    examples: list[Examples]
    predictions: list[Prediction]


def _unseen(dataset: ExampleSet, split: Fold, recipe: Recipe) -> Part:
    """Return the test problems of a fold that the hook would ask about, with predictions by a fit to the others."""
    train, domain = dataset.subset(split.train), dataset.domain()
    tested = [e for e in dataset.subset(split.test) if not any(domain.misses(e.shape, e.hardware))]
    scorer = Scorer(fit(pack(train), recipe).network, train.domain().templates)
    return Part(tested, predict(scorer, tested))


if __name__ == "__main__":
    sys.exit(main())
