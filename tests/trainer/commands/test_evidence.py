"""What a training's report says of its folds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import learnable

from diode_trainer.card import Card
from diode_trainer.commands.evidence import of_training, reporting_steps
from diode_trainer.jobs.job import Trained
from diode_trainer.jobs.workflow import fit_and_judge, fold_scorer, predict_unseen
from diode_trainer.judging.calibration import calibrate_by_others, make_cases
from diode_trainer.report.evaluation.spread import Foreseen, foresee
from diode_trainer.training.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.jobs.workflow import TrainingResult

RECIPE = Recipe(hidden_layer_widths=(8,), members=3, epochs=3)


def foreseen(dataset: ExampleSet, result: TrainingResult, path: Path, folds: int) -> Foreseen:
    """Return what the report of a training foresees, after counting its steps."""
    card, steps = Card("mine", "matmul", "deep", 1, dataset.domain()), []
    evidence = of_training(Trained(card, path, result), dataset, on_step=lambda: steps.append(1))
    assert len(steps) == reporting_steps(folds)
    assert evidence.foreseen is not None
    return evidence.foreseen


@pytest.mark.long
def test_no_fold_is_judged_by_its_own_calibration(tmp_path: Path) -> None:
    """Of two folds, each is calibrated by the other."""
    dataset = learnable(90)
    result = fit_and_judge(dataset, RECIPE, 2)
    assert result.evaluation is not None
    fits, splits = result.evaluation.fits, result.evaluation.splits
    tested = [[dataset.examples[i] for i in split.test] for split in splits]
    cases = [
        make_cases(tested[i], predict_unseen(dataset, fits[i], splits[i]), dataset.domain()) for i in range(len(fits))
    ]
    first, second = calibrate_by_others(cases)
    expected = [
        foresee(fold_scorer(dataset, fits[i], splits[i]), tested[i], calibration=calibration)
        for i, calibration in enumerate((first, second))
    ]
    found = foreseen(dataset, result, tmp_path, 2)
    assert found.is_calibrated
    assert found.loss.tolist() == np.concatenate([part.loss for part in expected if part]).tolist()
    assert first != second


def test_too_few_problems_show_the_members_as_they_are(tmp_path: Path) -> None:
    """Where one fold cannot be calibrated by the others, none is: all points of a picture mean the same."""
    dataset = learnable(60)
    found = foreseen(dataset, fit_and_judge(dataset, RECIPE, 2), tmp_path, 2)
    assert (found.is_calibrated, len(found.loss)) == (False, 60)
