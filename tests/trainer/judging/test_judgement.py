from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import MM, examples

from diode_store.errors import DatasetError
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.metrics import Errors, Report, eligible, judgeable
from diode_trainer.scoring import Prediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.data.dataset import Examples
    from diode_trainer.judging.judgement import ProblemJudgement

INF = math.inf


def judged(problems: Sequence[Examples], predicted: Sequence[np.ndarray], *, vendor: bool = True) -> Report:
    """Return the figures of predicted times."""
    return summarise(
        judge_problems(problems, [Prediction.without_members(times) for times in predicted], vendor=vendor)
    )


def judgement(example: Examples, predicted: Sequence[float]) -> ProblemJudgement:
    """Return how predicted times of one problem are judged."""
    (found,) = judge_problems([example], [Prediction.without_members(np.array(predicted))])
    return found


def test_failures_are_not_available() -> None:
    """A failed config ranked first costs nothing, because it cannot run."""
    example = examples([20.0, INF, 10.0])
    found = judged([example], [np.array([3.0, 1.0, 2.0])])
    assert found.regret[1].geomean == 1.0


def test_triton_only_leaves_the_vendor_out() -> None:
    """Without the vendor the best Triton config is what counts."""
    example = examples([5.0, 10.0, 20.0])
    predicted = np.array([1.0, 3.0, 2.0])
    assert judged([example], [predicted]).regret[1].geomean == pytest.approx(1.0)
    assert judged([example], [predicted], vendor=False).regret[1].geomean == pytest.approx(2.0)
    assert eligible(example).tolist() == [True, True, True]
    assert eligible(example, vendor=False).tolist() == [False, True, True]


def test_problems_without_a_choice_are_excluded() -> None:
    """A problem with one config left says nothing about a ranking."""
    lonely, usual = examples([10.0, INF, INF]), examples([10.0, 20.0, INF])
    assert (judgeable(lonely), judgeable(usual), judgeable(usual, vendor=False)) == (False, True, False)
    found = judged([lonely, usual], [np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.0])])
    assert (found.problems, found.regret[1].geomean) == (1, pytest.approx(2.0))


def test_the_vendors_kernels_alone_are_no_choice() -> None:
    """Of a product with a bias there are two; a problem of which nothing else was timed flatters every ranking."""
    usual = examples([10.0, 20.0, 30.0])
    alone = replace(usual, is_vendor=np.ones(3, dtype=bool))
    failed = replace(usual, is_vendor=np.array([True, True, False]), runtime_us=np.array([10.0, 20.0, INF]))
    assert [judgeable(each) for each in (alone, failed, usual)] == [False, False, True]


def test_rmse_of_logarithms() -> None:
    """Predictions e times too long and exact: root of (1 + 0) / 2."""
    example = examples([10.0, 20.0])
    found = judged([example], [np.array([10.0 * math.e, 20.0])])
    assert found.errors.rmse_log == pytest.approx(math.sqrt(0.5))


def test_rmse_leaves_estimates_and_the_impossible_out() -> None:
    """Neither an estimated time nor a config held for impossible is an error of prediction."""
    example = examples([10.0, 20.0, 90.0], estimates=[False, False, True])
    found = judged([example], [np.array([10.0, INF, 1.0])])
    assert found.errors.rmse_log == pytest.approx(0.0)


def test_errors_in_microseconds() -> None:
    """Predictions 3 us too long and exact: the mean square is 9 / 2."""
    found = judged([examples([10.0, 20.0])], [np.array([13.0, 20.0])]).errors
    assert found == Errors(mse_log=pytest.approx(math.log(1.3) ** 2 / 2), mse_us=pytest.approx(4.5))


def test_errors_are_of_the_regime_that_was_measured() -> None:
    """A deployed time that is predicted as it is has no error, however it was timed."""
    flushed = replace(examples([14.0, 24.0]), regime="write_flush")
    found = judged([flushed, examples([10.0, 20.0])], [np.array([10.0, 20.0])] * 2)
    assert found.errors == Errors(mse_log=pytest.approx(0.0), mse_us=pytest.approx(0.0))


def test_no_errors_where_all_is_estimated() -> None:
    """Without a config that was timed properly there is no error to speak of."""
    assert judged([examples([10.0, 20.0], estimates=[True, True])], [np.array([10.0, 20.0])]).errors is None


def test_what_is_known_of_a_problem() -> None:
    """The choice, the best and their times, measured and predicted, with the whole configs."""
    example = replace(examples([30.0, 20.0, 10.0]), family="llama3-8b", regime="graph")
    found = judgement(example, [25.0, 15.0, 18.0])
    assert (found.shape, found.family, found.regime, found.configs) == (MM, "llama3-8b", "graph", 3)
    assert found.regret == {1: 2.0, 3: 1.0, 5: 1.0, 10: 1.0}
    assert (found.chosen, found.best) == (example.columns.config(1), example.columns.config(2))
    assert (found.chosen_us, found.chosen_predicted_us) == (20.0, 15.0)
    assert (found.best_us, found.best_predicted_us) == (10.0, 18.0)
    assert (found.best_is_vendor, found.share_of_oracle) == (False, 0.5)
    assert found.measured_us.tolist() == [30.0, 20.0, 10.0]
    assert 0 < found.roofline_us < 10.0


def test_the_tie_set_follows_how_times_were_taken() -> None:
    """At 40 us, known to 1.7%, 41.3 us is within noise of 40 and 41.5 is not; known to 3%, both are."""
    example = examples([40.0, 41.3, 41.5])
    sharp = judgement(example, [3.0, 1.0, 2.0])
    missed = judgement(example, [3.0, 2.0, 1.0])
    assert (sharp.ties, sharp.within_noise, missed.within_noise) == (2, True, False)
    noisy = judgement(replace(example, usual_sigmas=(0.1, 0.1, 0.03)), [3.0, 2.0, 1.0])
    assert (noisy.ties, noisy.within_noise) == (3, True)


def test_a_judgement_as_json() -> None:
    """Scripts get figures and names, not arrays."""
    found = judgement(examples([30.0, 20.0, 10.0]), [25.0, 15.0, 18.0])
    plain = json.loads(json.dumps(found.to_plain()))
    assert (plain["regret"], plain["regret_at"]["3"], plain["best"]) == (2.0, 1.0, found.best.describe())
    assert "measured_us" not in plain


def test_nothing_to_summarise() -> None:
    """Without a problem there is no figure."""
    with pytest.raises(DatasetError, match="nothing to judge by"):
        summarise(())


OTHERWISE = np.log([[1.1, 1.11, 0.9], [0.9, 0.91, 1.1]]) + np.array([0.0, 0.0, 0.05])
"""What two members predict of three configs: the second errs as the first does, the third otherwise."""


def test_a_model_of_members_tries_those_that_go_together() -> None:
    """The third is predicted slowest, but is tried second; what is not counted is not tried."""
    prediction = Prediction(np.exp(OTHERWISE.mean(0)), np.arange(3), OTHERWISE.astype(np.float32))
    assert prediction.turns(np.arange(3)).tolist() == [0.0, 2.0, 1.0]
    (found,) = judge_problems([examples([20.0, 40.0, 10.0])], [prediction])
    assert (found.regret[1], found.chosen_us) == (2.0, 20.0)


def test_regret_is_of_what_is_tried_together() -> None:
    """Of twelve configs the last is the fastest, and is predicted slowest; it errs otherwise than all others."""
    means = np.arange(12) * 0.01
    logs = means + np.array([[0.2], [-0.2]]) * np.array([1.0] * 11 + [-1.0])
    prediction = Prediction(np.exp(means), np.arange(12), logs.astype(np.float32))
    by_rank = Prediction.without_members(np.exp(means))
    problem = examples([20.0] * 11 + [10.0])
    together, ranked = (judge_problems([problem], [each])[0].regret for each in (prediction, by_rank))
    assert (together[3], ranked[3], ranked[10]) == (1.0, 2.0, 2.0)


def test_turns_of_what_cannot_run_or_few_members_scored() -> None:
    """Those that all members scored come first, the others by their predicted times; what cannot run never."""
    scored = np.exp(OTHERWISE.mean(0))
    times = np.array([1.3, scored[2], INF, scored[0], 1.2, scored[1]])
    prediction = Prediction(times, np.array([3, 5, 1]), OTHERWISE.astype(np.float32))
    assert prediction.turns(np.arange(6)).tolist() == [4.0, 1.0, INF, 0.0, 3.0, 2.0]
    assert prediction.turns(np.array([1, 3, 4, 5])).tolist() == [1.0, 0.0, 3.0, 2.0]
    assert prediction.turns(np.array([4, 0])).tolist() == [0.0, 1.0]
    assert prediction.turns(np.array([], dtype=np.intp)).tolist() == []


def test_turns_begin_with_what_is_predicted_fastest() -> None:
    """Corrections may put one first that not all members scored; then all come as predicted."""
    times = np.append(np.exp(OTHERWISE.mean(0)), 0.5)
    prediction = Prediction(times, np.arange(3), OTHERWISE.astype(np.float32))
    assert prediction.turns(np.arange(4)).tolist() == [1.0, 2.0, 3.0, 0.0]
