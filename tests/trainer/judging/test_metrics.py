from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_store.errors import DatasetError
from diode_trainer.judging.metrics import KS, Errors, Regret, Share, regrets, report

INF = math.inf
TIMES = st.lists(st.floats(0.1, 1e6), min_size=2, max_size=15)


def test_regret_by_hand() -> None:
    """Ranked 3rd, 1st, 2nd, 4th: one try costs 40/10, three or more find the best."""
    runtime = np.array([20.0, 10.0, 40.0, 80.0])
    score = np.array([3.0, 2.0, 1.0, 4.0])
    assert regrets(runtime, score).tolist() == [4.0, 1.0, 1.0, 1.0]
    assert regrets(runtime, score, (1, 2)).tolist() == [4.0, 1.0]


def test_regret_of_a_perfect_ranking() -> None:
    """Ranking by the true times costs nothing."""
    runtime = np.array([5.0, 3.0, 9.0])
    assert regrets(runtime, runtime).tolist() == [1.0, 1.0, 1.0, 1.0]


def test_ties_are_tried_in_the_configs_order() -> None:
    """Equal scores keep the order of the configs."""
    assert regrets(np.array([7.0, 14.0, 3.5]), np.zeros(3), (1, 2, 3)).tolist() == [2.0, 2.0, 1.0]


def test_infinite_scores_are_never_tried() -> None:
    """What a ranking rules out is not tried for any k."""
    runtime = np.array([30.0, 20.0, 10.0])
    assert regrets(runtime, np.array([1.0, 2.0, INF])).tolist() == [3.0, 2.0, 2.0, 2.0]


def test_a_ranking_of_nothing_tries_the_first() -> None:
    """If everything is ruled out, the first config runs: a matrix product has to be done somehow."""
    assert regrets(np.array([30.0, 10.0]), np.array([INF, INF])).tolist() == [3.0, 3.0, 3.0, 3.0]


@given(times=TIMES, seed=st.integers(0, 2**32 - 1))
def test_regret_falls_with_k(times: list[float], seed: int) -> None:
    """Trying more never costs more, and trying all costs nothing."""
    score = np.random.default_rng(seed).random(len(times))
    found = regrets(np.array(times), score, (1, 2, 3, len(times)))
    assert (np.diff(found) <= 0).all()
    assert found[-1] == 1.0


@given(times=TIMES, scale=st.floats(0.001, 1000))
def test_regret_ignores_the_unit(times: list[float], scale: float) -> None:
    """Regret compares times, so their unit does not matter."""
    runtime, score = np.array(times), np.arange(len(times), dtype=float)
    np.testing.assert_allclose(regrets(runtime * scale, score), regrets(runtime, score))


def test_report_by_hand() -> None:
    """Two problems of regret 1 and 4: geometric mean 2, maximum 4, half of them within 2%."""
    rows = np.array([[1.0] * len(KS), [4.0] * len(KS)])
    found = report(rows, np.full(len(rows), 1.02))
    assert found.problems == 2
    assert found.regret[1] == Regret(geomean=pytest.approx(2.0), p95=pytest.approx(3.85), max=4.0)
    assert (found.within_2pct, found.within_5pct) == (0.5, 0.5)


def test_within_shares() -> None:
    """1.01 is within 2% and 5%, 1.04 within 5% only."""
    rows = np.array([[1.01] * len(KS), [1.04] * len(KS), [1.5] * len(KS), [1.0] * len(KS)])
    found = report(rows, np.full(len(rows), 1.02))
    assert (found.within_2pct, found.within_5pct) == (0.5, 0.75)


def test_share_of_oracle_by_hand() -> None:
    """Of problems of regret 1, 2 and 4 the shares of the best possible speed are 1, 1/2 and 1/4."""
    rows = np.repeat([[1.0], [2.0], [4.0]], len(KS), axis=1)
    found = report(rows, np.ones(3)).share_of_oracle
    assert found == Share(mean=pytest.approx(1.75 / 3), p10=pytest.approx(0.3), min=0.25)


def test_within_noise_has_each_problems_own_limit() -> None:
    """A regret of 1.03 is within noise of a best time that is known to 4%, not of one that is known to 2%."""
    rows = np.full((2, len(KS)), 1.03)
    assert report(rows, np.array([1.04, 1.02])).within_noise == 0.5


def test_report_of_nothing() -> None:
    """Without a problem there is no figure."""
    with pytest.raises(DatasetError, match="nothing to judge by"):
        report(np.empty((0, len(KS))), np.empty(0))


def test_plain_report_is_what_json_shows() -> None:
    """The k are strings; a ranking that predicts no times has no errors."""
    rows = np.ones((3, len(KS)))
    plain = report(rows, rows[:, 0]).to_plain()
    assert list(plain) == ["problems", "regret", "within_2pct", "within_5pct", "within_noise", "share_of_oracle"]
    assert plain["regret"]["10"] == {"geomean": 1.0, "p95": 1.0, "max": 1.0}
    assert plain["share_of_oracle"] == {"mean": 1.0, "p10": 1.0, "min": 1.0}
    with_errors = report(rows, rows[:, 0], errors=Errors(0.25, 9.0)).to_plain()
    assert {name: with_errors[name] for name in with_errors if name not in plain} == {
        "rmse_log": 0.5,
        "mse_log": 0.25,
        "rmse_us": 3.0,
        "mse_us": 9.0,
    }
