"""Cross-validation: every problem judged once, and the fit on all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from synthetic import QUICK, learnable

from diode_store.errors import DatasetError
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.held_out import Split
from diode_trainer.jobs.workflow import Evaluation, Judging, fit_and_judge, training_facts

if TYPE_CHECKING:
    from diode_trainer.training.recipe import Recipe
    from diode_trainer.training.train import EpochReport


def cross_validate(dataset: ExampleSet, recipe: Recipe, count: int, *, seed: int = 42) -> Evaluation:
    """Return how a recipe does on problems that it has not seen."""
    evaluation = fit_and_judge(dataset, recipe, count, seed=seed).evaluation
    assert evaluation is not None
    return evaluation


def test_cross_validation_judges_every_problem_once() -> None:
    """Five folds pool all problems; a single one is a fifth of them."""
    dataset = learnable(25)
    pooled = cross_validate(dataset, replace(QUICK, epochs=2), 5, seed=0)
    single = cross_validate(dataset, replace(QUICK, epochs=2), 1, seed=0)
    assert (pooled.folds, pooled.all_choices.model.problems, len(pooled.fits)) == (5, 25, 5)
    assert (single.folds, single.all_choices.model.problems, len(single.fits)) == (1, 5, 1)
    assert pooled.triton_only is not None
    assert pooled.all_choices.baselines.reports["random"].problems == 25


def test_families_are_held_out_whole() -> None:
    """With families held out, no fit has seen a problem of the families that it is judged by."""
    named = [replace(e, family=f"family {i % 3}") for i, e in enumerate(learnable(36))]
    dataset = ExampleSet(tuple(named))
    recipe, judging = replace(QUICK, epochs=2), Judging(Split.FAMILY)
    found = fit_and_judge(dataset, recipe, 3, judging=judging).evaluation
    assert found is not None
    sides = [({named[i].family for i in split.train}, {named[i].family for i in split.test}) for split in found.splits]
    assert [(len(train), len(test), train & test) for train, test in sides] == [(2, 1, set())] * 3
    assert found.to_plain()["split"] == "family"
    with pytest.raises(DatasetError, match=r"3 families \(family 0, family 1, family 2\) cannot be split into 5 folds"):
        fit_and_judge(dataset, recipe, 5, judging=judging)


def test_cross_validation_is_reproducible() -> None:
    """Fits side by side give what they would give one after the other."""
    dataset = learnable(20)
    one, other = (cross_validate(dataset, replace(QUICK, epochs=2), 2, seed=5) for _ in range(2))
    assert one.to_plain() == other.to_plain()


def test_a_trained_ranking_beats_the_simple_ones() -> None:
    """On learnable problems the model's regret is below that of a fixed ranking and of chance."""
    found = cross_validate(learnable(60), replace(QUICK, epochs=40), 3, seed=0).all_choices
    assert found.model.regret[1].geomean < found.baselines.reports["fold_ranking"].regret[1].geomean
    assert found.model.regret[1].geomean < found.baselines.reports["random"].regret[1].geomean
    assert found.model.regret[1].geomean < 1.1


def test_progress_counts_all_epochs() -> None:
    """The callback is called once for each epoch of each fold's fit, of the last one and of the scout's."""
    calls: list[tuple[str, int]] = []
    fit_and_judge(
        learnable(20), replace(QUICK, epochs=3), 2, on_epoch=lambda fit, report: calls.append((fit, report.epoch))
    )
    of_fits = [(fit, epoch) for fit in ("final", "fold 1", "fold 2") for epoch in (1, 2, 3)]
    assert sorted(calls) == [*of_fits, *(("scout", epoch) for epoch in range(1, 13))]


def test_interrupted_fits_stop() -> None:
    """When one fit fails, or somebody presses Ctrl-C, the others do not go on to their end."""
    calls: list[None] = []

    def interrupt(_fit: str, _report: EpochReport) -> None:
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_and_judge(learnable(20), replace(QUICK, epochs=500), 3, on_epoch=interrupt)
    assert len(calls) < 100


def test_the_last_fit_does_not_depend_on_the_folds() -> None:
    """The model that is kept is fitted on everything, however it is judged."""
    dataset, recipe = learnable(20), replace(QUICK, epochs=2)
    alone, beside = (fit_and_judge(dataset, recipe, count, seed=3).fit.network.state_dict() for count in (0, 3))
    assert all(torch.equal(value, beside[name]) for name, value in alone.items())
    assert fit_and_judge(dataset, recipe, 0).evaluation is None


def test_problems_without_triton_have_one_table() -> None:
    """Where no problem has two templates, there is no Triton-only figure."""
    dataset = learnable(15)
    keep = np.array([0, 1])
    few = ExampleSet(
        tuple(
            replace(
                e,
                columns=e.columns.take(keep),
                runtime_us=np.array([2.0, 1.0]),
                is_vendor=np.array([True, False]),
                is_estimate=np.zeros(2, bool),
            )
            for e in dataset
        )
    )
    assert cross_validate(few, replace(QUICK, epochs=1), 1).triton_only is None


def test_facts_of_a_fit() -> None:
    """A card says how a model was fitted."""
    recipe = replace(QUICK, epochs=2)
    outcome = fit_and_judge(learnable(12), recipe, 0, seed=9)
    facts = training_facts(recipe, outcome.fit, seed=9, seconds=outcome.seconds)
    assert (facts["seed"], facts["members"], facts["hidden_layer_widths"], facts["epochs"]) == (9, 2, [16, 16], 2)
    assert outcome.seconds > 0
