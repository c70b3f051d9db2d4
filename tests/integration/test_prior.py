"""What was measured, weighed against what is predicted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diode_integration.decide.ranking import Ranking
from diode_integration.decide.weighing import _LEAST_SPREAD, _SPREAD_IF_UNKNOWN, expected_of, posterior, repeat_error
from diode_store.records import TimingMethod
from diode_trainer.card import Calibration
from diode_trainer.policy import Spread


def mixed(logs: list[float], predicted: list[float], error: float = 0.01, spread: float = 0.05) -> list[float]:
    """Return the posterior means of kernels that are measured and predicted equally well."""
    n = len(logs)
    found = posterior(np.array(logs), np.full(n, error), np.array(predicted), np.full(n, spread))
    return [float(value) for value in found]


def test_a_near_tie_goes_to_the_prediction() -> None:
    """Of two that measure within noise, the one that is predicted clearly faster wins."""
    found = mixed([2.000, 2.001], [2.10, 2.00])
    assert found[1] < found[0]


def test_a_clear_difference_is_the_clocks() -> None:
    """No prediction turns a difference of several standard errors."""
    found = mixed([2.00, 2.05], [2.20, 2.00])
    assert found[0] < found[1]


def test_a_shift_of_all_predictions_changes_nothing() -> None:
    """A model that is 30% off for all kernels of a problem still tells them apart."""
    assert mixed([2.0, 2.01], [2.1, 2.0]) == pytest.approx(mixed([2.0, 2.01], [2.4, 2.3]))


def test_the_formula() -> None:
    """Means are weighted by precision: with equal ones the posterior lies half way."""
    assert mixed([0.0, 0.2], [0.2, 0.0], error=0.1, spread=0.1) == pytest.approx([0.1, 0.1])


def test_what_is_not_predicted_stands_as_measured() -> None:
    """A kernel that the model does not know keeps its time; one prediction alone says nothing."""
    found = mixed([2.0, 2.01, 1.9], [2.1, 2.0, math.nan])
    assert found[2] == 1.9
    assert found[1] != 2.01
    assert mixed([2.0, 2.01], [2.1, math.nan]) == [2.0, 2.01]


def ranking(spread: Spread | None) -> Ranking:
    """Return a ranking of three candidates, the last a vendor's kernel."""
    nobody: object = None
    return Ranking(nobody, nobody, np.array([10.0, 11.0, 12.0]), np.array([False, False, True]), spread=spread)  # type: ignore[arg-type]


def test_the_spread_is_the_members_as_calibrated() -> None:
    """Members' deviation times the calibration's factor, a vendor's by its own; none is surer than 2%."""
    logs = np.log(np.array([[10.0, 11.0, 10.0], [12.0, 11.0, 14.0]], dtype=np.float32))
    calibration = Calibration(0.5, 2.0, 0.0, 1.0, 0.01, 100)
    known = ranking(Spread(np.arange(3), logs, calibration))
    deviation = logs.std(0, ddof=1)
    found = [expected_of(known, index).spread for index in range(3)]
    assert found == pytest.approx([0.5 * deviation[0], _LEAST_SPREAD, 2.0 * deviation[2]])
    assert [expected_of(known, index).us for index in range(3)] == [10.0, 11.0, 12.0]


def test_without_a_calibration_the_spread_is_wide() -> None:
    """A model of one member, or of another device, moves a tie by little."""
    logs = np.zeros((2, 1), dtype=np.float32)
    for spread in (None, Spread(np.arange(1), logs, None)):
        assert expected_of(ranking(spread), 0).spread == _SPREAD_IF_UNKNOWN


def test_a_clock_that_times_launches_counts_for_less() -> None:
    """The error from run to run is that of the method, as the views take it."""
    graph = TimingMethod("median", flush_l2=True, launch_hidden=True, regime="graph")
    assert 0 < repeat_error(5.0, graph) < repeat_error(5.0, TimingMethod())
