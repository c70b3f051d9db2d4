"""What a model has to beat: rankings of configs that need no model.

Each is judged like a model, on the problems of each fold, and may learn from the fold's other problems.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from diode_store.inductor_default import TEMPLATES, default_configs
from diode_trainer.metrics import KS, Report, eligible, judgeable, regrets, report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import Examples, ExampleSet, Fold

    Floats = NDArray[np.float64]
    ConfigKey = tuple[Any, ...]

RANDOM_DRAWS = 100
"""Random rankings of each problem."""
_PRIOR_WEIGHT = 3
"""How many problems' worth of average a config starts with, so that one lucky problem does not put it first."""
_LEAST_COVERAGE = 0.8
"""Share of the DEFAULT list that must be in the data for the list to be judged."""


@dataclass(frozen=True)
class Baselines:
    """How the baselines do on one set of folds."""

    reports: dict[str, Report] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Those that could not be judged, and why."""


class _Ranking(Protocol):
    def __call__(self, train: Sequence[Examples], test: Sequence[Examples], /) -> Iterable[Floats]:
        """Yield the scores of each test problem's configs, shape (n,), smallest first."""


def compare(
    dataset: ExampleSet, folds: Sequence[Fold], *, vendor: bool = True, previous: TimingModel | None = None
) -> Baselines:
    """Judge every baseline on the test problems of ``folds``.

    Args:
        dataset: the examples.
        folds: indices into them.
        vendor: whether the vendor's kernels count.
        previous: a model to beat; it should not have been trained on these problems.
    """
    found = Baselines()
    rankings: dict[str, _Ranking] = {"fold_ranking": lambda train, test: _fold_ranking(train, test, vendor=vendor)}
    if vendor:
        rankings = {"vendor_only": _vendor_only, **rankings}
    for name, ranking in rankings.items():
        found.reports[name] = report(_judge(dataset, folds, ranking, vendor=vendor))
    random = _random(dataset, folds, vendor=vendor)
    found.reports["random"] = report(random, problems=len(random) // RANDOM_DRAWS)
    _add_default_list(found, dataset, folds, vendor=vendor)
    _add_previous(found, dataset, folds, previous, vendor=vendor)
    return found


def _judge(dataset: ExampleSet, folds: Sequence[Fold], ranking: _Ranking, *, vendor: bool) -> Floats:
    """Return regret@k of every test problem that can be judged, shape (m, len(KS))."""
    rows = []
    for fold in folds:
        train = [dataset.examples[i] for i in fold.train]
        test = [example for i in fold.test if judgeable(example := dataset.examples[i], vendor=vendor)]
        for example, score in zip(test, ranking(train, test), strict=True):
            counted = eligible(example, vendor=vendor)
            rows.append(regrets(example.runtime_us[counted], score[counted]))
    return np.array(rows).reshape(-1, len(KS))


def _vendor_only(train: Sequence[Examples], test: Sequence[Examples], /) -> Iterable[Floats]:
    """Rank the vendor's kernels as they did on the training problems, and never try another."""
    for example, score in zip(test, _fold_ranking(train, test, vendor=True), strict=True):
        yield np.where(example.is_vendor, score, np.inf)


def _fold_ranking(train: Sequence[Examples], test: Sequence[Examples], /, *, vendor: bool) -> Iterable[Floats]:
    """Rank configs by how far behind the best they were, on average over the training problems where they ran.

    A config that is not in the training problems is never tried.
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


def _random(dataset: ExampleSet, folds: Sequence[Fold], *, vendor: bool) -> Floats:
    """Return regret@k of ``RANDOM_DRAWS`` random rankings of each test problem, shape (m * draws, len(KS))."""
    generator = np.random.default_rng(0)
    last = np.asarray(KS) - 1
    rows = []
    for fold in folds:
        for example in (dataset.examples[i] for i in fold.test):
            if not judgeable(example, vendor=vendor):
                continue
            runtime = example.runtime_us[eligible(example, vendor=vendor)]
            draws = generator.permuted(np.tile(runtime, (RANDOM_DRAWS, 1)), axis=1)
            best_so_far = np.minimum.accumulate(draws, axis=1)
            rows.append(best_so_far[:, np.minimum(last, len(runtime) - 1)] / runtime.min())
    return np.concatenate(rows) if rows else np.empty((0, len(KS)))


def _add_default_list(found: Baselines, dataset: ExampleSet, folds: Sequence[Fold], *, vendor: bool) -> None:
    """Judge Inductor's DEFAULT search space, which benchmarks its whole list: regret is the same for every k."""
    name, coverage, rows = "inductor_default", [], []
    for fold in folds:
        for example in (dataset.examples[i] for i in fold.test):
            if not judgeable(example, vendor=vendor):
                continue
            listed = default_configs(example.shape)
            keys = [key[: len(key) - 1] for key in config_keys(example)]
            in_list = np.array([key[0] in TEMPLATES and key[1:] in listed for key in keys])
            coverage.append(len({key[1:] for key, held in zip(keys, in_list, strict=True) if held}) / len(listed))
            counted = eligible(example, vendor=vendor)
            tried = counted & (in_list | example.is_vendor)
            if tried.any():
                rows.append(np.full(len(KS), example.runtime_us[tried].min() / example.runtime_us[counted].min()))
    held = float(np.mean(coverage)) if coverage else 0.0
    if held < _LEAST_COVERAGE or not rows:
        found.skipped[name] = f"the data holds {held:.0%} of its configs, {_LEAST_COVERAGE:.0%} needed"
    else:
        found.reports[name] = report(np.array(rows))


def _add_previous(
    found: Baselines, dataset: ExampleSet, folds: Sequence[Fold], previous: TimingModel | None, *, vendor: bool
) -> None:
    if previous is None:
        return
    name = f"model:{previous.path.stem}"
    seen = sum(previous.was_trained_on(example.shape) for example in dataset)
    if seen:
        found.skipped[name] = f"it was trained on {seen} of these {len(dataset)} problems"
        return

    def ranking(_train: Sequence[Examples], test: Sequence[Examples], /) -> Iterable[Floats]:
        return (previous.predict_us(e.shape, e.hardware, e.columns, exact=True) for e in test)

    found.reports[name] = report(_judge(dataset, folds, ranking, vendor=vendor))


def config_keys(example: Examples) -> list[ConfigKey]:
    """Return what makes each config the same kernel on another problem: template, the numbers, TF32."""
    columns = example.columns
    numbers = (columns.block_m, columns.block_n, columns.block_k, columns.num_stages, columns.num_warps)
    templates = [columns.templates[i] for i in columns.template_index]
    rest = (columns.group_m.tolist(), columns.allow_tf32.tolist())
    return list(zip(templates, *(number.tolist() for number in numbers), zip(*rest, strict=True), strict=True))
