from __future__ import annotations

from dataclasses import replace

import numpy as np
from synthetic import MM, examples

from diode_trainer.commands.tables import (
    ERRORS_HEADER,
    HEADER,
    PARTS_HEADER,
    cautions,
    error_rows,
    left_out,
    part_rows,
    rows,
    worst_rows,
)
from diode_trainer.judging.assess import Assessment
from diode_trainer.judging.baselines.compare import Baselines
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.metrics import KS, report
from diode_trainer.judging.slices import slices
from diode_trainer.judging.standing import Standing
from diode_trainer.scoring import Prediction


def standing() -> Standing:
    """Return a model that costs nothing on an mm and twice the time on a bmm, and a baseline that knows the mm only."""
    known, other = examples([10.0, 20.0]), examples([10.0, 20.0], replace(MM, op="bmm"))
    predicted = (np.array([10.0, 20.0]), np.array([20.0, 10.0]))
    judgements = judge_problems([known, other], [Prediction.without_members(times) for times in predicted])
    baseline = report(np.ones((1, len(KS))), np.ones(1))
    return Standing(
        summarise(judgements), Baselines({"nv_matmul_heuristics": baseline}, {"random": "it rains"}), judgements
    )


def test_rows_by_hand() -> None:
    """Regret 1 and 2 are the root of 2 on average; the shares of the oracle are 1 and 1/2."""
    model, baseline = (dict(zip(HEADER, row, strict=True)) for row in rows(standing(), "mine"))
    assert (model["ranking"], baseline["ranking"]) == ("mine", "nvMatmulHeuristics")
    assert (model["regret@1"], model["@3"], model["max@1"], model["in 2%"], model["tied"]) == (
        "1.4142",
        "1.0000",
        "2.00",
        "50%",
        "50%",
    )
    assert (model["oracle"], model["P10"], model["min"]) == ("0.750", "0.550", "0.500")


def test_errors_of_those_that_predict_times() -> None:
    """Only the model predicts times: right twice, by a factor of two twice, which is 10 us."""
    (row,) = error_rows(standing(), "mine")
    shown = dict(zip(ERRORS_HEADER, row, strict=True))
    assert shown["predicted times"] == "mine"
    np.testing.assert_allclose([shown["mse_us"], shown["rmse_log"]], [50.0, np.log(2) / np.sqrt(2)])


def test_what_is_left_out() -> None:
    """A baseline that was not judged is named with the reason, one that was judged on less with how much less."""
    assert left_out(standing()) == [
        "left out random: it rains",
        "nvMatmulHeuristics has no answer for 1 of 2 problems; its row leaves these out",
    ]


def test_problems_are_counted_with_commas() -> None:
    """Where one number of a line has a comma, so has the other."""
    many = replace(standing(), model=replace(standing().model, problems=2500))
    assert left_out(many)[1].startswith("nvMatmulHeuristics has no answer for 2,499 of 2,500 problems")
    assert [line.split(" (")[0] for line in cautions(Assessment(2500, 1247, many, outside=1100))] == [
        "it was trained on 1,247 of these 2,500 problems, so the figures flatter it; --unseen leaves them out",
        "1,100 of 2,500 problems are outside what it was trained on",
    ]


def test_costly_choices() -> None:
    """A costly choice has its problem in short, what was chosen and the best."""
    ((problem, regret, *_),) = worst_rows(standing().judgements[1:])
    assert (problem, regret) == ("bmm bf16 1024x1024x1024 nn", 2.0)


def test_the_share_of_the_loss() -> None:
    """All of the loss is on the bmm; without any loss there is nothing to share."""
    found = part_rows(slices(standing().judgements, ["op"])["op"])
    assert [(row[0], row[1], row[-1]) for row in found] == [("bmm", 1, "100%"), ("mm", 1, "0%")]
    assert {len(row) for row in found} == {len(PARTS_HEADER) + 1}
    assert part_rows(slices(standing().judgements[:1], ["op"])["op"])[0][-1] == "-"
