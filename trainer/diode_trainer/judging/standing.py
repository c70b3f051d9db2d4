"""Results of a model beside the baselines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_trainer.judging.as_compiled import predict_as_compiled
from diode_trainer.judging.baselines.compare import Baselines, Forecasts, compare
from diode_trainer.judging.baselines.rivals import label
from diode_trainer.judging.judgement import ProblemJudgement, judge_problems, summarise
from diode_trainer.judging.slices import slices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.data.splits import Fold
    from diode_trainer.judging.metrics import Report
    from diode_trainer.scoring import Prediction, Scorer


@dataclass(frozen=True)
class Standing:
    """Results of a model beside its baselines."""

    model: Report
    baselines: Baselines
    judgements: tuple[ProblemJudgement, ...] = field(default=(), compare=False, repr=False)
    """Judgements of the model by problem, in the order of the folds' test problems."""

    def to_plain(self) -> dict[str, Any]:
        """Return the results as JSON has them; ``baselines`` and ``slices`` hold the same figures."""
        plain = {**self.model.to_plain(), "baselines": {n: r.to_plain() for n, r in self.baselines.reports.items()}}
        if self.baselines.skipped:
            plain["skipped_baselines"] = dict(self.baselines.skipped)
        parts = slices(self.judgements).items() if self.judgements else ()
        plain["slices"] = {by: {part: report.to_plain() for part, report in of.items()} for by, of in parts}
        return plain

    def compared(self, rivals: Sequence[TimingModel]) -> dict[str, Any]:
        """Return regret@1 of the model and of each rival on common problems, by the rival's SHA-256, for a card."""
        own = np.array([judgement.regret[1] for judgement in self.judgements])
        found = {}
        for rival in rivals:
            regrets = self.baselines.regrets.get(label(rival))
            if regrets is not None and rival.trained_on:  # else its training data is unknown
                common = np.isfinite(regrets[:, 0])
                found[rival.sha256] = {
                    "name": rival.path.stem,
                    "problems": int(common.sum()),
                    "regret_at_1": float(np.exp(np.log(own[common]).mean())),
                    "its_regret_at_1": float(np.exp(np.log(regrets[common, 0]).mean())),
                }
        return found


def predict(model: Scorer | TimingModel, examples: Sequence[Examples]) -> list[Prediction]:
    """Return the predictions of all members for each problem's configs, without the skew that no compile knows."""
    return [predict_as_compiled(model, example, exact=True) for example in examples]


def standing(
    dataset: ExampleSet,
    splits: Sequence[Fold],
    predicted: Sequence[Prediction],
    forecasts: Forecasts | None = None,
    *,
    vendor: bool = True,
    on_step: Callable[[], None] = lambda: None,
) -> Standing:
    """Judge predictions of the test problems of ``splits``, in their order, beside the baselines.

    Args:
        dataset: examples.
        splits: folds of their indices.
        predicted: predictions for each test problem.
        forecasts: predictions of the baselines that predict times; without any these are not judged.
        vendor: True if vendor kernels count.
        on_step: called as the baselines are judged.

    Raises:
        DatasetError: no problem can be judged.
    """
    tested = [dataset.examples[i] for split in splits for i in split.test]
    judgements = judge_problems(tested, predicted, vendor=vendor)
    figures = summarise(judgements)
    return Standing(figures, compare(dataset, splits, forecasts, vendor=vendor, on_step=on_step), judgements)
