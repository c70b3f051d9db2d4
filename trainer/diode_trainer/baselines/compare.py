"""Judges every baseline on the problems that a model is judged by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from diode_trainer.baselines.contest import Contest, LeftOutError
from diode_trainer.baselines.fixed import RANDOM_DRAWS, default_list_regrets, fold_ranking, random_regrets, vendor_only
from diode_trainer.judgement import judge_problems, summarise
from diode_trainer.metrics import KS, Report, report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_trainer.artifact import TimingModel
    from diode_trainer.baselines.contest import Floats, Ranking
    from diode_trainer.data.dataset import ExampleSet, Fold

_RANKINGS: dict[str, Ranking] = {"vendor_only": vendor_only, "fold_ranking": fold_ranking}


@dataclass(frozen=True)
class Baselines:
    """How the baselines do on one set of folds."""

    reports: dict[str, Report] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Those that could not be judged, and why."""
    regrets: dict[str, Floats] = field(default_factory=dict, compare=False, repr=False)
    """Regret of each of the m judged problems, shape (m, len(KS)), in the order of the folds' test problems, as the
    model's judgements are. Of random rankings the geometric mean of the draws; NaN where a baseline has no answer."""


def compare(
    dataset: ExampleSet,
    folds: Sequence[Fold],
    *,
    vendor: bool = True,
    previous: TimingModel | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Baselines:
    """Judge every baseline on the test problems of ``folds``.

    Args:
        dataset: the examples.
        folds: indices into them.
        vendor: whether the vendor's kernels count.
        previous: a model to beat; it should not have been trained on these problems.
        on_step: called now and then, ``steps(len(folds))`` times at most.
    """
    contest, found = Contest(dataset, folds, vendor), Baselines()
    tie = contest.ties()
    for name, ranking in _RANKINGS.items():
        if name != "vendor_only" or vendor:
            found.regrets[name] = contest.judge(ranking, on_step)
            found.reports[name] = report(found.regrets[name], tie)
    draws = random_regrets(contest)
    found.reports["random"] = report(draws.reshape(-1, len(KS)), np.repeat(tie, RANDOM_DRAWS), problems=len(tie))
    found.regrets["random"] = np.exp(np.log(draws).mean(1))
    try:
        rows = default_list_regrets(contest)
    except LeftOutError as reason:
        found.skipped["inductor_default"] = str(reason)
    else:
        found.regrets["inductor_default"] = rows
        known = np.isfinite(rows[:, 0])
        found.reports["inductor_default"] = report(rows[known], tie[known])
    _add_previous(found, contest, previous)
    return found


def _add_previous(found: Baselines, contest: Contest, previous: TimingModel | None) -> None:
    if previous is None:
        return
    name = f"model:{previous.path.stem}"
    seen = sum(previous.was_trained_on(example.shape) for example in contest.dataset)
    if seen:
        found.skipped[name] = f"it was trained on {seen} of these {len(contest.dataset)} problems"
        return
    tested = contest.tested()
    predicted = [previous.predict_us(example.shape, example.hardware, example.columns) for example in tested]
    judgements = judge_problems(tested, predicted, vendor=contest.vendor)
    found.regrets[name] = np.array([[*judgement.regret.values()] for judgement in judgements])
    found.reports[name] = summarise(judgements)
