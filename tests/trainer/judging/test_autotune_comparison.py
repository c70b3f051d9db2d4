"""A model beside max-autotune: figures that were worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from synthetic import MM, examples

from diode_store.errors import DatasetError
from diode_store.exchange.foreign.max_autotune_solution import Choice, MaxAutotuneSolution
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.judging.autotune_comparison import TOP_NS, Comparison, analysis, compare_with_autotune, named_by
from diode_trainer.scoring import Prediction

if TYPE_CHECKING:
    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape

# Of examples(): the vendor's kernel, then tiles 16x64x64 with 2 and with 4 stages, then 32x32x128.
SECOND = Choice({"block_m": 16, "block_n": 64, "block_k": 64, "num_stages": 4})
BOTH = Choice({"block_m": 16, "block_n": 64, "block_k": 64})
OTHER = replace(MM, op="addmm", m=512)


class Known:
    """A model that predicts what it was told to."""

    def __init__(self, *predicted: float) -> None:
        self.predicted = np.array(predicted)

    def predict(self, _shape: ProblemShape, _device: Hardware, columns: ConfigColumns) -> Prediction:
        """Return the first of what it was told."""
        return Prediction.without_members(self.predicted[: len(columns)])


def compared(model: Known, *found: Any, choices: tuple[Choice, ...] = (SECOND,), vendor: bool = True) -> Comparison:
    """Compare a known model on a few problems."""
    solution = MaxAutotuneSolution(choices)
    return compare_with_autotune(model, ExampleSet(found), solution, vendor=vendor)  # type: ignore[arg-type]


def test_what_both_choose() -> None:
    """Max-autotune takes the fastest of what it times, the vendor's kernel included; the model what it ranks first."""
    problem = examples([30.0, 10.0, 20.0, 40.0])
    (found,) = compared(Known(9.0, 3.0, 2.0, 1.0), problem).problems
    assert (found.autotune_us, found.model_us[0], found.model_us[1]) == (20.0, 40.0, 10.0)
    (found,) = compared(Known(9.0, 1.0, 2.0, 3.0), examples([15.0, 10.0, 20.0, 40.0])).problems
    assert (found.autotune_us, found.model_us[0]) == (15.0, 10.0)


def test_without_the_vendor() -> None:
    """Neither side may choose its kernel."""
    (found,) = compared(Known(1.0, 9.0, 2.0, 3.0), examples([5.0, 10.0, 20.0, 40.0]), vendor=False).problems
    assert (found.autotune_us, found.model_us[0]) == (20.0, 20.0)


def test_configs_that_a_solution_names() -> None:
    """What it does not say may be anything; a config is found as Inductor fits it to a small problem, too."""
    problem = examples([30.0, 10.0, 20.0, 40.0])
    assert named_by(MaxAutotuneSolution((SECOND,)), problem).tolist() == [False, False, True, False]
    assert named_by(MaxAutotuneSolution((BOTH,)), problem).tolist() == [False, True, True, False]
    whole = Choice(
        {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_stages": 2, "num_warps": 8}, "triton_mm"
    )
    small = examples([30.0, 10.0, 20.0, 40.0], replace(MM, m=16))
    assert named_by(MaxAutotuneSolution((whole,)), small).tolist() == [False, True, False, False]
    assert not named_by(MaxAutotuneSolution((whole,)), problem).any()
    assert not named_by(MaxAutotuneSolution((replace(BOTH, name="triton_mm_persistent_tma"),)), problem).any()


def test_problems_that_are_left_out() -> None:
    """Those on which nothing of the solution was timed, and those that the model cannot rank, are counted."""
    failed = examples([30.0, 10.0, math.inf, 40.0])
    alone = examples([math.inf, math.inf, 20.0, math.inf])
    found = compared(Known(1.0, 2.0, 3.0, 4.0), examples([1.0, 2.0, 3.0, 4.0]), failed, alone)
    assert (len(found.problems), found.not_in_solution, found.not_ranked) == (1, 1, 1)
    with pytest.raises(DatasetError, match="on 1 no kernel of the solution was timed, of 1 the model ranks no choice"):
        compared(Known(1.0, 2.0, 3.0, 4.0), failed, alone)
    with pytest.raises(DatasetError, match="on 0 no kernel of the solution was timed, of 1 the model ranks no choice"):
        compared(Known(*[math.inf] * 4), examples([1.0, 2.0, 3.0, 4.0]))


@pytest.fixture
def figures() -> dict[str, Any]:
    """Return the figures of three problems: ratios 2, 1 and a half at one tried choice."""
    model = Known(9.0, 1.0, 2.0, 3.0)
    problems = (
        examples([99.0, 10.0, 20.0, 40.0]),
        examples([99.0, 20.0, 20.0, 40.0], replace(MM, m=256)),
        examples([99.0, 40.0, 20.0, 40.0], OTHER),
    )
    return analysis(compared(model, *problems))


def test_figures_by_hand(figures: dict[str, Any]) -> None:
    """Counts, means and percentiles of the ratios; times in milliseconds."""
    top = figures["overall"]["top_1"]
    assert (top["top_n"], top["shapes_analyzed"]) == (1, 3)
    breakdown = top["performance_breakdown"]
    third = pytest.approx(100 / 3)
    assert breakdown["model_better"] == {"count": 1, "percentage": third, "avg_speedup": 2.0, "best_speedup": 2.0}
    assert breakdown["model_worse"] == {
        "count": 1,
        "percentage": third,
        "avg_slowdown": 0.5,
        "best_slowdown": 0.5,
        "worst_slowdown": 0.5,
    }
    assert breakdown["model_equal"] == {"count": 1, "percentage": third}
    assert top["overall_metrics"] == {
        "avg_speedup_ratio": pytest.approx(3.5 / 3),
        "geomean_speedup_ratio": pytest.approx(1.0),
        "median_speedup_ratio": 1.0,
        "std_speedup_ratio": pytest.approx(math.sqrt(7 / 18)),
        "total_time_saved_pct": pytest.approx(-100 / 6),
        "best_case": 2.0,
        "worst_case": 0.5,
    }
    assert top["raw_times"] == {"total_model_time": pytest.approx(0.07), "total_ma_time": pytest.approx(0.06)}
    assert (top["distribution"]["p50"], top["distribution"]["p75"]) == (1.0, 1.5)


def test_shape_of_the_file(figures: dict[str, Any]) -> None:
    """The names are those that upstream's script wrote, for each op and number of tried choices."""
    assert figures.keys() == {"per_op", "overall"}
    assert list(figures["per_op"]) == ["addmm", "mm"]
    assert list(figures["per_op"]["mm"]) == [f"top_{n}" for n in TOP_NS] == list(figures["overall"])
    top = figures["per_op"]["mm"]["top_1"]
    shared = {"top_n", "shapes_analyzed", "performance_breakdown", "overall_metrics", "distribution", "raw_times"}
    assert top.keys() == {"op", "shape_details", *shared}
    assert list(top["distribution"]) == ["p10", "p25", "p50", "p75", "p90", "p95", "p99"]
    first, second = top["shape_details"]
    assert first.keys() == {"shape", "model_time", "ma_time", "speedup_ratio", "performance"}
    assert (first["performance"], second["performance"]) == ("better", "equal")
    shape = json.loads(first["shape"])
    assert (shape["B"], shape["M"], shape["N"], shape["K"]) == (1, 1024, 1024, 1024)
    assert [detail["op"] for detail in figures["overall"]["top_1"]["shape_details"]] == ["mm", "mm", "addmm"]


def test_with_enough_tries_the_model_finds_the_best(figures: dict[str, Any]) -> None:
    """More than there are choices means all of them."""
    assert figures["overall"]["top_500"]["overall_metrics"]["worst_case"] == 1.0
    assert figures["per_op"]["mm"]["top_500"]["performance_breakdown"]["model_worse"]["worst_slowdown"] == 0.0
