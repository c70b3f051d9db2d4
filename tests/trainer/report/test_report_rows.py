from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import MM, examples

from diode_trainer.judging.judgement import judge_problems
from diode_trainer.report.evaluation import rows
from diode_trainer.scoring import Prediction
from diode_trainer.training.train import EpochReport

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_trainer.judging.judgement import ProblemJudgement

SMALL = replace(MM, m=48, n=100)
"""In the octaves from 32 and from 64."""


def judgement(runtimes: list[float], predicted: list[float], shape: object = MM) -> ProblemJudgement:
    """Return one judged problem."""
    (found,) = judge_problems([examples(runtimes, shape)], [Prediction.without_members(np.array(predicted))])  # type: ignore[arg-type]
    return found


GOOD = judgement([10.0, 20.0], [9.0, 30.0])
BAD = judgement([15.0, 10.0], [9.0, 30.0], SMALL)


def test_losses_are_percent_over_the_best() -> None:
    """A pick of 15 us where 10 was possible is 50% slower; one that is best has lost nothing."""
    points = rows.pick_points([BAD, GOOD])
    assert [(p.loss_pct, p.verdict) for p in points] == [(0.0, rows.WITHIN), (50.0, rows.BEYOND)]
    assert (points[1].predicted_us, points[1].measured_us, points[1].best_us) == (9.0, 15.0, 10.0)


def test_picks_that_are_impossible_have_no_place() -> None:
    """A model that considers every config impossible predicts infinity, which no axis has."""
    impossible = judgement([10.0, 20.0], [math.inf, math.inf])
    assert rows.pick_points([impossible]) == []
    assert rows.density_cells([impossible]) == []
    assert rows.ratio_bands([impossible]) == []
    assert {row.kind for row in rows.worst_times([impossible])} == {rows.ROOFLINE, rows.BEST, rows.PICKED}


def test_of_many_problems_the_costliest_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more points than a picture can show; the costly ones are among them."""
    monkeypatch.setattr(rows, "MOST_PICKS", 10)
    points = rows.pick_points([GOOD] * 100 + [BAD] * 3)
    assert len(points) <= 10
    assert [p.loss_pct for p in points[-3:]] == [50.0] * 3


def test_shades_count_configs() -> None:
    """Every config with a finite prediction is in one cell, which holds its times."""
    cells = rows.density_cells([GOOD, BAD])
    assert sum(cell.configs for cell in cells) == 4
    assert any(c.measured_low <= 20 < c.measured_high and c.predicted_low <= 30 < c.predicted_high for c in cells)


def test_map_by_octaves() -> None:
    """A problem is in the octaves of its M and N; a cell has the geometric mean and the worst of its problems."""
    cells = rows.map_cells([GOOD, BAD, judgement([10.0, 10.0], [1.0, 2.0], SMALL)])
    assert [(c.m, c.n, c.problems, c.worst_pct) for c in cells] == [("32", "64", 2, 50.0), ("1024", "1024", 1, 0.0)]
    assert cells[0].loss_pct == pytest.approx(100 * (math.sqrt(1.5) - 1), abs=1e-3)
    assert cells[0].worst == "mm bf16 48x100x1024 nn"


@pytest.mark.parametrize(("size", "text"), [(8, "8"), (8192, "8192"), (16384, "16k"), (2**20, "1M")])
def test_sizes_as_people_say_them(size: int, text: str) -> None:
    """Long powers of two are shortened."""
    assert rows.size_text(size) == text


def test_distribution_by_hand() -> None:
    """Of four problems two lose nothing, one 10% and one 100%."""
    points = rows.curve_points({"a": np.array([1.1, 1.0, 2.0, 1.0])})
    assert [(p.loss_pct, p.share_pct) for p in points] == [(0.0, 50.0), (10.0, 75.0), (100.0, 100.0)]


def test_distribution_of_many_problems_keeps_its_ends() -> None:
    """However many problems there are, the curve begins and ends where it does."""
    points = rows.curve_points({"a": np.linspace(1, 2, 5001)})
    assert len(points) <= 300
    assert (points[0].loss_pct, points[-1].loss_pct, points[-1].share_pct) == (0.0, 100.0, 100.0)


def test_measured_ratios_of_predicted_ones(judgements: tuple[ProblemJudgement, ...]) -> None:
    """Ratios rise, bands are in order, and every config but the picks and the estimates is in one."""
    bands = rows.ratio_bands(judgements)
    assert [b.predicted for b in bands] == sorted(b.predicted for b in bands)
    assert all(b.low <= b.median <= b.high for b in bands)
    timed = sum(int((~j.is_estimate).sum()) for j in judgements)
    picked = sum(not j.is_estimate[np.argmin(j.predicted_us)] for j in judgements)
    assert sum(b.configs for b in bands) == timed - picked


def lost(*judgements: ProblemJudgement) -> NDArray[np.float64]:
    """Return the logarithms of the regrets."""
    logs: NDArray[np.float64] = np.log([j.regret[1] for j in judgements])
    return logs


def test_spread_in_groups_by_hand() -> None:
    """Two problems are two groups, the one with less expected loss first; the shares are of all loss."""
    groups = rows.spread_groups(np.log([1.2, 1.0]), lost(BAD, GOOD))
    assert [(g.expected_pct, g.loss_pct, g.share_pct) for g in groups] == [(0.0, 0.0, 0.0), (20.0, 50.0, 100.0)]


def test_spread_where_nothing_was_lost() -> None:
    """Shares of no loss are none."""
    assert [g.share_pct for g in rows.spread_groups(np.zeros(2), lost(GOOD, GOOD))] == [0.0, 0.0]


def test_certainty_by_hand() -> None:
    """What is said alike is one group, the least likely first; the share is of picks within 2%."""
    groups = rows.certainty_groups(np.array([1.0, 0.5, 1.0, 1.0]), lost(GOOD, BAD, BAD, GOOD))
    assert [(g.said_pct, g.was_pct, g.problems) for g in groups] == [(50.0, 0.0, 1), (100.0, 66.67, 3)]


def test_certainty_of_many_words() -> None:
    """However many probabilities there are, the groups are few, and every problem is in one."""
    groups = rows.certainty_groups(np.linspace(0, 1, 200), lost(*[GOOD] * 200))
    assert (len(groups), sum(g.problems for g in groups)) == (10, 200)
    assert [g.said_pct for g in groups] == sorted(g.said_pct for g in groups)


def test_losses_of_fits() -> None:
    """Epochs without validation have one point; the others two."""
    fits = [("final", [EpochReport(1, 2, 0.5, None), EpochReport(2, 2, 0.25, 0.3)])]
    assert rows.loss_points(fits) == [
        ("final", rows.LEARNED_FROM, 1, 0.5),
        ("final", rows.LEARNED_FROM, 2, 0.25),
        ("final", rows.HELD_OUT, 2, 0.3),
    ]


def test_times_of_a_costly_pick() -> None:
    """Each problem has its least possible, best, predicted and measured time, with the configs' names."""
    found = {row.kind: (row.us, row.config) for row in rows.worst_times([BAD])}
    assert found[rows.BEST] == (10.0, "triton::mm 16x64x64 s2 w4")
    assert found[rows.PICKED] == (15.0, "aten::mm")
    assert found[rows.PREDICTED] == (9.0, "aten::mm")
    assert 2.0 < found[rows.ROOFLINE][0] < 10.0
