"""Tables of an evaluation: rankings, parts of the problems, and the costliest picks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diode_store.command_line.render import cell_text, problem_text
from diode_trainer.judging.metrics import KS
from diode_trainer.report.parts import COUNT, NUMBER, Column, Table
from diode_trainer.report.questions import Answer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from diode_store.kernels import KernelConfig
    from diode_trainer.judging.judgement import ProblemJudgement
    from diode_trainer.judging.metrics import Report

_PROBLEMS = Column("problems", "problems", COUNT)
_RANKINGS = (
    Column("ranking", "ranking"),
    _PROBLEMS,
    *(Column(f"regret_{k}", f"regret@{k}", NUMBER, 4, unit="geomean") for k in KS),
    Column("p95_1", "@1", NUMBER, 3, unit="P95"),
    Column("max_1", "@1", NUMBER, 2, unit="max"),
    Column("max_5", "@5", NUMBER, 2, unit="max"),
    Column("within_2", "in 2%", NUMBER, 1, unit="%"),
    Column("within_5", "in 5%", NUMBER, 1, unit="%"),
    Column("tied", "tied", NUMBER, 1, unit="%"),
    Column("oracle", "oracle", NUMBER, 1, unit="mean %"),
    Column("oracle_p10", "oracle", NUMBER, 1, unit="P10 %"),
    Column("oracle_min", "oracle", NUMBER, 1, unit="min %"),
    Column("rmse_log", "RMSE", NUMBER, 3, unit="log"),
    Column("rmse_us", "RMSE", NUMBER, 1, unit="us"),
)
_PARTS = (
    Column("part", "part"),
    _PROBLEMS,
    Column("regret_1", "regret@1", NUMBER, 4, unit="geomean"),
    Column("regret_5", "@5", NUMBER, 4, unit="geomean"),
    Column("max_1", "@1", NUMBER, 2, unit="max"),
    Column("within_2", "in 2%", NUMBER, 1, unit="%"),
    Column("tied", "tied", NUMBER, 1, unit="%"),
    Column("loss_share", "loss", NUMBER, 1, unit="share %"),
)
_CONFIG = (
    ("block_m", "M"),
    ("block_n", "N"),
    ("block_k", "K"),
    ("group_m", "group"),
    ("num_stages", "stages"),
    ("num_warps", "warps"),
)
"""Numbers of a config and the heads of their columns; M, N and K are the sizes of its tile."""
_WORST = (
    Column("place", "", COUNT),
    Column("problem", "problem", unit="B x M x N x K"),
    Column("lost", "lost", NUMBER, 1, unit="%"),
    Column("which", ""),
    Column("config", "config"),
    *(Column(name, head, COUNT) for name, head in _CONFIG),
    Column("tf32", "TF32"),
    Column("measured_us", "measured", NUMBER, 2, unit="us"),
    Column("predicted_us", "predicted", NUMBER, 2, unit="us"),
    Column("roofline_us", "roofline", NUMBER, 2, unit="us"),
    Column("roofline_pct", "of time", NUMBER, 1, unit="%"),
    Column("ties", "tied", COUNT, unit="configs"),
    Column("configs", "measured", COUNT, unit="configs"),
    Column("family", "family"),
)
_RARE = ("use_fast_accum", "acc_type")


def rankings_table(name: str, title: str, reports: Mapping[str, Report], models: Collection[str]) -> Table:
    """Return a table with a row for each ranking.

    Args:
        name: the part's name.
        title: the part's title.
        reports: ranking → its figures, in the order of the rows.
        models: rankings whose rows stand out.
    """
    found = tuple((ranking, *_ranking_figures(report), ranking in models) for ranking, report in reports.items())
    names = (*(column.name for column in _RANKINGS), "is_model")
    return Table(name, title, "", _RANKINGS, Answer(names, found), marked="is_model")


def _ranking_figures(report: Report) -> tuple[float | None, ...]:
    errors, oracle = report.errors, report.share_of_oracle
    return (
        report.problems,
        *(report.regret[k].geomean for k in KS),
        report.regret[1].p95,
        report.regret[1].max,
        report.regret[5].max,
        *(100 * share for share in (report.within_2pct, report.within_5pct, report.within_noise)),
        *(100 * share for share in (oracle.mean, oracle.p10, oracle.min)),
        *((None, None) if errors is None else (errors.rmse_log, errors.rmse_us)),
    )


def parts_table(by: str, parts: Mapping[str, Report]) -> Table:
    """Return a table with a row for each part of the problems.

    Args:
        by: property by which the problems are divided into parts, such as ``alignment``.
        parts: part → its figures.
    """
    losses = {part: report.problems * math.log(report.regret[1].geomean) for part, report in parts.items()}
    total = sum(losses.values())
    found = tuple(
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
    return Table(f"parts-by-{by}", f"Figures by {by}", "", _PARTS, Answer(tuple(c.name for c in _PARTS), found))


def worst_table(judgements: Sequence[ProblemJudgement]) -> Table:
    """Return a table with two rows for each problem: the pick and the best config."""
    found: list[tuple[object, ...]] = []
    for place, j in enumerate(judgements, 1):
        before = (place, problem_text(j.shape), 100 * (j.regret[1] - 1))
        after = (j.ties, j.configs, j.family or "-")
        pick = (*_config(j.chosen), *_times(j.chosen_us, j.chosen_predicted_us, j.roofline_us))
        best = (*_config(j.best), *_times(j.best_us, j.best_predicted_us, j.roofline_us))
        found.append((*before, "pick", *pick, *after))
        found.append((*("" for _ in before), "best", *best, *("" for _ in after)))
    return Table(
        "worst-configs",
        "Configs of the costliest picks",
        "The roofline is the least time that the device could need.",
        _WORST,
        Answer(tuple(column.name for column in _WORST), tuple(found)),
    )


def _config(config: KernelConfig) -> tuple[object, ...]:
    """Return every known field of a config, from its template on."""
    rest = [f"{name}={cell_text(value)}" for name, value in config.kwargs]
    rest += [f"{name}={cell_text(value)}" for name in _RARE if (value := getattr(config, name)) is not None]
    tf32 = "" if config.allow_tf32 is None else cell_text(config.allow_tf32)
    numbers = (getattr(config, name) for name, _ in _CONFIG)
    return " ".join((config.template, *rest)), *("" if number is None else number for number in numbers), tf32


def _times(measured_us: float, predicted_us: float, roofline_us: float) -> tuple[object, ...]:
    predicted = predicted_us if math.isfinite(predicted_us) else "never"
    return measured_us, predicted, roofline_us, 100 * roofline_us / measured_us
