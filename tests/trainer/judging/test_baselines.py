from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from synthetic import H200, MM, TRITON_ROWS, VENDOR_ROW, columns, examples, learnable

from diode_store.candidates.default_space import default_configs
from diode_trainer.data.dataset import Examples, ExampleSet
from diode_trainer.data.splits import Fold, folds
from diode_trainer.judging.baselines import heuristics
from diode_trainer.judging.baselines.compare import compare, forecast
from diode_trainer.judging.baselines.contest import config_keys
from diode_trainer.judging.baselines.cover import config_cover
from diode_trainer.judging.baselines.fixed import RANDOM_DRAWS
from diode_trainer.judging.baselines.heuristics import nv_matmul_heuristics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.records import ProblemShape

INF = math.inf
HAND = (Fold(np.array([0, 1]), np.array([2])),)


def problems(*runtimes: Sequence[float]) -> ExampleSet:
    """Return one problem for each list of times, the vendor's first."""
    return ExampleSet(tuple(examples(times, replace(MM, m=64 * (i + 1))) for i, times in enumerate(runtimes)))


def geomean(dataset: ExampleSet, name: str, k: int = 1, *, splits: tuple[Fold, ...] = HAND) -> float:
    """Return a baseline's regret@k."""
    return compare(dataset, splits).reports[name].regret[k].geomean


def test_vendor_only_by_hand() -> None:
    """The vendor takes 30 where the best takes 10, however many are tried."""
    dataset = problems([1, 2, 3], [1, 2, 3], [30, 20, 10])
    assert geomean(dataset, "vendor_only") == pytest.approx(3.0)
    assert geomean(dataset, "vendor_only", 10) == pytest.approx(3.0)


def test_vendor_only_is_no_baseline_without_vendors() -> None:
    """Where only Triton counts there is nothing to say of the vendor."""
    assert "vendor_only" not in compare(problems([1, 2, 3], [1, 2, 3], [3, 2, 1]), HAND, vendor=False).reports


def test_fold_ranking_by_hand() -> None:
    """The second Triton config won on the training problems; here it takes 20 against 10."""
    dataset = problems([30, 20, 10], [33, 20, 11], [40, 10, 20])
    assert geomean(dataset, "fold_ranking") == pytest.approx(2.0)
    assert geomean(dataset, "fold_ranking", 3) == pytest.approx(1.0)


def test_fold_ranking_takes_the_first_available() -> None:
    """If the winner of the training problems fails here, the next one is chosen."""
    dataset = problems([30, 20, 10], [33, 20, 11], [40, 10, INF])
    assert geomean(dataset, "fold_ranking") == pytest.approx(1.0)


def test_fold_ranking_learns_from_the_training_problems_only() -> None:
    """What is best on the judged problem itself is not known beforehand."""
    one = geomean(problems([30, 20, 10], [30, 20, 10], [10, 20, 40]), "fold_ranking")
    other = geomean(problems([30, 20, 10], [30, 20, 10], [20, 10, 40]), "fold_ranking")
    assert (one, other) == (pytest.approx(4.0), pytest.approx(4.0))


def test_fold_ranking_is_not_fooled_by_one_lucky_problem() -> None:
    """A config that was tried once, and won, does not beat one that nearly always wins."""
    usual, lucky = [10.0, 10.1, 50.0, INF], [10.0, INF, INF, 9.9]
    dataset = problems(*([usual] * 9), lucky, [10.0, 10.1, 50.0, 30.0])
    splits = (Fold(np.arange(10), np.array([10])),)
    assert geomean(dataset, "fold_ranking", splits=splits) == pytest.approx(1.0)


# --- a short list for everything


def test_config_cover_by_hand() -> None:
    """Alone the last config is best: 16 times the best over the three; with the first it is 2, with the third 1."""
    train = problems([10, 11, 40, 80], [30, 22, 10, 20], [80, 80, 44, 10]).examples
    (places,) = config_cover(train, [examples([1, 2, 3, 4])], vendor=True)
    assert places is not None
    assert places.tolist() == [1, 3, 2, 0]


def test_config_cover_passes_over_what_is_not_available() -> None:
    """If the first of the list failed here, the second is tried."""
    dataset = problems([30, 20, 10], [33, 20, 11], [40, 10, INF])
    assert geomean(dataset, "config_cover") == pytest.approx(1.0)


def test_config_cover_is_of_one_op_and_dtype() -> None:
    """What is fast for another dtype is no guide where there are problems of the same."""
    own, other = [20.0, 10.0, 30.0], [30.0, 20.0, 10.0]
    dataset = ExampleSet(
        (
            examples(own, MM),
            *(examples(other, replace(MM, dtype="float16", m=64 * i)) for i in range(1, 9)),
            examples(own, replace(MM, m=64)),
        )
    )
    splits = (Fold(np.arange(9), np.array([9])),)
    assert geomean(dataset, "config_cover", splits=splits) == 1.0


def test_config_cover_of_an_unknown_dtype_is_that_of_all() -> None:
    """Without problems of the same op and dtype, the list for all problems is better than nothing."""
    known = [30.0, 20.0, 10.0]
    fresh = examples(known, replace(MM, dtype="float16"))
    dataset = ExampleSet((examples(known, MM), fresh))
    assert geomean(dataset, "config_cover", splits=(Fold(np.array([0]), np.array([1])),)) == 1.0


# --- the nearest measured problem


def near(*places: tuple[int, list[float]], layout: str = "nn") -> tuple[Examples, ...]:
    """Return problems of some M with their times."""
    return tuple(examples(times, replace(MM, m=m, layout=layout)) for m, times in places)


def of_nearest(*found: Examples, k: int = 1) -> float:
    """Return the regret@k of the last problem, ranked by the nearest of the others."""
    last = len(found) - 1
    return geomean(ExampleSet(found), "nearest_problem", k, splits=(Fold(np.arange(last), np.array([last])),))


def test_nearest_problem_by_hand() -> None:
    """M = 1000 is nearer to 1200 than to 700 in logarithms, where the second config won; here it takes 20 for 10."""
    found = near((700, [30.0, 20.0, 10.0]), (1200, [30.0, 10.0, 20.0]), (1000, [30.0, 20.0, 10.0]))
    assert (of_nearest(*found), of_nearest(*found, k=3)) == (pytest.approx(2.0), pytest.approx(1.0))


def test_distance_is_in_logarithms() -> None:
    """M = 100 is nearer to 190 than to 40, though not in elements."""
    found = near((40, [30.0, 20.0, 10.0]), (190, [30.0, 10.0, 20.0]), (100, [30.0, 10.0, 20.0]))
    assert of_nearest(*found) == 1.0


def test_nearest_problem_has_the_same_layout() -> None:
    """A problem of the same sizes in another layout is farther than any of the same; without any it is used."""
    other = near((1000, [30.0, 20.0, 10.0]), layout="nt")
    same = near((64, [30.0, 10.0, 20.0]))
    here = near((1000, [30.0, 10.0, 20.0]))
    assert of_nearest(*other, *same, *here) == 1.0
    assert of_nearest(*other, *here) == pytest.approx(2.0)


def test_nearest_problem_shares_a_config() -> None:
    """If none of its configs ran here, the next nearest is asked."""
    strange = replace(near((1001, [1.0, 2.0, 3.0]))[0], columns=columns(*TRITON_ROWS[5:8]))
    (far, here) = near((64, [30.0, 10.0, 20.0]), (1000, [30.0, 10.0, 20.0]))
    assert of_nearest(strange, far, here) == 1.0


# --- boosted trees


def test_boosted_trees_learn() -> None:
    """On learnable problems they rank better than a fixed ranking, and say how far off their times are."""
    pytest.importorskip("lightgbm")
    dataset = learnable(60)
    splits = folds(dataset, 3)
    found = compare(dataset, splits, forecast(dataset, splits)).reports
    assert found["boosted_trees"].regret[1].geomean < found["fold_ranking"].regret[1].geomean
    assert found["boosted_trees"].errors is not None
    assert found["boosted_trees"].errors.rmse_log < 0.5
    assert found["fold_ranking"].errors is None


def test_boosted_trees_are_the_same_every_time() -> None:
    """They are fitted side by side, and are seeded."""
    pytest.importorskip("lightgbm")
    dataset = learnable(20)
    splits = folds(dataset, 2)
    one, other = (forecast(dataset, splits).predictions["boosted_trees"] for _ in range(2))
    assert [each.runtime_us.tolist() for each in one] == [each.runtime_us.tolist() for each in other]


def test_boosted_trees_have_no_time_for_a_failure() -> None:
    """What did not run has no features to predict from; it is never tried."""
    pytest.importorskip("lightgbm")
    dataset = ExampleSet(tuple(examples([30.0, INF, 10.0], replace(MM, m=64 * i)) for i in range(1, 30)))
    (first, *_) = forecast(dataset, folds(dataset, 2)).predictions["boosted_trees"]
    assert np.isfinite(first.runtime_us).tolist() == [True, False, True]


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an optional package its baseline is left out, with the command that installs it."""
    for package in ("lightgbm", "nvMatmulHeuristics"):
        monkeypatch.setitem(sys.modules, package, None)  # as an import finds a package that is not there
    dataset = learnable(6)
    splits = folds(dataset, 2)
    skipped = compare(dataset, splits, forecast(dataset, splits)).skipped
    assert skipped["boosted_trees"] == "LightGBM is not installed; `pip install 'torch-diode[baselines]'`"
    assert skipped["nv_matmul_heuristics"] == "it is not installed; `pip install 'torch-diode[heuristics]'` (Linux)"


def test_nothing_to_learn_from() -> None:
    """Baselines that must learn are left out where every problem is judged."""
    dataset = problems([1, 2, 3])
    splits = (Fold(np.arange(0), np.arange(1)),)
    skipped = compare(dataset, splits, forecast(dataset, splits)).skipped
    learning = ("config_cover", "nearest_problem", "boosted_trees")
    assert {skipped[name] for name in learning if "not installed" not in skipped[name]} == {
        "there are no other problems to learn from"
    }


# --- NVIDIA's heuristics


def listed(example: Examples) -> Any:
    """Return what nvMatmulHeuristics says of a problem."""
    pytest.importorskip("nvMatmulHeuristics")
    return next(iter(nv_matmul_heuristics([], [example], vendor=True)))


def test_heuristics_rank_a_sensible_tile_first() -> None:
    """For a large product they want a tile of 128 by 128 or more, and never the vendor's kernel."""
    example = replace(learnable(1).examples[0], shape=replace(MM, m=8192, n=8192, k=4096))
    scores = listed(example)
    best = int(scores.argmin())
    assert example.columns.block_m[best] * example.columns.block_n[best] >= 128 * 128
    assert math.isinf(scores[0])
    assert scores[best] == 0


def test_heuristics_stand_for_the_nearest_config() -> None:
    """A kernel stands for the measured config with the nearest tile, whatever its stages."""
    rows = [VENDOR_ROW, *(("triton::mm", 128, 128, 64, 8, 2, w, False) for w in (1, 4)), TRITON_ROWS[0]]
    runtime = np.array([10.0, 20.0, 30.0, 40.0])
    example = replace(examples([1.0]), shape=replace(MM, m=8192, n=8192), columns=columns(*rows), runtime_us=runtime)
    example = replace(example, is_vendor=np.arange(4) == 0, is_estimate=np.zeros(4, dtype=bool))
    assert int(listed(example).argmin()) == 2


@pytest.mark.parametrize(
    ("op", "dtype", "target"), [("scaled_mm", "float8_e4m3fn", "CUTLASS3"), ("int_mm", "int8", "TRITON")]
)
def test_heuristics_know_eight_bits(op: str, dtype: str, target: str) -> None:
    """A large product wants a large tile, as one in bf16 does; float8 is asked of the target that knows it."""
    library = pytest.importorskip("nvMatmulHeuristics")
    shape = replace(MM, op=op, dtype=dtype, m=8192, n=8192, k=4096, layout="nt")
    example = replace(learnable(1).examples[0], shape=shape)
    best = int(listed(example).argmin())
    assert example.columns.block_m[best] * example.columns.block_n[best] >= 128 * 128
    lists = heuristics._Lists(library)
    assert lists.kernels(example) is not None
    assert [asked for _, asked in lists._interfaces] == [target]


@pytest.mark.parametrize(
    "shape",
    [replace(MM, dtype="float64"), replace(MM, layout="sn"), replace(MM, op="grouped_mm", b=8)],
    ids=["a dtype it has no name for", "other strides", "groups"],
)
def test_heuristics_have_no_answer(shape: ProblemShape) -> None:
    """What they cannot describe is not judged, rather than counted as a bad choice."""
    assert listed(replace(learnable(1).examples[0], shape=shape)) is None


def test_heuristics_do_not_know_every_device() -> None:
    """On a device that they cannot describe they are left out, with the reason."""
    pytest.importorskip("nvMatmulHeuristics")
    dataset = ExampleSet(tuple(replace(e, hardware=replace(H200, name="NVIDIA X1")) for e in learnable(4)))
    found = compare(dataset, folds(dataset, 2))
    assert found.skipped["nv_matmul_heuristics"] == "it has no answer for any of these problems"


def test_random_is_near_its_expectation() -> None:
    """Of three configs of 1, 2 and 4 us, one try costs 2 on geometric average, two tries 2^(1/3)."""
    dataset = ExampleSet(tuple(examples([1.0, 2.0, 4.0], replace(MM, m=i)) for i in range(1, 41)))
    splits = (Fold(np.arange(0), np.arange(40)),)
    found = compare(dataset, splits).reports["random"]
    assert found.problems == 40
    assert found.regret[1].geomean == pytest.approx(2.0, rel=0.05)
    assert found.regret[3].geomean == 1.0
    expected = np.exp(np.mean([np.log(min(pair)) for pair in combinations([1.0, 2.0, 4.0], 2)]))
    assert expected == pytest.approx(2 ** (1 / 3))


def test_random_is_the_same_every_time() -> None:
    """Draws are seeded."""
    dataset = learnable(6)
    splits = folds(dataset, 3)
    one, other = (compare(dataset, splits).reports["random"] for _ in range(2))
    assert one == other


def test_every_baseline_judges_the_same_problems() -> None:
    """Problems that cannot be judged are left out of all rows alike."""
    dataset = problems([1, 2, 3], [1, INF, INF], [3, 2, INF], [4, 5, 6], [6, 5, 4])
    found = compare(dataset, folds(dataset, 2))
    judged = {name: report.problems for name, report in found.reports.items()}
    names = ("vendor_only", "config_cover", "nearest_problem", "fold_ranking", "random")
    assert {name: judged[name] for name in names} == dict.fromkeys(names, 4)
    assert {name: len(found.regrets[name]) for name in names} == dict.fromkeys(names, 4)


def test_config_keys_tell_configs_apart() -> None:
    """Two configs share a key only if they are the same."""
    example = learnable(1).examples[0]
    assert len(set(config_keys(example))) == len(example)
    assert config_keys(example)[0] == ("aten::mm", 0, 0, 0, 0, 0, (0, False))


# --- Inductor's DEFAULT list


def with_default_list(keep: float = 1.0) -> Examples:
    """Return a problem whose data holds a share of the DEFAULT list, and one better config outside it."""
    listed = sorted(default_configs(MM))
    kept = listed[: round(keep * len(listed))]
    rows = [VENDOR_ROW, *(("triton::mm", m, n, k, 8, s, w, False) for m, n, k, s, w in kept)]
    rows.append(("triton::mm", 256, 128, 64, 8, 3, 8, False))
    runtime = np.array([40.0, *(20.0 + i for i in range(len(kept))), 10.0])
    return Examples(H200, "one", MM, columns(*rows), runtime, np.arange(len(rows)) == 0, np.zeros(len(rows), bool))


def test_default_list_benchmarks_all_of_itself() -> None:
    """Its best of 20 us against the 10 us of a config outside the list, whatever the k."""
    dataset = ExampleSet((with_default_list(),))
    found = compare(dataset, (Fold(np.arange(0), np.arange(1)),), vendor=False)
    assert found.reports["inductor_default"].regret[1].geomean == pytest.approx(2.0)
    assert found.reports["inductor_default"].regret[10].geomean == pytest.approx(2.0)


def test_default_list_is_skipped_where_the_data_lacks_it() -> None:
    """A sample of the search space says little about the list, so it is left out, with the reason."""
    dataset = ExampleSet((with_default_list(0.5),))
    found = compare(dataset, (Fold(np.arange(0), np.arange(1)),))
    assert "inductor_default" not in found.reports
    assert found.skipped["inductor_default"] == "the data holds 48% of its configs, 80% needed"


def test_draws_are_many() -> None:
    """A random ranking is judged by many draws, since one says nothing."""
    assert RANDOM_DRAWS >= 50
