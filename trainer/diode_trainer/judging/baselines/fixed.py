"""Baselines with one order for all problems: vendor kernels, chance, and Inductor's DEFAULT list."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from diode_store.candidates.default_space import TEMPLATES, default_configs
from diode_trainer.judging.baselines.contest import LeftOutError, config_keys
from diode_trainer.judging.metrics import KS, eligible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diode_trainer.data.dataset import Examples
    from diode_trainer.judging.baselines.contest import ConfigKey, Contest, Floats

RANDOM_DRAWS = 100
"""Number of random rankings of each problem."""
_PRIOR_WEIGHT = 3
"""Weight in problems of the prior average of a config, so that one lucky problem does not put it first."""
_LEAST_COVERAGE = 0.8
"""Smallest share of the DEFAULT list in the data for the list to be judged."""


def vendor_only(train: Sequence[Examples], test: Sequence[Examples], /, *, vendor: bool) -> Iterable[Floats]:
    """Rank vendor kernels by their times on the training problems, and never try other kernels."""
    for example, score in zip(test, fold_ranking(train, test, vendor=vendor), strict=True):
        yield np.where(example.is_vendor, score, np.inf)


def fold_ranking(train: Sequence[Examples], test: Sequence[Examples], /, *, vendor: bool) -> Iterable[Floats]:
    """Rank configs by their mean distance to the best over the training problems on which they ran.

    Configs outside the training problems are never tried.
    """
    behind: dict[ConfigKey, list[float]] = defaultdict(list)
    for example in train:
        counted = eligible(example, vendor=vendor)
        if counted.any():
            logs = np.log(example.runtime_us / example.runtime_us[counted].min())
            for key, log, counts in zip(config_keys(example), logs, counted, strict=True):
                if counts:
                    behind[key].append(float(log))
    prior = float(np.mean([np.mean(logs) for logs in behind.values()])) if behind else 0.0
    mean = {k: (sum(logs) + _PRIOR_WEIGHT * prior) / (len(logs) + _PRIOR_WEIGHT) for k, logs in behind.items()}
    for example in test:
        yield np.array([mean.get(key, np.inf) for key in config_keys(example)])


def random_regrets(contest: Contest) -> Floats:
    """Return regret@k of ``RANDOM_DRAWS`` random rankings of each test problem, shape (m, draws, len(KS))."""
    generator = np.random.default_rng(0)
    last = np.asarray(KS) - 1
    rows = []
    for example in contest.tested():
        runtime = contest.runtimes(example)
        draws = generator.permuted(np.tile(runtime, (RANDOM_DRAWS, 1)), axis=1)
        best_so_far = np.minimum.accumulate(draws, axis=1)
        rows.append(best_so_far[:, np.minimum(last, len(runtime) - 1)] / runtime.min())
    return np.array(rows).reshape(-1, RANDOM_DRAWS, len(KS))


def default_list_regrets(contest: Contest) -> Floats:
    """Return regret@k of Inductor's DEFAULT search space, shape (m, len(KS)).

    Inductor benchmarks the whole list, so regret is equal for every k. Problems without a config of the list have NaN.

    Raises:
        LeftOutError: the data has too little of the list.
    """
    coverage, rows = [], []
    for example in contest.tested():
        listed = default_configs(example.shape)
        keys = [key[: len(key) - 1] for key in config_keys(example)]
        in_list = np.array([key[0] in TEMPLATES and key[1:] in listed for key in keys])
        coverage.append(len({key[1:] for key, held in zip(keys, in_list, strict=True) if held}) / len(listed))
        tried = eligible(example, vendor=contest.vendor) & (in_list | example.is_vendor)
        best = example.runtime_us[tried].min() / contest.runtimes(example).min() if tried.any() else np.nan
        rows.append(np.full(len(KS), best))
    held = float(np.mean(coverage)) if coverage else 0.0
    if held < _LEAST_COVERAGE:
        raise LeftOutError(f"the data holds {held:.0%} of its configs, {_LEAST_COVERAGE:.0%} needed")
    return np.array(rows)
