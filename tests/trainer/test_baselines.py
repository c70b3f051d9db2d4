from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import H200, MM, VENDOR_ROW, columns, examples, learnable

from diode_store.inductor_default import default_configs
from diode_trainer.baselines.compare import compare
from diode_trainer.baselines.contest import config_keys
from diode_trainer.baselines.fixed import RANDOM_DRAWS
from diode_trainer.data.dataset import Examples, ExampleSet
from diode_trainer.data.splits import Fold, folds

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    assert {name: report.problems for name, report in found.reports.items()} == {
        "vendor_only": 4,
        "fold_ranking": 4,
        "random": 4,
    }


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
