"""All members score what the scout finds good of a long list, and the rest comes behind that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import H200, LONG, MM, columns
from test_models import random_network

from diode_store.columns import ConfigColumns
from diode_trainer.models import MatmulTimingModel, TimingNetwork
from diode_trainer.scoring import Prediction, Scorer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.records import KernelConfig

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


ODD = replace(MM, k=513, layout="nt")
"""The rows of both operands are too narrow to be pipelined."""


@pytest.mark.parametrize("exact", [False, True])
def test_a_kernel_is_a_finalist_once(scorer: Scorer, exact: bool) -> None:  # noqa: FBT001
    """Of configs that differ in stages alone where nothing is pipelined, the one that is predicted fastest."""
    found = scorer.predict(ODD, H200, LONG, exact=exact)

    def kernels(places: NDArray[np.intp]) -> list[KernelConfig]:
        return [replace(LONG.config(int(place)), num_stages=1) for place in places]

    assert len(found.repeats) > 20
    of_finalists = dict(zip(kernels(found.finalists), found.runtime_us[found.finalists].tolist(), strict=True))
    assert len(of_finalists) == len(found.finalists) == found.member_logs.shape[1]
    for kernel, us in zip(kernels(found.repeats), found.runtime_us[found.repeats].tolist(), strict=True):
        assert of_finalists[kernel] <= us < np.inf
    turns = found.turns(np.arange(len(LONG)))
    assert np.isinf(turns[found.repeats]).all()
    assert found.runtime_us.argmin() in found.finalists
    assert turns[found.runtime_us.argmin()] == 0


def test_configs_that_have_the_same_columns_are_kernels_of_their_own(scorer: Scorer) -> None:
    """They differ in what no column holds, such as the type of the accumulators; and TMA is pipelined."""
    row, tma = ("triton::mm", 64, 64, 64, 8, 3, 4, False), ("triton::mm_persistent_tma", 64, 64, 64, 8, 3, 4, False)
    other, tma_of_other = (*row[:5], 2, *row[6:]), (*tma[:5], 2, *tma[6:])
    found = scorer.predict(ODD, H200, ConfigColumns.from_rows([row, row, other, other, tma, tma_of_other]))
    assert found.repeats.tolist() in ([0, 1], [2, 3])
    assert {4, 5} < set(found.finalists.tolist())
    assert not len(scorer.predict(MM, H200, ConfigColumns.from_rows([row, other])).repeats)


def test_what_was_measured_fast_repeats_nothing(scorer: Scorer) -> None:
    """A correction of one config counts, though its kernel was predicted to be faster under another name."""
    found = scorer.predict(ODD, H200, LONG)
    offsets = np.full(len(LONG), -0.1)
    assert found.shifted(offsets).repeats.tolist() == found.repeats.tolist()
    offsets[found.repeats[0]] = -0.5
    assert found.shifted(offsets).repeats.tolist() == found.repeats[1:].tolist()


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
