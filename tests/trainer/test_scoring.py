"""All members score what the scout finds good of a long list, and the rest comes behind that."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import H200, LONG, MM, columns
from test_models import random_network

from diode_trainer.models import MatmulTimingModel, TimingNetwork
from diode_trainer.scoring import Prediction, Scorer

MEMBERS = 24


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    """Return a scorer whose scout has nothing in common with the members, so that most finalists are not the best."""
    return Scorer(with_scout(random_network(members=MEMBERS)))


def with_scout(network: TimingNetwork) -> TimingNetwork:
    """Give a network a scout that knows nothing of it."""
    network.scout = random_network(MatmulTimingModel)
    return network


@pytest.fixture(scope="module")
def both(scorer: Scorer) -> tuple[Prediction, Prediction]:
    """Return what is predicted of a long list, and the same by all members for all configs."""
    return scorer.predict(MM, H200, LONG), scorer.predict(MM, H200, LONG, exact=True)


def test_finalists_get_what_all_members_predict(both: tuple[Prediction, Prediction]) -> None:
    """A finalist's runtime is that of the exact prediction, and the geometric mean of its members'."""
    fast, exact = both
    np.testing.assert_allclose(fast.runtime_us[fast.finalists], exact.runtime_us[fast.finalists], rtol=1e-5)
    of_members = np.exp(fast.member_logs.mean(0, dtype=np.float64))
    np.testing.assert_allclose(of_members, fast.runtime_us[fast.finalists], rtol=1e-5)
    assert fast.member_logs.shape == (MEMBERS, len(fast.finalists))


def test_finalists_are_few_and_the_vendors_are_among_them(both: tuple[Prediction, Prediction]) -> None:
    """80 of a long list are enough, with the vendor's kernel, whatever is predicted for it."""
    fast, _ = both
    assert 0 in fast.finalists
    assert len(fast.finalists) in (80, 81)
    assert len(LONG) > 5 * len(fast.finalists)


def test_nothing_comes_before_a_finalist(both: tuple[Prediction, Prediction]) -> None:
    """What the members left out is predicted to be no faster than any template that they scored."""
    fast, _ = both
    others = np.setdiff1d(np.arange(1, len(LONG)), fast.finalists)
    assert fast.runtime_us[others].min() >= fast.runtime_us[np.setdiff1d(fast.finalists, [0])].max()


def test_every_possible_config_has_a_finite_time(both: tuple[Prediction, Prediction]) -> None:
    """Which configs cannot run does not depend on who scored them."""
    fast, exact = both
    assert np.isfinite(fast.runtime_us).tolist() == np.isfinite(exact.runtime_us).tolist()
    assert 0 < np.isinf(exact.runtime_us).sum() < len(LONG)


def test_those_left_out_keep_the_order_of_the_scout(scorer: Scorer) -> None:
    """What the members did not score is ordered by what the scout predicts."""
    fast = scorer.predict(MM, H200, LONG)
    left_out = [i for i in np.flatnonzero(np.isfinite(fast.runtime_us)) if i not in fast.finalists]
    by_scout = Scorer(random_network(MatmulTimingModel)).predict_us(MM, H200, LONG)
    assert np.argsort(fast.runtime_us[left_out]).tolist() == np.argsort(by_scout[left_out]).tolist()


def test_the_scout_is_asked(both: tuple[Prediction, Prediction]) -> None:
    """The scout does leave out something that is good: the two ways of scoring are two."""
    fast, exact = both
    assert not np.allclose(fast.runtime_us, exact.runtime_us)


@pytest.mark.parametrize("count", [1, 2, 30])
def test_short_list_is_scored_by_all(scorer: Scorer, count: int) -> None:
    """Of a list of Inductor's DEFAULT length nothing is left out."""
    chosen = LONG.take(np.arange(count) * 3)
    expected = scorer.predict_us(MM, H200, chosen, exact=True)
    np.testing.assert_allclose(scorer.predict_us(MM, H200, chosen), expected, rtol=1e-5)


def test_without_a_scout_the_members_score_all() -> None:
    """A model of one member has none, nor has one of an earlier release: each config is a finalist."""
    for network in (random_network(members=1), random_network(members=3)):
        prediction = Scorer(network).predict(MM, H200, LONG)
        assert prediction.finalists.tolist() == np.flatnonzero(np.isfinite(prediction.runtime_us)).tolist()
        exact = Scorer(network).predict_us(MM, H200, LONG, exact=True)
        np.testing.assert_allclose(prediction.runtime_us, exact)


def test_nothing_fits_is_all_infinite(scorer: Scorer) -> None:
    """A list of which nothing can run has no finalists."""
    chosen = columns(("triton::mm", 256, 256, 128, 8, 5, 8, False))
    prediction = scorer.predict(MM, H200, chosen)
    assert (prediction.runtime_us.tolist(), prediction.finalists.tolist()) == ([np.inf], [])
