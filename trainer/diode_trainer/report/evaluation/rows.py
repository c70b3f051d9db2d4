"""Rows of pictures, computed from judged problems.

Numbers are rounded to what a picture can show, so that equal evaluations give equal pages on any machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diode_store.command_line.render import problem_text
from diode_store.values.units import KIB
from diode_trainer.uncertainty import WITHIN as WITHIN_2PCT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from diode_trainer.judging.judgement import ProblemJudgement
    from diode_trainer.judging.metrics import Report
    from diode_trainer.training.train import EpochReport

    Floats = NDArray[np.float64]

WITHIN, BEYOND = "up to 5% slower", "over 5% slower"
"""Verdicts on a first pick, against the best measured config."""
FIRST_PICK, BEST_OF_5 = "first pick", "best of 5"
LEARNED_FROM, HELD_OUT = "learned from", "held out"
"""Problems as a fit sees them."""
PREDICTED, PICKED, BEST, ROOFLINE = "pick, predicted", "pick, measured", "best measured", "roofline"
"""Times of one problem."""
MOST_PICKS = 4000
"""Maximum points of a picture. Beyond, the costliest problems are shown and an even sample of the rest."""
_BEYOND_REGRET = 1.05
_DIGITS = 4
_CELLS_A_DECADE = 12
"""Resolution of the shades behind the first picks, in either direction."""
_CURVE_POINTS = 300
_RATIO_BINS = 24
_FEWEST_IN_BIN = 20
_SPREAD_GROUPS = 10
_PLAIN_BELOW = 16_384


class RankingLoss(NamedTuple):
    """Loss of one ranking at one k."""

    ranking: str
    k: int
    loss_pct: float
    regret: float
    p95: float
    worst: float
    problems: int


class PickPoint(NamedTuple):
    """The first pick of one problem."""

    problem: str
    config: str
    predicted_us: float
    measured_us: float
    best_us: float
    loss_pct: float
    verdict: str


class DensityCell(NamedTuple):
    """Number of configs with times in one cell of a grid."""

    measured_low: float
    measured_high: float
    predicted_low: float
    predicted_high: float
    configs: int


class MapCell(NamedTuple):
    """Problems with M and N in one octave each."""

    m: str
    n: str
    m_from: int
    n_from: int
    problems: int
    loss_pct: float
    worst_pct: float
    worst: str


class CurvePoint(NamedTuple):
    """Share of problems on which a ranking loses no more than a given amount."""

    ranking: str
    loss_pct: float
    share_pct: float


class LossPoint(NamedTuple):
    """Loss of one fit after one epoch."""

    fit: str
    part: str
    epoch: int
    loss: float


class RatioBand(NamedTuple):
    """Measured slowdowns against the pick, for configs with about the same predicted slowdown."""

    predicted: float
    low: float
    median: float
    high: float
    configs: int


class SpreadGroup(NamedTuple):
    """Problems with about the same expected loss, and their loss."""

    expected_pct: float
    loss_pct: float
    share_pct: float
    problems: int


class CertaintyGroup(NamedTuple):
    """Problems with about the same predicted probability that the first pick is within 2%, and the observed share."""

    said_pct: float
    was_pct: float
    problems: int


class PartLoss(NamedTuple):
    """Loss in one part of the problems."""

    part: str
    tried: str
    loss_pct: float
    regret: float
    worst: float
    problems: int


class WorstTime(NamedTuple):
    """One of the times of a costly pick's problem."""

    problem: str
    kind: str
    us: float
    config: str


def ranking_losses(reports: Mapping[str, Report]) -> list[RankingLoss]:
    """Return the losses of each ranking at each k, in the order of ``reports``."""
    return [
        RankingLoss(
            name, k, _loss_pct(of.geomean), _short(of.geomean, 6), _short(of.p95), _short(of.max), report.problems
        )
        for name, report in reports.items()
        for k, of in report.regret.items()
    ]


def pick_points(judgements: Sequence[ProblemJudgement]) -> list[PickPoint]:
    """Return a point for each problem. The costly ones come last and are drawn on top."""
    ordered = sorted(judgements, key=lambda j: j.regret[1])
    ordered = [j for j in ordered if math.isfinite(j.chosen_predicted_us)]
    if len(ordered) > MOST_PICKS:
        costly = [j for j in ordered if j.regret[1] > _BEYOND_REGRET][-MOST_PICKS // 2 :]
        others = ordered[: len(ordered) - len(costly)]
        every = math.ceil(len(others) / (MOST_PICKS - len(costly)))
        ordered = [*others[::every], *costly]
    return [
        PickPoint(
            problem_text(j.shape),
            j.chosen.describe(),
            _short(j.chosen_predicted_us),
            _short(j.chosen_us),
            _short(j.best_us),
            _loss_pct(j.regret[1]),
            BEYOND if j.regret[1] > _BEYOND_REGRET else WITHIN,
        )
        for j in ordered
    ]


def density_cells(judgements: Sequence[ProblemJudgement]) -> list[DensityCell]:
    """Return the number of configs in each cell of a logarithmic grid, without empty cells."""
    measured = np.concatenate([j.measured_us for j in judgements])
    predicted = np.concatenate([j.predicted_us for j in judgements])
    possible = np.isfinite(predicted)
    cells = np.stack([_cell(measured[possible]), _cell(predicted[possible])])
    found, counts = np.unique(cells, axis=1, return_counts=True)
    return [
        DensityCell(*_edges(x), *_edges(y), int(count)) for (x, y), count in zip(found.T.tolist(), counts, strict=True)
    ]


def map_cells(judgements: Sequence[ProblemJudgement]) -> list[MapCell]:
    """Return the loss by octaves of M and N."""
    octaves: dict[tuple[int, int], list[ProblemJudgement]] = defaultdict(list)
    for judgement in judgements:
        octaves[_octave(judgement.shape.m), _octave(judgement.shape.n)].append(judgement)
    cells = []
    for (m, n), some in sorted(octaves.items()):
        worst = max(some, key=lambda j: j.regret[1])
        geomean = math.exp(sum(math.log(j.regret[1]) for j in some) / len(some))
        losses = len(some), _loss_pct(geomean), _loss_pct(worst.regret[1])
        cells.append(MapCell(size_text(m), size_text(n), m, n, *losses, problem_text(worst.shape)))
    return cells


def curve_points(regrets: Mapping[str, Floats]) -> list[CurvePoint]:
    """Return the distribution of each ranking's regrets, shape (m,) each, by at most ``_CURVE_POINTS`` points."""
    points = []
    for name, regret in regrets.items():
        ordered = np.sort(regret)
        # Of equal losses, the last gives the share. Of many distinct losses, a sample is enough.
        last = np.flatnonzero(np.append(np.diff(ordered) > 0, True))
        kept = last[np.unique(np.linspace(0, len(last) - 1, _CURVE_POINTS).astype(int))]
        points += [CurvePoint(name, _loss_pct(ordered[i]), _short(100 * (i + 1) / len(ordered))) for i in kept.tolist()]
    return points


def ratio_bands(judgements: Sequence[ProblemJudgement]) -> list[RatioBand]:
    """Return measured and predicted time ratios to the first pick, of all other configs with a median time."""
    predicted, measured = [], []
    for j in judgements:
        counts = np.isfinite(j.predicted_us) & ~j.is_estimate
        counts[int(np.argmin(j.predicted_us))] = False
        if math.isfinite(j.chosen_predicted_us):
            predicted.append(j.predicted_us[counts] / j.chosen_predicted_us)
            measured.append(j.measured_us[counts] / j.chosen_us)
    if not predicted:
        return []
    ratio, happened = np.concatenate(predicted), np.concatenate(measured)
    order = np.argsort(ratio, kind="stable")
    bins = min(max(len(order) // _FEWEST_IN_BIN, 1), _RATIO_BINS)
    bands = []
    for some in np.array_split(order, bins) if len(order) else ():
        low, median, high = np.percentile(happened[some], (10, 50, 90))
        middle = float(np.median(ratio[some]))
        bands.append(RatioBand(_short(middle), _short(low), _short(median), _short(high), len(some)))
    return bands


def spread_groups(expected: Floats, lost: Floats) -> list[SpreadGroup]:
    """Return the loss in tenths of the problems, ordered by expected loss.

    Args:
        expected: (m,) natural logarithms of the expected regret.
        lost: (m,) natural logarithms of the measured regret.
    """
    total = float(lost.sum())
    groups = np.array_split(np.argsort(expected, kind="stable"), min(_SPREAD_GROUPS, len(lost)))
    return [
        SpreadGroup(
            _loss_pct(math.exp(float(expected[some].mean()))),
            _loss_pct(math.exp(float(lost[some].mean()))),
            _short(100 * float(lost[some].sum()) / total) if total else 0.0,
            len(some),
        )
        for some in groups
    ]


def certainty_groups(within_2pct: Floats, lost: Floats, most: int = _SPREAD_GROUPS) -> list[CertaintyGroup]:
    """Return how often a predicted probability came true, in groups of about equally many problems.

    Args:
        within_2pct: (m,) predicted probabilities that the first pick is within 2% of the best.
        lost: (m,) natural logarithms of its regret.
        most: maximum number of groups.
    """
    was = lost <= WITHIN_2PCT
    order = np.argsort(within_2pct, kind="stable")
    said = within_2pct[order]
    # Equal probabilities stay together.
    edges = np.flatnonzero(np.diff(said)) + 1
    if len(edges) >= most:
        wanted = np.linspace(0, len(said), most + 1)[1:-1]
        edges = np.unique(edges[np.searchsorted(edges, wanted).clip(0, len(edges) - 1)])
    return [
        CertaintyGroup(_short(100 * within_2pct[some].mean()), _short(100 * was[some].mean()), len(some))
        for some in np.split(order, edges)
    ]


def loss_points(fits: Iterable[tuple[str, Sequence[EpochReport]]]) -> list[LossPoint]:
    """Return the losses of each named fit after each epoch. Most fits validate only some epochs."""
    return [
        LossPoint(name, part, report.epoch, _short(loss))
        for name, history in fits
        for report in history
        for part, loss in ((LEARNED_FROM, report.training_loss), (HELD_OUT, report.validation_loss))
        if loss is not None and loss > 0  # the axis is logarithmic
    ]


def part_losses(parts: Mapping[str, Report]) -> list[PartLoss]:
    """Return two rows for each part, in their order."""
    return [
        PartLoss(part, tried, _loss_pct(of.geomean), _short(of.geomean, 6), _short(of.max), report.problems)
        for part, report in parts.items()
        for tried, of in ((FIRST_PICK, report.regret[1]), (BEST_OF_5, report.regret[5]))
    ]


def worst_times(judgements: Iterable[ProblemJudgement]) -> list[WorstTime]:
    """Return four times for each problem, without infinite predictions."""
    rows = []
    for number, j in enumerate(judgements, 1):
        problem = f"{number}. {problem_text(j.shape)}"
        chosen, best = j.chosen.describe(), j.best.describe()
        rows += [
            WorstTime(problem, ROOFLINE, _short(j.roofline_us), ""),
            WorstTime(problem, BEST, _short(j.best_us), best),
            WorstTime(problem, PREDICTED, _short(j.chosen_predicted_us), chosen),
            WorstTime(problem, PICKED, _short(j.chosen_us), chosen),
        ]
    return [row for row in rows if math.isfinite(row.us)]


def most_loss(rows: Iterable[RankingLoss | CurvePoint | PartLoss]) -> float:
    """Return the greatest loss of rows, 0 without any."""
    return max((row.loss_pct for row in rows), default=0.0)


def size_text(size: int) -> str:
    """Return a power of two in short: 4096, 16k, 1M."""
    if size < _PLAIN_BELOW:
        return str(size)
    return f"{size // KIB}k" if size < KIB**2 else f"{size // KIB**2}M"


def _octave(size: int) -> int:
    """Return the greatest power of two that is at most ``size``."""
    return 1 << (size.bit_length() - 1)


def _cell(times: Floats) -> NDArray[np.int_]:
    cell: NDArray[np.int_] = np.floor(np.log10(times) * _CELLS_A_DECADE).astype(np.int_)
    return cell


def _edges(cell: int) -> tuple[float, float]:
    return _short(10 ** (cell / _CELLS_A_DECADE)), _short(10 ** ((cell + 1) / _CELLS_A_DECADE))


def _loss_pct(regret: float) -> float:
    return round(100 * (regret - 1), _DIGITS)


def _short(value: Any, digits: int = _DIGITS) -> float:
    return float(f"{value:.{digits}g}")
