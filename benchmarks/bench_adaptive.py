"""What the hook's modes lose and how many kernels they time, on families of problems that no model saw; takes minutes.

    python benchmarks/bench_adaptive.py [--members 6] [--folds 5] [--dataset NAME]

Fits the recipe of ``diode-train`` to bundled measurements without a part of their families, for each part, and
replays the hook's choices on the problems of that part: of what was measured there, Inductor would take the fastest
that is kept. One that is kept alone is not timed at all. The calibration of adaptive mode is fitted to the other
parts. The baseline is zero mode: how much of what it loses is lost still.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import shipped_data

from diode_integration.policy import KeptCandidates, Mode, Policy, Spread, select
from diode_store.console import print_rows
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.held_out import Split
from diode_trainer.data.splits import split_up
from diode_trainer.data.tensors import pack
from diode_trainer.judging.calibration import Case, calibrate_by_others, make_cases, mean_timed
from diode_trainer.judging.standing import predict
from diode_trainer.report.rows import certainty_groups
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import fit, limited_threads

if TYPE_CHECKING:
    from diode_trainer.card import Calibration
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.data.splits import Fold
    from diode_trainer.training.train import Recipe

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
_HEADER = ("mode", "kernels timed", "kept alone", "regret@1", "p95", "max", "of zero's loss")


def main() -> int:
    """Fit, replay and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, default=6, help="of each fit, at least 2")
    parser.add_argument("--folds", type=int, default=5, help="into how many parts the families are divided")
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


def show(unseen: list[list[Case]]) -> None:
    """Print the tables of the cases of each part."""
    calibrations = calibrate_by_others(unseen)
    cases = [(case, calibration) for part, calibration in zip(unseen, calibrations, strict=True) for case in part]
    zero = np.mean([case.loss for case, _ in cases])
    rows = [
        _row(name, [(case, _kept(case, calibration, policy)) for case, calibration in cases], float(zero))
        for name, policy in _MODES.items()
    ]
    print_rows(_HEADER, rows, title=f"{len(cases)} problems of families that were held out")
    sure = [_kept(case, calibration, Policy(mode=Mode.ZERO)).p_within_2pct or 0.0 for case, calibration in cases]
    groups = certainty_groups(np.array(sure), np.array([case.loss for case, _ in cases]))
    print_rows(
        ("problems", "predicted", "observed"),
        [(group.problems, f"{group.said_pct:.0f}%", f"{group.was_pct:.0f}%") for group in groups],
        title="How likely the first choice is within 2% of the best",
    )


def _unseen(dataset: ExampleSet, split: Fold, recipe: Recipe) -> list[Case]:
    """Return what a fit to one part predicts for the problems of the other that the hook would ask it about."""
    train, test = dataset.subset(split.train), dataset.subset(split.test)
    scorer = Scorer(fit(pack(train), recipe).network, train.domain().templates)
    return make_cases(test.examples, predict(scorer, test.examples), dataset.domain())


def _kept(case: Case, calibration: Calibration | None, policy: Policy) -> KeptCandidates:
    predicted = np.exp(case.member_logs.mean(0, dtype=np.float64))
    everything = np.arange(len(predicted))
    return select(predicted, case.is_vendor, policy, Spread(everything, case.member_logs, calibration))


def _row(name: str, kept: list[tuple[Case, KeptCandidates]], zero: float) -> tuple[object, ...]:
    lost = np.array([case.measured[list(selection.indices)].min() for case, selection in kept])
    indices = [selection.indices for _, selection in kept]
    alone = np.mean([len(some) == 1 for some in indices])
    worst = (np.exp(value) for value in (np.percentile(lost, 95), lost.max()))
    figures = (f"{value:.3f}" for value in worst)
    return (
        name,
        f"{mean_timed(indices):.2f}",
        f"{alone:.0%}",
        f"{np.exp(lost.mean()):.4f}",
        *figures,
        f"{lost.mean() / zero:.0%}",
    )


if __name__ == "__main__":
    sys.exit(main())
