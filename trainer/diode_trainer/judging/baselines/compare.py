"""Judge all baselines on the test problems of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from diode_trainer.judging.baselines.contest import Contest, LeftOutError
from diode_trainer.judging.baselines.cover import config_cover
from diode_trainer.judging.baselines.fixed import (
    RANDOM_DRAWS,
    default_list_regrets,
    fold_ranking,
    random_regrets,
    vendor_only,
)
from diode_trainer.judging.baselines.heuristics import nv_matmul_heuristics
from diode_trainer.judging.baselines.nearest import nearest_problem
from diode_trainer.judging.baselines.rivals import label, rivals_predictions
from diode_trainer.judging.baselines.trees import boosted_trees
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.metrics import KS, Report, judgeable, report
from diode_trainer.scoring import Prediction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.data.splits import Fold
    from diode_trainer.judging.baselines.contest import Floats, Ranking

_RANKINGS: dict[str, Ranking] = {
    "config_cover": config_cover,
    "nearest_problem": nearest_problem,
    "fold_ranking": fold_ranking,
    "nv_matmul_heuristics": nv_matmul_heuristics,
}
STEPS_A_COMPARISON = len(_RANKINGS) + 1
"""Limit on the steps that ``compare`` reports per fold."""
STEPS_A_FOLD = STEPS_A_COMPARISON + 1
"""Limit on the steps that ``forecast`` and ``compare`` report per fold."""


@dataclass(frozen=True)
class Baselines:
    """Results of the baselines on one set of folds."""

    reports: dict[str, Report] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Reasons why baselines could not be judged, by name."""
    regrets: dict[str, Floats] = field(default_factory=dict, compare=False, repr=False)
    """Regret of each of the m judged problems, shape (m, len(KS)), in the order of the folds' test problems. Random
    rankings have the geometric mean of their draws. A problem without an answer of the baseline has NaN.
    """


@dataclass(frozen=True, eq=False)
class Forecasts:
    """Times that some baselines predict, with or without vendor kernels."""

    predictions: Mapping[str, Sequence[Prediction]] = field(default_factory=dict)
    """Predictions for each of the folds' test problems, in their order; NaN if the baseline has no answer."""
    skipped: Mapping[str, str] = field(default_factory=dict)


NOT_FITTED = Forecasts(skipped={"boosted_trees": "fitting them takes a minute; `diode evaluate` does"})
"""Value to use without ``forecast``."""

_LEFT_OUT = "--quick-baselines asks for none that takes minutes"
QUICK = Forecasts(skipped=dict.fromkeys(("boosted_trees", "config_cover", "nv_matmul_heuristics"), _LEFT_OUT))
"""Forecasts without the slow baselines."""


def forecast(
    dataset: ExampleSet,
    folds: Sequence[Fold],
    *,
    rivals: Sequence[TimingModel] = (),
    on_step: Callable[[], None] = lambda: None,
) -> Forecasts:
    """Fit the baselines that predict times, and get their predictions.

    Args:
        dataset: examples.
        folds: folds of their indices.
        rivals: models to beat, each on the problems outside its training data.
        on_step: called after each fold.
    """
    predictions: dict[str, Sequence[Prediction]] = {}
    skipped = {}
    try:
        times = boosted_trees(dataset, folds, on_step)
        predictions["boosted_trees"] = [Prediction.without_members(each) for each in times]
    except LeftOutError as reason:
        skipped["boosted_trees"] = str(reason)
    tested = [dataset.examples[i] for fold in folds for i in fold.test]
    for rival in rivals:
        try:
            predictions[label(rival)] = rivals_predictions(rival, tested)
        except LeftOutError as reason:
            skipped[label(rival)] = str(reason)
    return Forecasts(predictions, skipped)


def compare(
    dataset: ExampleSet,
    folds: Sequence[Fold],
    forecasts: Forecasts | None = None,
    *,
    vendor: bool = True,
    on_step: Callable[[], None] = lambda: None,
) -> Baselines:
    """Judge every baseline on the test problems of ``folds``.

    Args:
        dataset: examples.
        folds: folds of their indices.
        forecasts: result of ``forecast`` for the same folds; without it those baselines are not judged.
        vendor: True if vendor kernels count.
        on_step: called after each baseline and fold.
    """
    contest, found = Contest(dataset, folds, vendor), Baselines()
    judging = _Judging(contest, found)
    judging.add("inductor_default", partial(default_list_regrets, contest))
    rankings = {"vendor_only": vendor_only, **_RANKINGS} if vendor else _RANKINGS
    left_out = forecasts.skipped if forecasts is not None else {}
    for name, ranking in rankings.items():
        if name in left_out:
            continue
        judging.add(name, partial(contest.judge, ranking, on_step))
    if forecasts is not None:
        found.skipped.update(forecasts.skipped)
        for name, predictions in forecasts.predictions.items():
            judging.add_predictions(name, predictions)
    judging.add_random()
    return found


class _Judging:
    """Collects the results of baselines."""

    def __init__(self, contest: Contest, found: Baselines) -> None:
        self.contest = contest
        self.found = found
        self.tie = contest.ties()

    def add(self, name: str, judge: Callable[[], Floats]) -> None:
        """Add a baseline by its regrets."""
        try:
            rows = judge()
        except LeftOutError as reason:
            self.found.skipped[name] = str(reason)
            return
        known = np.isfinite(rows[:, 0])
        if not known.any():
            self.found.skipped[name] = "it has no answer for any of these problems"
            return
        self.found.regrets[name] = rows
        self.found.reports[name] = report(rows[known], self.tie[known])

    def add_predictions(self, name: str, predictions: Sequence[Prediction]) -> None:
        """Add a baseline by its predictions for the folds' test problems."""
        contest = self.contest
        tested = [contest.dataset.examples[i] for fold in contest.folds for i in fold.test]
        judged = [(e, p) for e, p in zip(tested, predictions, strict=True) if judgeable(e, vendor=contest.vendor)]
        known = np.array([not np.isnan(prediction.runtime_us).any() for _, prediction in judged])
        answers = [pair for pair, answered in zip(judged, known, strict=True) if answered]
        if not answers:
            self.found.skipped[name] = "it has no answer for any of these problems"
            return
        judgements = judge_problems(*zip(*answers, strict=True), vendor=contest.vendor)
        rows = np.full((len(judged), len(KS)), np.nan)
        rows[known] = [[*judgement.regret.values()] for judgement in judgements]
        self.found.regrets[name] = rows
        self.found.reports[name] = summarise(judgements)

    def add_random(self) -> None:
        """Add random rankings."""
        draws = random_regrets(self.contest)
        tie = np.repeat(self.tie, RANDOM_DRAWS)
        self.found.reports["random"] = report(draws.reshape(-1, len(KS)), tie, problems=len(self.tie))
        self.found.regrets["random"] = np.exp(np.log(draws).mean(1))
