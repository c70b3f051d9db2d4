"""All members score what the scout finds good of a long list, and the rest comes behind that."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from synthetic import H200, LONG, MM, columns
from test_models import random_network

from diode_store.records import Hardware
from diode_trainer.models import MatmulTimingModel, TimingNetwork
from diode_trainer.scoring import Prediction, Scorer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.records import KernelConfig, ProblemShape

MEMBERS = 24
A100 = Hardware("nvidia", "NVIDIA A100-SXM4-80GB", "sm_80", 108)


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
    """46 of a long list are enough, with the vendor's kernel, whatever is predicted for it."""
    fast, _ = both
    assert 0 in fast.finalists
    assert len(fast.finalists) in (46, 47)
    assert len(LONG) > 5 * len(fast.finalists)


def test_nothing_comes_before_a_finalist(both: tuple[Prediction, Prediction]) -> None:
    """What the members left out is predicted to be no faster than any template that they scored."""
    fast, _ = both
    others = np.setdiff1d(np.arange(1, len(LONG)), fast.finalists)
    assert fast.runtime_us[others].min() >= fast.runtime_us[np.setdiff1d(fast.finalists, [0])].max()


ODD = replace(MM, k=513, layout="nt")
"""The rows of both operands are too narrow to be pipelined."""


def names_of(places: NDArray[np.intp]) -> list[KernelConfig]:
    """Return the kernels of configs of the long list, for a product of which no loop is pipelined."""
    return [replace(LONG.config(int(place)), num_stages=1) for place in places]


@pytest.mark.parametrize("exact", [False, True])
def test_a_kernel_is_a_candidate_once(scorer: Scorer, exact: bool) -> None:  # noqa: FBT001
    """Of configs that differ in stages alone where nothing is pipelined, the one that is predicted fastest."""
    found = scorer.predict(ODD, H200, LONG, exact=exact)
    once = found.without_repeats()
    left = np.flatnonzero(np.isfinite(once.runtime_us))
    assert len(set(names_of(left))) == len(left) == len(set(names_of(np.flatnonzero(np.isfinite(found.runtime_us)))))
    assert len(left) < np.isfinite(found.runtime_us).sum() / 2
    assert once.runtime_us[left].tolist() == found.runtime_us[left].tolist()
    best = dict(zip(names_of(left), once.runtime_us[left].tolist(), strict=True))
    everything = np.flatnonzero(np.isfinite(found.runtime_us))
    assert all(
        best[name] <= us for name, us in zip(names_of(everything), found.runtime_us[everything].tolist(), strict=True)
    )
    assert once.finalists.tolist() == np.intersect1d(found.finalists, left).tolist()
    assert once.member_logs.shape == (MEMBERS, len(once.finalists))
    assert found.runtime_us.argmin() == once.runtime_us.argmin() in once.finalists


def test_a_kernel_is_timed_once_under_a_name_that_ran(scorer: Scorer) -> None:
    """Whichever of its names is counted; the best first."""
    found = scorer.predict(ODD, H200, LONG)
    best = int(found.runtime_us.argmin())
    counted = np.array([place for place in range(len(LONG)) if place != best and np.isfinite(found.runtime_us[place])])
    turns = found.turns(counted)
    tried = counted[np.isfinite(turns)]
    assert len(set(names_of(tried))) == len(tried) == len(set(names_of(counted)))
    assert names_of(np.array([best]))[0] in names_of(tried)
    assert counted[turns.argmin()] == counted[found.runtime_us[counted].argmin()]


def test_configs_that_have_the_same_columns_are_kernels_of_their_own(scorer: Scorer) -> None:
    """They differ in what no column holds, such as the type of the accumulators; and TMA is pipelined."""
    row, tma = ("triton::mm", 64, 64, 64, 8, 3, 4, False), ("triton::mm_persistent_tma", 64, 64, 64, 8, 3, 4, False)
    other, tma_of_other = (*row[:5], 2, *row[6:]), (*tma[:5], 2, *tma[6:])
    alone = (*row[:1], 32, *row[2:]), (*row[:1], 32, *other[2:])

    def left(shape: ProblemShape, *rows: tuple[object, ...]) -> int:
        found = scorer.predict(shape, H200, columns(*rows)).without_repeats()
        return int(np.isfinite(found.runtime_us).sum())

    assert left(ODD, row, other) == 1
    assert left(ODD, row, row, other, other, tma, tma_of_other, *alone) == 7
    assert left(MM, row, other) == 2


def test_what_was_measured_fast_stands_for_its_kernel(scorer: Scorer) -> None:
    """A correction of one name counts, though the kernel was predicted to be faster under another."""
    found = scorer.predict(ODD, H200, LONG)
    slowest = found.finalists[found.runtime_us[found.finalists].argmax()]
    offsets = np.zeros(len(LONG))
    offsets[slowest] = -3.0
    shifted = found.shifted(offsets)
    assert np.isfinite(shifted.without_repeats().runtime_us[slowest])
    assert shifted.turns(np.arange(len(LONG)))[slowest] == 0
    offsets[slowest] = np.inf
    same = [place for place in found.finalists if names_of(np.array([place])) == names_of(np.array([slowest]))]
    assert np.isfinite(found.shifted(offsets).without_repeats().runtime_us[same]).sum() == (len(same) > 1)


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


@pytest.mark.parametrize("vendors", [0, 1, 2, 3])
@pytest.mark.parametrize("templates", range(43, 50))
def test_a_list_about_as_long_as_the_finalists(scorer: Scorer, vendors: int, templates: int) -> None:
    """Whatever the number of vendors' kernels, all that can run has a time, and what cannot run has none."""
    too_large = ("triton::mm", 256, 256, 256, 8, 5, 8, False)
    of_vendors = [("aten::mm", 0, 0, 0, 0, 0, 0, False)] * vendors
    usual = [("triton::mm", 64, 64, 32, 1 + n, 3, 4, False) for n in range(templates)]
    prediction = scorer.predict(MM, H200, columns(*of_vendors, too_large, *usual))
    assert np.isinf(prediction.runtime_us).nonzero()[0].tolist() == [vendors]
    assert vendors not in prediction.finalists


@pytest.mark.parametrize("exact", [False, True])
def test_persistent_tma_kernels_are_never_chosen_for_one_row(scorer: Scorer, exact: bool) -> None:  # noqa: FBT001
    """Their results are wrong there; in lists of any length, and with two rows they may be chosen."""
    tma = [("triton::mm_persistent_tma", 64, 64, 32, 1 + n, 3, 4, False) for n in range(80)]
    others = [("triton::mm", 64, 64, 32, 1 + n, 3, 4, False) for n in range(80)]
    for count in (3, 80):
        chosen = columns(*tma[:count], *others[:count])
        for rows, is_left in ((1, [False] * count + [True] * count), (2, [True] * 2 * count)):
            found = scorer.predict(replace(MM, m=rows), H200, chosen, exact=exact)
            assert np.isfinite(found.runtime_us).tolist() == is_left
            assert all(is_left[place] for place in found.finalists)


def test_nothing_fits_is_all_infinite(scorer: Scorer) -> None:
    """A list of which nothing can run has no finalists."""
    chosen = columns(("triton::mm", 256, 256, 128, 8, 5, 8, False))
    prediction = scorer.predict(MM, H200, chosen)
    assert (prediction.runtime_us.tolist(), prediction.finalists.tolist()) == ([np.inf], [])


def test_what_is_kept_of_a_list_serves_every_problem(scorer: Scorer) -> None:
    """Sizes, alignments, layouts, dtypes, short loops and devices take turns, and threads share one scorer."""
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"m": 4096, "k": 320},
        {"n": 1023},
        {"k": 64},
        {"k": 48, "layout": "nn"},
        {"layout": "tn"},
        {"dtype": "float32"},
        {"op": "bmm", "b": 24, "m": 7},
    )
    asked = [(replace(MM, **change), device) for change in changes for device in (H200, A100)] * 3
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda problem: scorer.predict_us(*problem, LONG), asked))
    network = with_scout(random_network(members=MEMBERS))
    for problem, runtimes in zip(asked, found[: 2 * len(changes)], strict=False):
        np.testing.assert_allclose(runtimes, Scorer(network).predict_us(*problem, LONG), rtol=1e-5)
    for again in (found[len(changes) * 2 :], found[len(changes) * 4 :]):
        np.testing.assert_array_equal(again[: 2 * len(changes)], found[: 2 * len(changes)])


def test_another_process_may_have_it(scorer: Scorer) -> None:
    """Also one that has been asked; there it predicts the same."""
    here = scorer.predict_us(MM, H200, LONG)
    there: Scorer = pickle.loads(pickle.dumps(scorer))  # noqa: S301 - our own
    np.testing.assert_array_equal(there.predict_us(MM, H200, LONG), here)
