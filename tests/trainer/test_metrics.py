from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import examples

from diode_store.errors import DatasetError
from diode_trainer.metrics import KS, Regret, eligible, evaluate, judgeable, regrets, report

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
    found = report(rows)
    assert found.problems == 2
    assert found.regret[1] == Regret(geomean=pytest.approx(2.0), p95=pytest.approx(3.85), max=4.0)
    assert (found.within_2pct, found.within_5pct) == (0.5, 0.5)


def test_within_shares() -> None:
    """1.01 is within 2% and 5%, 1.04 within 5% only."""
    rows = np.array([[1.01] * len(KS), [1.04] * len(KS), [1.5] * len(KS), [1.0] * len(KS)])
    found = report(rows)
    assert (found.within_2pct, found.within_5pct) == (0.5, 0.75)


def test_report_of_nothing() -> None:
    """Without a problem there is no figure."""
    with pytest.raises(DatasetError, match="nothing to judge by"):
        report(np.empty((0, len(KS))))


def test_failures_are_not_available() -> None:
    """A failed config ranked first costs nothing, because it cannot run."""
    example = examples([20.0, INF, 10.0])
    found = evaluate([example], [np.array([3.0, 1.0, 2.0])])
    assert found.regret[1].geomean == 1.0


def test_triton_only_leaves_the_vendor_out() -> None:
    """Without the vendor the best Triton config is what counts."""
    example = examples([5.0, 10.0, 20.0])
    predicted = np.array([1.0, 3.0, 2.0])
    assert evaluate([example], [predicted]).regret[1].geomean == pytest.approx(1.0)
    assert evaluate([example], [predicted], vendor=False).regret[1].geomean == pytest.approx(2.0)
    assert eligible(example).tolist() == [True, True, True]
    assert eligible(example, vendor=False).tolist() == [False, True, True]


def test_problems_without_a_choice_are_excluded() -> None:
    """A problem with one config left says nothing about a ranking."""
    lonely, usual = examples([10.0, INF, INF]), examples([10.0, 20.0, INF])
    assert (judgeable(lonely), judgeable(usual), judgeable(usual, vendor=False)) == (False, True, False)
    found = evaluate([lonely, usual], [np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.0])])
    assert (found.problems, found.regret[1].geomean) == (1, pytest.approx(2.0))


def test_rmse_of_logarithms() -> None:
    """Predictions e times too long and exact: root of (1 + 0) / 2."""
    example = examples([10.0, 20.0])
    found = evaluate([example], [np.array([10.0 * math.e, 20.0])])
    assert found.rmse_log == pytest.approx(math.sqrt(0.5))


def test_rmse_leaves_estimates_and_the_impossible_out() -> None:
    """Neither an estimated time nor a config held for impossible is an error of prediction."""
    example = examples([10.0, 20.0, 90.0], estimates=[False, False, True])
    found = evaluate([example], [np.array([10.0, INF, 1.0])])
    assert found.rmse_log == pytest.approx(0.0)


def test_plain_report_is_what_json_shows() -> None:
    """The k are strings; a ranking that predicts no times has no error."""
    plain = report(np.ones((3, len(KS)))).to_plain()
    assert list(plain) == ["problems", "regret", "within_2pct", "within_5pct"]
    assert plain["regret"]["10"] == {"geomean": 1.0, "p95": 1.0, "max": 1.0}
    assert report(np.ones((3, len(KS))), rmse_log=0.1).to_plain()["rmse_log"] == 0.1
