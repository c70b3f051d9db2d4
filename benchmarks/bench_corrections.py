"""Measure the value of corrections from deployed compiles, by a replay over the bundled timings; takes about a minute.

    python benchmarks/bench_corrections.py [--folds 5]

A fit to four fifths of the first bundled data set predicts the rest, as in a deployed hook. For each of those problems
the replay measures the few configs that the hook would keep, with added noise. It then makes corrections from them and
predicts the same problems again. The tables show the regret before and after, round by round, with declared and with
hidden noise. For comparison they show the regret of the fastest measured config, whatever the model says.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import shipped_data

from diode_store.command_line.console import print_rows
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.corrections.correcting import MeasuredProblem, offsets_of, unexplained_noise
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.splits import folds
from diode_trainer.data.tensors import pack
from diode_trainer.judging.metrics import judgeable, regrets
from diode_trainer.policy import Policy, select
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_trainer.data.dataset import Examples

    Floats = NDArray[np.float64]

KS = (1, 3, 5)
ROUNDS = (1, 3)
USUAL = 0.015
"""Relative scatter of a measurement with hidden launches (diode_store/timing/noise.py)."""


class Noise(NamedTuple):
    """Relative scatter of a replayed measurement: the true one, and the declared one."""

    real: float
    admitted: float


NOISES = (Noise(0, USUAL), Noise(USUAL, USUAL), Noise(0.1, 0.1), Noise(0.3, 0.3), Noise(0.1, USUAL), Noise(0.3, USUAL))
HEADER = ("measurements", "rounds", *(f"regret@{k}" for k in KS), "max@1", "best measured@1")


@dataclass(frozen=True, eq=False)
class Replay:
    """One problem outside the model's training data; arrays have shape (n,), over the configs that ran."""

    example: Examples
    columns: ConfigColumns
    runtime_us: Floats
    is_vendor: NDArray[np.bool_]
    predicted_us: Floats
    revealed: dict[int, list[float]]
    """Measured times of each config, in microseconds."""

    def reveal(self, predicted_us: Floats, noise: Noise, generator: np.random.Generator) -> None:
        """Measure the configs that the hook would keep for benchmarking."""
        for config in select(predicted_us, self.is_vendor, Policy()).indices:
            time = float(self.runtime_us[config] * np.exp(generator.normal(0, noise.real)))
            self.revealed.setdefault(config, []).append(time)

    def measured(self, noise: Noise) -> MeasuredProblem:
        """Return the measurements so far."""
        configs = sorted(self.revealed)
        return MeasuredProblem(
            hardware=self.example.hardware,
            shape=self.example.shape,
            columns=self.columns.take(np.array(configs)),
            runtime_us=np.array([np.median(self.revealed[config]) for config in configs]),
            count=np.array([len(self.revealed[config]) for config in configs]),
            sigma=np.full(len(configs), noise.admitted),
        )


def main() -> int:
    """Fit, replay and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folds", type=int, choices=range(1, 6), default=1, help="number of the five folds to replay")
    options = parser.parse_args()
    problems = unseen_problems(options.folds)
    rows: list[tuple[object, ...]] = [row("none (before)", 0, problems, [p.predicted_us for p in problems], None)]
    for noise in NOISES:
        rows += replayed(problems, noise)
    print(f"{len(problems):,} problems of {options.folds} of 5 folds; geometric means; top 3 is what is revealed")
    print_rows(HEADER, rows)
    return 0


def unseen_problems(count: int) -> list[Replay]:
    """Return the problems of ``count`` folds, each predicted by a fit to the others."""
    dataset = load_measurements(shipped_data.measurements(), "the bundled measurements")
    found = []
    for split in folds(dataset, 5)[:count]:
        train = dataset.subset(split.train)
        scorer = Scorer(fit(pack(train), make_recipe("deep")).network, train.domain().templates)
        tested = [dataset.examples[i] for i in split.test]
        found += [problem(example, scorer) for example in tested if judgeable(example)]
    return found


def problem(example: Examples, scorer: Scorer) -> Replay:
    """Return a problem with its predictions."""
    ran = np.flatnonzero(example.ran)
    columns = example.columns.take(ran)
    predicted = scorer.predict_us(example.shape, example.hardware, columns)
    return Replay(example, columns, example.runtime_us[ran], example.is_vendor[ran], predicted, {})


def replayed(problems: list[Replay], noise: Noise) -> list[tuple[object, ...]]:
    """Return a row of figures after each of ``ROUNDS``."""
    generator = np.random.default_rng(0)
    predicted, rows = [p.predicted_us for p in problems], []
    for each in problems:
        each.revealed.clear()
    for number in range(1, max(ROUNDS) + 1):
        for each, times in zip(problems, predicted, strict=True):
            each.reveal(times, noise, generator)
        predicted = corrected(problems, noise)
        if number in ROUNDS:
            rows.append(row(described(noise), number, problems, predicted, measured_alone(problems)))
    return rows


def corrected(problems: list[Replay], noise: Noise) -> list[Floats]:
    """Return the corrected predictions of all problems."""
    pairs = [(each.measured(noise), each.predicted_us[sorted(each.revealed)]) for each in problems]
    concealed = unexplained_noise(pairs)
    found = []
    for each, (measured, predicted) in zip(problems, pairs, strict=True):
        offsets = offsets_of(measured, predicted, concealed)
        found.append(each.predicted_us if offsets is None else each.predicted_us * np.exp(offsets.of(each.columns)))
    return found


def measured_alone(problems: list[Replay]) -> float:
    """Return the regret of the fastest measured config, whatever the model says."""
    picks = [min(each.revealed, key=lambda config: np.median(each.revealed[config])) for each in problems]
    ratios = [each.runtime_us[pick] / each.runtime_us.min() for each, pick in zip(problems, picks, strict=True)]
    return float(np.exp(np.mean(np.log(ratios))))


def row(
    name: str, rounds: int, problems: list[Replay], predicted: list[Floats], alone: float | None
) -> tuple[object, ...]:
    """Return the cells of ``HEADER``."""
    found = np.array([regrets(p.runtime_us, times, KS) for p, times in zip(problems, predicted, strict=True)])
    means = [f"{mean:.4f}" for mean in np.exp(np.log(found).mean(0))]
    return name, rounds, *means, f"{found[:, 0].max():.2f}", "-" if alone is None else f"{alone:.4f}"


def described(noise: Noise) -> str:
    """Describe the noise in words."""
    concealed = "" if noise.real <= noise.admitted else f", said to be {noise.admitted:.1%}"
    return f"{noise.real:.1%} noise{concealed}"


if __name__ == "__main__":
    sys.exit(main())
