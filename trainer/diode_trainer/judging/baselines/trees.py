"""Baseline of gradient-boosted trees on our features, fitted to each fold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diode_trainer.data.tensors import pack
from diode_trainer.features import roofline_us
from diode_trainer.judging.baselines.contest import LeftOutError
from diode_trainer.training.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.data.splits import Fold
    from diode_trainer.judging.baselines.contest import Floats

_MOST_ROWS = 2_000_000
"""Limit on timings; with more the trees would take longer than the model."""
_ROUNDS = 400
_PARAMETERS = {
    "objective": "regression",
    "learning_rate": 0.1,
    "num_leaves": 31,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbosity": -1,
}


def boosted_trees(dataset: ExampleSet, folds: Sequence[Fold], on_fold: Callable[[], None]) -> list[Floats]:
    """Return the times that trees predict for the folds' test problems, in order; inf if a config did not run.

    The target, and the weights of estimates and vendor kernels, are those of our models.

    Raises:
        LeftOutError: LightGBM is not installed, or there is nothing to learn from, or far too much.
    """
    try:
        import lightgbm
    except (ImportError, OSError) as error:
        missing = (
            "LightGBM is not installed" if isinstance(error, ImportError) else f"LightGBM cannot be used ({error})"
        )
        raise LeftOutError(f"{missing}; `pip install 'torch-diode[baselines]'`") from None
    if not all(len(fold.train) for fold in folds):
        raise LeftOutError("there are no other problems to learn from")
    if dataset.timings > _MOST_ROWS:
        raise LeftOutError(f"{dataset.timings:,} timings take too long; it is given {_MOST_ROWS:,} at most")
    rows = _Rows(dataset)

    # One fit at a time on all cores: LightGBM 4.7 crashed with fits in parallel threads of one process.
    found: list[Floats] = []
    for fold in folds:
        learned = np.concatenate([rows.of(i) for i in fold.train])
        data = lightgbm.Dataset(rows.features[learned], rows.target[learned], weight=rows.weight[learned])
        trees = lightgbm.train(_PARAMETERS, data, num_boost_round=_ROUNDS)
        asked = [rows.of(i) for i in fold.test]
        predicted = np.asarray(trees.predict(rows.features[np.concatenate(asked)]))
        ends = np.cumsum([len(of_problem) for of_problem in asked])
        parts = np.split(predicted, ends[:-1])
        found += [rows.times(i, times) for i, times in zip(fold.test, parts, strict=True)]
        on_fold()
    return found


class _Rows:
    """Configs that ran as rows of one table, problem by problem."""

    def __init__(self, dataset: ExampleSet) -> None:
        packed, recipe = pack(dataset), Recipe()
        self.examples: tuple[Examples, ...] = dataset.examples
        self.ends = packed.count.cumsum(0).tolist()
        self.features = np.concatenate([packed.problem[packed.problem_of].numpy(), packed.config.numpy()], axis=1)
        self.target = packed.target.numpy()
        self.weight = np.where(packed.estimate.numpy(), recipe.estimate_weight, 1.0)
        self.weight *= np.where(packed.vendor.numpy(), recipe.vendor_weight, 1.0)

    def of(self, problem: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """Return the rows of a problem."""
        return np.arange(self.ends[problem - 1] if problem else 0, self.ends[problem])

    def times(self, problem: int, predicted: Floats) -> Floats:
        """Return the times of all configs of a problem from the predictions for those that ran."""
        example = self.examples[problem]
        times = np.full(len(example), np.inf)
        times[example.ran] = np.exp(predicted) * roofline_us(example.shape, example.hardware)
        return times
