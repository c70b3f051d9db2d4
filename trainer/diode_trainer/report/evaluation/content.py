"""Contents of an evaluation report: headline figures, then sections of pictures and tables."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from diode_store.command_line.render import counted
from diode_trainer.judging.metrics import KS
from diode_trainer.judging.slices import SLICES, slices
from diode_trainer.report.evaluation import calibration_pictures, pictures, rows
from diode_trainer.report.evaluation.tables import parts_table, rankings_table, worst_table
from diode_trainer.report.parts import Fact, Facts, Note, Picture, Section, drawn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from diode_trainer.judging.judgement import ProblemJudgement
    from diode_trainer.judging.metrics import Report
    from diode_trainer.report.evaluation.rows import LossPoint
    from diode_trainer.report.evaluation.spread import Foreseen
    from diode_trainer.report.parts import Part

WORST = 20
"""Number of problems in a list of the costliest."""
_CURVED = 2
"""Number of baselines with a curve."""
_TENTH, _QUARTER = 0.1, 0.25
_TERMS = (
    "Regret is the time of the choice over the time of the best measured config: 1 is perfect, 1.05 is 5% slower."
    " Regret@k takes the best of the first k configs. A pick is tied if it is within the timing noise of the best."
    " Oracle is the best time over the pick's time. Only configs that ran count."
)
_UNNAMED = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Judged:
    """A model and its baselines on the same problems. The model comes first in every mapping."""

    title: str
    """Choices and problems that count: ``All choices: 24 problems``."""
    model: str
    """The model's name in the mappings."""
    reports: Mapping[str, Report]
    regrets: Mapping[str, NDArray[np.float64]]
    """Regrets of shape (m, len(KS)) by ranking, for rankings that have them; NaN if a ranking has no answer."""
    judgements: tuple[ProblemJudgement, ...]
    """The model's judgements."""
    left_out: tuple[str, ...] = ()
    """A line for each baseline that could not be judged."""


@dataclass(frozen=True)
class Evidence:
    """Everything that a report is made of."""

    heading: str
    summary: str
    """One sentence: what was judged, on which problems, and how."""
    judged: tuple[Judged, ...]
    """Each has a table; the pictures show the first."""
    notes: tuple[str, ...] = ()
    """Warnings, shown before the figures."""
    facts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Heading → name → value, for the model and the data."""
    foreseen: Foreseen | None = None
    """Predicted losses of the first ``judged``; None for a model of one member."""
    history: tuple[LossPoint, ...] = ()
    no_history: str = ""
    """Reason why the history is missing."""


@dataclass(frozen=True)
class Content:
    """A whole report."""

    heading: str
    summary: str
    notes: tuple[Note, ...]
    figures: Facts
    sections: tuple[Section, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything below the heading, in order."""
        return *self.notes, self.figures, *self.sections

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, in the order of the page."""
        return [part for section in self.sections for part in section.parts if isinstance(part, Picture)]


def compose(evidence: Evidence) -> Content:
    """Return the report of ``evidence``."""
    main = evidence.judged[0]
    return Content(
        heading=evidence.heading,
        summary=evidence.summary,
        notes=tuple(Note(note, is_alarm=True) for note in evidence.notes),
        figures=_figures(main),
        sections=(
            _rankings(evidence.judged),
            _problems(main),
            _calibration(main, evidence.foreseen),
            _slices(main),
            _worst(main),
            _learning(evidence),
            *([_origin(evidence.facts)] if evidence.facts else ()),
        ),
    )


def _figures(judged: Judged) -> Facts:
    own = judged.reports[judged.model]
    first, fifth = own.regret[1], own.regret[5]
    facts = [
        Fact("first pick", f"{first.geomean:.4f}", "regret@1, geometric mean; 1 is perfect"),
        Fact("best of its first 5", f"{fifth.geomean:.4f}", "regret@5, geometric mean"),
        Fact("worst first pick", f"{first.max:.2f}", f"regret@1; worst regret@5: {fifth.max:.2f}"),
        Fact("within 2%", f"{100 * own.within_2pct:.1f}%", f"within 5%: {100 * own.within_5pct:.1f}%"),
        Fact(
            "tied with the best",
            f"{100 * own.within_noise:.1f}%",
            f"mean share of the best speed: {100 * own.share_of_oracle.mean:.1f}%",
        ),
    ]
    others = [(name, report) for name, report in judged.reports.items() if name != judged.model]
    if others:
        name, best = min(others, key=lambda item: item[1].regret[1].geomean)
        facts.append(Fact("best baseline", f"{best.regret[1].geomean:.4f}", f"regret@1 of {name}"))
    return Facts("figures", "Figures", tuple(facts), is_headline=True)


def _rankings(judged: Sequence[Judged]) -> Section:
    main = judged[0]
    losses = rows.ranking_losses(_ordered(main))
    parts = (
        drawn("regret-by-ranking", pictures.regret_by_ranking(losses)),
        *_ranking_tables(judged),
        drawn("regret-ecdf", pictures.regret_ecdf(rows.curve_points(_curves(main)))),
    )
    return Section("rankings", "Beside simpler rankings", parts, _TERMS)


def _ranking_tables(judged: Sequence[Judged]) -> Iterator[Part]:
    for place, one in enumerate(judged, 1):
        yield rankings_table(f"rankings-{place}", one.title, _ordered(one), {one.model})
        yield from left_out(one.left_out)


def left_out(lines: Sequence[str]) -> Iterator[Note]:
    """Yield which baselines could not be judged, if any."""
    if lines:
        yield Note(f"{'. '.join(lines).replace('left out', 'Left out')}.")


def _curves(judged: Judged) -> dict[str, NDArray[np.float64]]:
    """Return the regrets that get a curve: the model's, and its best baselines' that answered anything."""
    own = judged.regrets[judged.model]
    others = [name for name in _ordered(judged) if name in judged.regrets and name != judged.model]
    first = {name: _answered(judged.regrets[name][:, 0]) for name in others}
    baselines = [(name, regret) for name, regret in first.items() if len(regret)][:_CURVED]
    return {
        f"{judged.model}, first pick": own[:, 0],
        **dict(baselines),
        f"{judged.model}, best of 5": own[:, KS.index(5)],
    }


def _ordered(judged: Judged) -> dict[str, Report]:
    """Return the model's report, then the baselines', best first."""
    return dict(
        sorted(judged.reports.items(), key=lambda item: (item[0] != judged.model, item[1].regret[1].geomean, item[0]))
    )


def _problems(judged: Judged) -> Section:
    found = judged.judgements
    scatter = pictures.predicted_against_measured(rows.density_cells(found), rows.pick_points(found))
    shown = min(sum(math.isfinite(j.chosen_predicted_us) for j in found), rows.MOST_PICKS)
    fewer = f"{shown:,} of {counted(len(found), 'problem')} are shown, the costliest among them."
    parts = (
        drawn("predicted-against-measured", scatter, fewer if shown < len(found) else ""),
        drawn("regret-map", pictures.regret_map(rows.map_cells(found))),
    )
    return Section("each-problem", "Problem by problem", parts, is_grid=True)


def _calibration(judged: Judged, foreseen: Foreseen | None) -> Section:
    found = judged.judgements
    ratios = calibration_pictures.calibration_of_ratios(rows.ratio_bands(found))
    parts: list[Part] = [drawn("calibration-of-ratios", ratios)]
    if foreseen is None:
        parts.append(Note("The model has one member, so it predicts no loss of its own."))
    else:
        lost = np.log([j.regret[1] for j in found])
        spread = calibration_pictures.calibration_of_spread(
            rows.spread_groups(foreseen.loss, lost), is_calibrated=foreseen.is_calibrated
        )
        certainty = calibration_pictures.calibration_of_certainty(
            rows.certainty_groups(foreseen.within_2pct, lost), is_calibrated=foreseen.is_calibrated
        )
        parts.append(drawn("calibration-of-spread", spread, _foretold(foreseen, lost)))
        parts.append(drawn("calibration-of-certainty", certainty))
    return Section("calibration", "Calibration", tuple(parts), is_grid=True)


def _foretold(foreseen: Foreseen, lost: NDArray[np.float64]) -> str:
    """Return how much of the loss falls on the problems with the greatest expected loss."""
    expected = foreseen.loss
    order, total = np.argsort(-expected, kind="stable"), float(lost.sum())
    if not total:
        return "Nothing was lost."
    tenth, quarter = (
        100 * float(lost[order[: max(round(share * len(order)), 1)]].sum()) / total for share in (_TENTH, _QUARTER)
    )
    return (
        f"The tenth of the problems with the greatest expected loss has {tenth:.0f}% of the loss, the quarter"
        f" {quarter:.0f}%. The mean expected loss was {100 * math.expm1(expected.mean()):.2f}%, the mean loss"
        f" {100 * math.expm1(lost.mean()):.2f}%."
    )


def _slices(judged: Judged) -> Section:
    cut = slices(judged.judgements, SLICES)
    losses = {by: rows.part_losses(parts) for by, parts in cut.items() if len(parts) > 1}
    most = rows.most_loss(row for part in losses.values() for row in part)
    parts = tuple(
        part
        for by, losses_of in losses.items()
        for part in (
            drawn(f"regret-by-{by}", pictures.regret_by_part(losses_of, by, most)),
            parts_table(by, cut[by]),
        )
    )
    alike = [f"{by}: {only}" for by, found in cut.items() if by not in losses for only in found]
    text = f"All problems are alike in {'; '.join(alike)}." if alike else ""
    return Section("parts", "Part by part", parts, text, is_grid=True)


def _worst(judged: Judged) -> Section:
    found = sorted(judged.judgements, key=lambda j: -j.regret[1])[:WORST]
    times = drawn("worst-times", pictures.worst_times(rows.worst_times(found)))
    return Section("worst", "Worst problems", (times, worst_table(found)))


def _learning(evidence: Evidence) -> Section:
    part = (
        drawn("learning-curve", pictures.learning_curve(evidence.history))
        if evidence.history
        else Note(f"Left out: {evidence.no_history}.")
    )
    return Section("learning", "Training", (part,))


def _origin(facts: Mapping[str, Mapping[str, object]]) -> Section:
    parts = tuple(
        Facts(
            f"origin-{_UNNAMED.sub('-', heading.lower())}",
            heading,
            tuple(Fact(name, str(value)) for name, value in values.items()),
        )
        for heading, values in facts.items()
    )
    return Section("origin", "Model and data", parts)


def _answered(regret: NDArray[np.float64]) -> NDArray[np.float64]:
    return regret[np.isfinite(regret)]
