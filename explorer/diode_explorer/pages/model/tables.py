"""The tables of the page of a model: rankings, parts of the problems, and problems by what was lost on them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diode_explorer.judging.verdict import Judged
from diode_explorer.pages import cases
from diode_explorer.pages.parts import COUNT, NUMBER, Column, Table
from diode_explorer.pages.questions import Answer
from diode_trainer.judging.metrics import KS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from diode_trainer.judging.metrics import Report

WORST = 20
"""Problems in a list of the costliest."""
_PROBLEMS = Column("problems", "problems", COUNT)
_RANKINGS = (
    Column("ranking", "ranking"),
    _PROBLEMS,
    *(Column(f"regret_{k}", f"regret@{k}", NUMBER, 4) for k in KS),
    Column("p95_1", "@1, P95", NUMBER, 3),
    Column("max_1", "@1, max", NUMBER, 2),
    Column("max_5", "@5, max", NUMBER, 2),
    Column("within_2", "in 2%, %", NUMBER, 1),
    Column("tied", "tied, %", NUMBER, 1),
    Column("rmse_log", "RMSE, log", NUMBER, 3),
)
_PARTS = (
    Column("part", "part"),
    _PROBLEMS,
    Column("regret_1", "regret@1", NUMBER, 4),
    Column("regret_5", "regret@5", NUMBER, 4),
    Column("max_1", "@1, max", NUMBER, 2),
    Column("within_2", "in 2%, %", NUMBER, 1),
    Column("tied", "tied, %", NUMBER, 1),
    Column("loss_share", "of the loss, %", NUMBER, 1),
)


def rankings_table(reports: Mapping[str, Report], models: Collection[str]) -> Table:
    """Return a row for each ranking: the models first, then the others, the best first."""
    ordered = sorted(reports, key=lambda name: (name not in models, reports[name].regret[1].geomean, name))
    rows = tuple((name, *_figures(reports[name]), name in models) for name in ordered)
    return Table(
        "rankings",
        "Beside simpler rankings",
        "Regret@k is the time of the best of the k configs that are tried first, over the best of all; geometric"
        " means. Tied: within noise of the best.",
        _RANKINGS,
        Answer((*(column.name for column in _RANKINGS), "is_model"), rows),
        marked="is_model",
    )


def _figures(report: Report) -> tuple[float | None, ...]:
    return (
        report.problems,
        *(report.regret[k].geomean for k in KS),
        report.regret[1].p95,
        report.regret[1].max,
        report.regret[5].max,
        100 * report.within_2pct,
        100 * report.within_noise,
        None if report.errors is None else report.errors.rmse_log,
    )


def parts_table(by: str, parts: Mapping[str, Report]) -> Table:
    """Return a row for each part of the problems, in their order."""
    losses = {part: report.problems * math.log(report.regret[1].geomean) for part, report in parts.items()}
    total = sum(losses.values())
    rows = tuple(
        (
            part,
            report.problems,
            report.regret[1].geomean,
            report.regret[5].geomean,
            report.regret[1].max,
            100 * report.within_2pct,
            100 * report.within_noise,
            100 * losses[part] / total if total else None,
        )
        for part, report in parts.items()
    )
    return Table("parts", f"By {by}", "", _PARTS, Answer(tuple(column.name for column in _PARTS), rows))


def problems_table(judged: Iterable[Judged]) -> Table:
    """Return the costliest problems; a download has all."""
    return Table(
        "problems",
        f"The {WORST} worst problems",
        "Where its first pick lost most against the best config that was measured.",
        (
            Column("problem", "problem", link=cases.TO_PROBLEM),
            Column("regime_name", "regime"),
            Column("regret", "regret@1", NUMBER, 3),
            Column("regret_5", "regret@5", NUMBER, 3),
            Column("picked", "first pick"),
            Column("picked_us", "pick, us", NUMBER, 2),
            Column("predicted_us", "predicted, us", NUMBER, 2),
            Column("best", "best"),
            cases.BEST_US,
            cases.VENDOR_US,
            cases.CONFIGS,
        ),
        Answer(Judged._fields, tuple(judged)),
        most=WORST,
    )
