"""The expected time of a grouped product is the mean over the routings that a compile cannot tell apart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from saved_models import small_network
from synthetic import H200, MM
from synthetic_ops import columns_of, example_of, shape_of

from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.splits import folds
from diode_trainer.judging.as_compiled import predict_as_compiled
from diode_trainer.routing import SKEWS, predict_unrouted, routings, unrouted
from diode_trainer.scoring import Prediction, Scorer

if TYPE_CHECKING:
    from diode_store.records import ProblemShape

GROUPED = shape_of("grouped_mm", 100, 512, 1024)
SKEWED = shape_of("grouped_mm", 100, 512, 1024, skew=1.0)
COLUMNS = columns_of("grouped_mm")
SCORER = Scorer(small_network())


def ask(shape: ProblemShape) -> Prediction:
    """Return a model's prediction for one routing."""
    return SCORER.predict(shape, H200, COLUMNS)


def test_the_weights_of_the_routings_add_up() -> None:
    """The mean over ``SKEWS`` is a mean."""
    assert sum(weight for _, weight in SKEWS) == 1
    assert [shape.dimension("skew", 0) for shape, _ in routings(GROUPED)] == [skew for skew, _ in SKEWS]


@pytest.mark.parametrize(
    "shape",
    [MM, SKEWED, shape_of("scaled_mm", 64, 64, 64), shape_of("grouped_mm", 64, 64, 64, form="3d3d", total=0)],
    ids=["mm", "known skew", "no groups", "batch"],
)
def test_other_problems_are_asked_about_once(shape: ProblemShape) -> None:
    """A product without offsets, or with a known skew, is only itself."""
    assert routings(shape) == ((shape, 1.0),)


def test_expected_times_are_means() -> None:
    """Each member's time is the mean of its times for the routings, and the prediction the members' geometric mean."""
    equal, skewed, expected = ask(GROUPED), ask(SKEWED), predict_unrouted(ask, GROUPED)
    assert not np.array_equal(equal.runtime_us, skewed.runtime_us)
    mean = (np.exp(equal.member_logs) + np.exp(skewed.member_logs)) / 2
    np.testing.assert_allclose(np.exp(expected.member_logs), mean, rtol=1e-5)
    finalists = expected.finalists
    np.testing.assert_allclose(expected.runtime_us[finalists], np.exp(np.log(mean).mean(0)), rtol=1e-5)
    assert expected.runtime_us[finalists].argmin() == expected.member_logs.mean(0).argmin()


def test_members_score_all_of_a_grouped_list() -> None:
    """So the routings have the same finalists, however long the list is."""
    predicted = SCORER.predict(GROUPED, H200, COLUMNS.take(np.arange(400) % len(COLUMNS)))
    assert len(predicted.finalists) == np.isfinite(predicted.runtime_us).sum() > 300


def test_different_finalists_leave_no_members() -> None:
    """Their spread would be of different lists."""

    def one(shape: ProblemShape) -> Prediction:
        finalists = np.array([0 if shape == GROUPED else 1])
        return Prediction(np.array([1.0, 3.0]), finalists, np.zeros((2, 1), dtype=np.float32))

    found = predict_unrouted(one, GROUPED)
    assert not len(found.finalists)
    np.testing.assert_array_equal(found.runtime_us, [1.0, 3.0])


def test_a_model_without_members_has_expected_times() -> None:
    """The mean of its times is all that there is."""
    times = {GROUPED: np.array([1.0, 4.0]), SKEWED: np.array([3.0, np.inf])}
    found = predict_unrouted(lambda shape: Prediction.without_members(times[shape]), GROUPED)
    np.testing.assert_array_equal(found.runtime_us, [2.0, np.inf])


def test_a_judge_does_not_tell_the_skew() -> None:
    """A measured problem is predicted as the hook would, for any skew of the measurement."""
    generator = np.random.default_rng(0)
    first, second = (predict_as_compiled(SCORER, example_of(shape, generator)) for shape in (GROUPED, SKEWED))
    np.testing.assert_array_equal(first.runtime_us, second.runtime_us)
    assert unrouted(SKEWED) == GROUPED
    assert unrouted(MM) is MM


def test_the_routings_of_a_problem_stay_in_one_fold() -> None:
    """Else a fit would be judged by a problem of which it has seen another routing."""
    generator = np.random.default_rng(0)
    shapes = [replace(shape, n=64 * size) for size in range(1, 11) for shape in (GROUPED, SKEWED)]
    dataset = ExampleSet(tuple(example_of(shape, generator) for shape in shapes))
    for fold in folds(dataset, 5):
        held, learned = ({unrouted(dataset.examples[i].shape) for i in part} for part in (fold.test, fold.train))
        assert len(held) == 2
        assert not held & learned
