"""Train a model and judge it in Python, in the steps of `diode-train`.

    python examples/train_and_evaluate.py [--problems 60] [--epochs 10] [--output model.pt]

Learns from some of the bundled NVIDIA H200 measurements. For unseen problems it prints how much slower its choices
are than the fastest measured kernels, beside always taking the vendor kernel. This takes seconds on a CPU. A useful
model needs all problems and the recipe's own number of epochs (``diode-train``).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from diode_collectors.spool.spool import Spool
from diode_store.errors import DiodeError
from diode_store.system.resources import bundled_data_dir
from diode_store.wire.segments import read_segment
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE, Card
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.splits import folds
from diode_trainer.data.tensors import pack
from diode_trainer.features import FEATURE_VERSION
from diode_trainer.judging.metrics import judgeable, regrets
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import EpochReport, fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_trainer.data.dataset import Examples, ExampleSet


def main() -> int:
    """Load, fit, judge and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=60, help="number of bundled H200 problems to use")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output", type=Path, default=Path("matmul_model.pt"))
    options = parser.parse_args()
    try:
        dataset = bundled(options.problems)
        train(dataset, options)
    except DiodeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def bundled(problems: int) -> ExampleSet:
    """Return ``problems`` of the bundled H200 measurements, spread over all of them."""
    sealed = [path for path in Spool(bundled_data_dir()).sealed() if path.name.startswith("h200-")]
    measurements = [frame.measurement() for path in sealed for frame in read_segment(path)]
    some = measurements[:: max(1, len(measurements) // max(1, problems))][:problems]
    return load_measurements(some, "the bundled measurements")


def train(dataset: ExampleSet, options: argparse.Namespace) -> None:
    """Fit to four fifths of the problems, judge by the rest, and save the model."""
    split = folds(dataset, 5)[0]
    learned_from = dataset.subset(split.train)
    held_out = [example for example in dataset.subset(split.test) if judgeable(example)]
    print(f"{len(learned_from)} problems to learn from, {len(held_out)} to judge by")
    recipe = replace(make_recipe("deep"), epochs=options.epochs)
    fitted = fit(pack(learned_from), recipe, seed=options.seed, on_epoch=report)
    domain = learned_from.domain()
    scorer = Scorer(fitted.network, domain.templates)
    show("the model", held_out, [scorer.predict_us(e.shape, e.hardware, e.columns) for e in held_out])
    show("the vendor's kernels", held_out, [1.0 - e.is_vendor for e in held_out])
    card = Card(
        options.output.stem,
        MATMUL_PURPOSE,
        fitted.network.model_type,
        FEATURE_VERSION,
        domain,
        training={"epochs": fitted.epochs, "seed": options.seed},
        torch=torch.__version__,
    )
    artifact.save(options.output, fitted.network, card, trained_on=[example.shape for example in learned_from])
    print(f"saved {options.output}; `diode models show {options.output}` shows its card")


def show(name: str, problems: list[Examples], rankings: Sequence[NDArray[np.floating[Any]]]) -> None:
    """Print the cost of trying only the first config of each ranking."""
    found = [
        float(regrets(problem.runtime_us[problem.ran], ranking[problem.ran], (1,))[0])
        for problem, ranking in zip(problems, rankings, strict=True)
    ]
    mean = float(np.exp(np.mean(np.log(found))))
    print(f"{name}: {mean - 1:.1%} slower than the best measured, at worst {max(found):.2f} times as slow")


def report(epoch: EpochReport) -> None:
    """Print the losses of an epoch with validation."""
    if epoch.validation_loss is not None:
        print(f"epoch {epoch.epoch}: loss {epoch.training_loss:.3f}, on held-out problems {epoch.validation_loss:.3f}")


if __name__ == "__main__":
    sys.exit(main())
