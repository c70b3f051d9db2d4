"""Baselines with one order for all problems: vendor kernels, chance, and Inductor's DEFAULT list."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from diode_store.devices.descriptor import describe
from diode_trainer.judging.baselines.contest import LeftOutError, config_keys
from diode_trainer.judging.baselines.default_lists import default_lists
from diode_trainer.judging.metrics import KS, eligible
from diode_trainer.op_domain import has_own_domain

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
    """Rank vendor kernels by their times on the training problems, and never try other kernels.

    Raises:
        LeftOutError: no problem has a vendor kernel.
    """
    if not any(example.is_vendor.any() for example in test):
        raise LeftOutError("no problem has a vendor kernel")
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
    So have all problems of an op with a list of its own, if the data has too little of that list.

    Raises:
        LeftOutError: the data has too little of all lists.
    """
    coverage, rows = defaultdict[str, list[float]](list), []
    kinds = []
    for example in contest.tested():
        memory = describe(example.hardware).shared_memory_per_block_bytes
        lists = default_lists(example.shape, memory)
        keys = [key[: len(key) - 1] for key in config_keys(example)]
        in_list = np.array([key[1:] in lists.get(key[0], ()) for key in keys])
        held = len({key[1:] for key, is_held in zip(keys, in_list, strict=True) if is_held})
        kinds.append(example.shape.op if has_own_domain(example.shape.op) else "")
        coverage[kinds[-1]].append(held / max(1, *map(len, lists.values())))
        tried = eligible(example, vendor=contest.vendor) & (in_list | example.is_vendor)
        best = example.runtime_us[tried].min() / contest.runtimes(example).min() if tried.any() else np.nan
        rows.append(np.full(len(KS), best))
    shares = {kind: float(np.mean(share)) for kind, share in coverage.items()}
    if all(share < _LEAST_COVERAGE for share in shares.values()):
        share = float(np.mean([share for of_kind in coverage.values() for share in of_kind])) if coverage else 0.0
        raise LeftOutError(f"the data holds {share:.0%} of its configs, {_LEAST_COVERAGE:.0%} needed")
    is_held = np.array([shares[kind] >= _LEAST_COVERAGE for kind in kinds])
    return np.where(is_held[:, None], rows, np.nan)
