"""What a report says, before it is a page: headline figures, tables and pictures, in their order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.render import counted
from diode_trainer.judging.metrics import KS
from diode_trainer.judging.slices import SLICES, slices
from diode_trainer.report import calibration_pictures, pictures, rows
from diode_trainer.report.specification import most_loss
from diode_trainer.report.tables import Table, parts_table, standing_table, worst_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from diode_trainer.judging.judgement import ProblemJudgement
    from diode_trainer.judging.metrics import Report
    from diode_trainer.report.rows import LossPoint
    from diode_trainer.report.spread import Foreseen

WORST = 20
"""Problems among the costliest."""
_CURVED = 2
"""Baselines whose distribution is shown."""
_LONG = 10
"""Rows."""
_TENTH, _QUARTER = 0.1, 0.25


@dataclass(frozen=True)
class Judged:
    """A model and its baselines, judged on the same problems; the model comes first in every mapping."""

    title: str
    """Which choices of which problems: ``All choices: 24 problems``."""
    model: str
    """The model's name in the mappings."""
    reports: Mapping[str, Report]
    regrets: Mapping[str, NDArray[np.float64]]
    """(m, len(KS)) each, of the rankings for which it is known; NaN where a ranking has no answer."""
    judgements: tuple[ProblemJudgement, ...]
    """The model's."""
    left_out: tuple[str, ...] = ()
    """A line for each baseline that could not be judged."""


@dataclass(frozen=True)
class Evidence:
    """All that a report is made of."""

    heading: str
    summary: str
    """One sentence: what was judged, by what, and how."""
    judged: tuple[Judged, ...]
    """The first one is what the pictures show; each has a table."""
    notes: tuple[str, ...] = ()
    """What a reader must know before the figures."""
    facts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Heading → name → value: the model's and the data's."""
    foreseen: Foreseen | None = None
    """Of the first ``judged``; None where the members cannot disagree."""
    history: tuple[LossPoint, ...] = ()
    no_history: str = ""
    """Why there is none."""


@dataclass(frozen=True)
class Tile:
    """One headline figure."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Picture:
    """One picture; its name is that of its files."""

    name: str
    spec: dict[str, Any]

    @property
    def title(self) -> str:
        """What one sees."""
        return str(self.spec["title"]["text"])

    @property
    def direction(self) -> str:
        """Which direction is good."""
        return str(self.spec["title"]["subtitle"])


@dataclass(frozen=True)
class Block:
    """What stands together: text, a picture and its figures."""

    text: str = ""
    picture: Picture | None = None
    table: Table | None = None

    @property
    def is_long(self) -> bool:
        """Whether its picture and its table are so long that they stand beside each other."""
        return self.picture is not None and self.table is not None and len(self.table.rows) > _LONG


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    title: str
    blocks: tuple[Block, ...]
    name: str
    text: str = ""
    is_grid: bool = False
    """Whether its blocks stand beside each other where there is room."""


@dataclass(frozen=True)
class Content:
    """The whole report."""

    heading: str
    summary: str
    notes: tuple[str, ...]
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    facts: Mapping[str, Mapping[str, object]]

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, in the order of the page."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block.picture for block in blocks if block.picture is not None]


def compose(evidence: Evidence) -> Content:
    """Return the report of ``evidence``."""
    main = evidence.judged[0]
    return Content(
        heading=evidence.heading,
        summary=evidence.summary,
        notes=evidence.notes,
        tiles=_tiles(main),
        sections=(
            _standings(evidence.judged),
            _accuracy(main),
            _calibration(main, evidence.foreseen),
            _parts(main),
            _worst(main),
            _learning(evidence),
        ),
        facts=evidence.facts,
    )


def _tiles(judged: Judged) -> tuple[Tile, ...]:
    own = judged.reports[judged.model]
    tiles = [
        Tile("first pick", f"{own.regret[1].geomean:.4f}", "regret@1, geometric mean; 1 is perfect"),
        Tile("best of its first 5", f"{own.regret[5].geomean:.4f}", "regret@5, geometric mean"),
        Tile("worst first pick", f"{own.regret[1].max:.2f}", f"regret@1; worst regret@5: {own.regret[5].max:.2f}"),
        Tile("within 2%", f"{100 * own.within_2pct:.1f}%", f"within 5%: {100 * own.within_5pct:.1f}%"),
        Tile(
            "tied with the best",
            f"{100 * own.within_noise:.1f}%",
            f"mean share of the best speed: {100 * own.share_of_oracle.mean:.1f}%",
        ),
    ]
    others = [(name, report) for name, report in judged.reports.items() if name != judged.model]
    if others:
        name, best = min(others, key=lambda item: item[1].regret[1].geomean)
        tiles.append(Tile("best baseline", f"{best.regret[1].geomean:.4f}", f"regret@1 of {name}"))
    return tuple(tiles)


def _standings(judged: Sequence[Judged]) -> Section:
    main = judged[0]
    curves = {f"{main.model}, first pick": main.regrets[main.model][:, 0]}
    first = {n: _answered(main.regrets[n][:, 0]) for n in _ordered(main) if n in main.regrets and n != main.model}
    curves |= dict([(name, regret) for name, regret in first.items() if len(regret)][:_CURVED])
    curves[f"{main.model}, best of 5"] = main.regrets[main.model][:, KS.index(5)]
    ecdf = Picture("regret_ecdf", pictures.regret_ecdf(rows.curve_points(curves)))
    ranking = Picture("regret_by_ranking", pictures.regret_by_ranking(rows.ranking_losses(_ordered(main))))
    tables = (Block("; ".join(one.left_out), table=_standing(one)) for one in judged)
    return Section("Beside simpler rankings", (Block(picture=ranking), *tables, Block(picture=ecdf)), "rankings")


def _standing(judged: Judged) -> Table:
    return standing_table(judged.title, _ordered(judged), judged.model)


def _ordered(judged: Judged) -> dict[str, Report]:
    """Return the model first, then the baselines, the best first."""
    return dict(
        sorted(judged.reports.items(), key=lambda item: (item[0] != judged.model, item[1].regret[1].geomean, item[0]))
    )


def _accuracy(judged: Judged) -> Section:
    found = judged.judgements
    scatter = pictures.predicted_against_measured(rows.density_cells(found), rows.pick_points(found))
    shown = min(sum(math.isfinite(j.chosen_predicted_us) for j in found), rows.MOST_PICKS)
    fewer = f"Of {counted(len(found), 'problem')}, {shown:,} are shown, the costliest among them." * (
        shown < len(found)
    )
    octaves = pictures.regret_map(rows.map_cells(found))
    blocks = (
        Block(fewer, Picture("predicted_against_measured", scatter)),
        Block(picture=Picture("regret_map", octaves)),
    )
    return Section("Problem by problem", blocks, "problems", is_grid=True)


def _calibration(judged: Judged, foreseen: Foreseen | None) -> Section:
    found = judged.judgements
    blocks = [
        Block(
            picture=Picture(
                "calibration_of_ratios", calibration_pictures.calibration_of_ratios(rows.ratio_bands(found))
            )
        )
    ]
    if foreseen is None:
        blocks.append(Block("Left out: what the members' spread foretells. The model has one, which cannot disagree."))
    else:
        lost = np.log([j.regret[1] for j in found])
        spread = calibration_pictures.calibration_of_spread(
            rows.spread_groups(foreseen.loss, lost), is_calibrated=foreseen.is_calibrated
        )
        certainty = calibration_pictures.calibration_of_certainty(
            rows.certainty_groups(foreseen.within_2pct, lost), is_calibrated=foreseen.is_calibrated
        )
        text = _foretold(foreseen, lost)
        blocks.append(Block(text, Picture("calibration_of_spread", spread)))
        blocks.append(Block(picture=Picture("calibration_of_certainty", certainty)))
    return Section("Calibration", tuple(blocks), "calibration", is_grid=True)


def _foretold(foreseen: Foreseen, lost: NDArray[np.float64]) -> str:
    """Return how much of the loss is where it was expected."""
    expected = foreseen.loss
    order, total = np.argsort(-expected, kind="stable"), float(lost.sum())
    if not total:
        return "Nothing was lost."
    tenth, quarter = (
        100 * float(lost[order[: max(round(share * len(order)), 1)]].sum()) / total for share in (_TENTH, _QUARTER)
    )
    return (
        f"The tenth of the problems on which most loss is expected has {tenth:.0f}% of it, the quarter {quarter:.0f}%."
        f" {100 * math.expm1(expected.mean()):.2f}% was expected on average;"
        f" {100 * math.expm1(lost.mean()):.2f}% was lost."
    )


def _parts(judged: Judged) -> Section:
    cut = slices(judged.judgements, SLICES)
    losses = {by: rows.part_losses(parts) for by, parts in cut.items() if len(parts) > 1}
    most = most_loss(row for part in losses.values() for row in part)
    blocks = tuple(
        Block("", Picture(f"regret_by_{by}", pictures.regret_by_part(part, by, most)), parts_table(by, cut[by]))
        for by, part in losses.items()
    )
    alike = [f"{by}: {only}" for by, parts in cut.items() if by not in losses for only in parts]
    text = f"All problems are alike in {'; '.join(alike)}." if alike else ""
    return Section("Part by part", blocks, "parts", text, is_grid=True)


def _worst(judged: Judged) -> Section:
    found = sorted(judged.judgements, key=lambda j: -j.regret[1])[:WORST]
    times = Picture("worst_times", pictures.worst_times(rows.worst_times(found)))
    return Section("Worst problems", (Block(picture=times), Block(table=worst_table(found))), "worst")


def _learning(evidence: Evidence) -> Section:
    if not evidence.history:
        return Section("Training", (Block(f"Left out: {evidence.no_history}."),), "learning")
    picture = Picture("learning_curve", pictures.learning_curve(evidence.history))
    return Section("Training", (Block(picture=picture),), "learning")


def _answered(regret: NDArray[np.float64]) -> NDArray[np.float64]:
    return regret[np.isfinite(regret)]
