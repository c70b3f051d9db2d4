"""The tables of a report: text in columns whose numbers have the same decimals, so that they align."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_store.render import cell_text, problem_text
from diode_trainer.judging.metrics import KS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_store.kernels import KernelConfig
    from diode_trainer.judging.judgement import ProblemJudgement
    from diode_trainer.judging.metrics import Report


@dataclass(frozen=True)
class Column:
    """A column's name and, below it, its unit."""

    name: str
    unit: str = ""
    is_number: bool = True


@dataclass(frozen=True)
class Cell:
    """Text that may span rows."""

    text: str
    rows: int = 1


@dataclass(frozen=True)
class Table:
    """Rows of cells; a row has none where one above it spans."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell | None, ...], ...]
    emphasised: frozenset[int] = frozenset()
    """Which rows are the model's."""


_REPORT_COLUMNS = (
    Column("problems"),
    *(Column(f"regret@{k}", "geomean") for k in KS),
    Column("@1", "p95"),
    Column("@1", "max"),
    Column("@5", "max"),
    Column("in 2%", "%"),
    Column("in 5%", "%"),
    Column("tied", "%"),
    Column("oracle", "mean %"),
    Column("oracle", "P10 %"),
    Column("oracle", "min %"),
    Column("RMSE", "log"),
    Column("RMSE", "us"),
)
_PART_COLUMNS = (
    Column("problems"),
    Column("regret@1", "geomean"),
    Column("@5", "geomean"),
    Column("@1", "max"),
    Column("in 2%", "%"),
    Column("tied", "%"),
    Column("loss", "share %"),
)


def standing_table(title: str, reports: Mapping[str, Report], model: str) -> Table:
    """Return a row for each ranking."""
    columns = (Column("ranking", is_number=False), *_REPORT_COLUMNS)
    emphasised = frozenset(i for i, name in enumerate(reports) if name == model)
    return Table(title, columns, tuple(_cells(name, *_report(r)) for name, r in reports.items()), emphasised)


def parts_table(by: str, parts: Mapping[str, Report]) -> Table:
    """Return a row for each part."""
    columns = (Column(by, is_number=False), *_PART_COLUMNS)
    losses = {name: report.problems * math.log(report.regret[1].geomean) for name, report in parts.items()}
    total = sum(losses.values())
    shares = {name: _percent(loss / total) if total else "" for name, loss in losses.items()}
    rows = tuple(_cells(name, *_part(report), shares[name]) for name, report in parts.items())
    return Table("", columns, rows)


def worst_table(judgements: Sequence[ProblemJudgement]) -> Table:
    """Return two rows for each problem: what was picked, and the best."""
    columns = (
        Column(""),
        Column("problem", "B x M x N x K", is_number=False),
        Column("lost", "%"),
        Column("", is_number=False),
        Column("config", is_number=False),
        *(Column(name) for name in _CONFIG_NUMBERS.values()),
        Column("TF32", is_number=False),
        Column("measured", "us"),
        Column("predicted", "us"),
        Column("roofline", "us"),
        Column("of time", "%"),
        Column("tied", "configs"),
        Column("measured", "configs"),
        Column("family", is_number=False),
    )
    rows: list[tuple[Cell | None, ...]] = []
    for number, j in enumerate(judgements, 1):
        before = (f"{number}", problem_text(j.shape), f"{100 * (j.regret[1] - 1):,.1f}")
        after = (f"{j.ties:,}", f"{j.configs:,}", j.family or "-")
        pick = (*_config(j.chosen), *_times(j.chosen_us, j.chosen_predicted_us, j.roofline_us))
        best = (*_config(j.best), *_times(j.best_us, j.best_predicted_us, j.roofline_us))
        rows.append((*_spanning(*before), *_cells("pick", *pick), *_spanning(*after)))
        rows.append((*(None for _ in before), *_cells("best", *best), *(None for _ in after)))
    return Table("Whole configs, their times, and the least time that the device could need", columns, tuple(rows))


_CONFIG_NUMBERS = {
    "block_m": "M",
    "block_n": "N",
    "block_k": "K",
    "group_m": "group",
    "num_stages": "stages",
    "num_warps": "warps",
}
"""A config's numbers and the names of their columns; M, N and K are of its tile."""


def _config(config: KernelConfig) -> tuple[str, ...]:
    """Return all that is known of a config, in the columns from its template on."""
    rest = [f"{name}={cell_text(value)}" for name, value in config.kwargs]
    rest += [f"{name}={cell_text(value)}" for name in _RARE if (value := getattr(config, name)) is not None]
    numbers = (getattr(config, name) for name in _CONFIG_NUMBERS)
    tf32 = "" if config.allow_tf32 is None else cell_text(config.allow_tf32)
    return " ".join((config.template, *rest)), *("" if n is None else str(n) for n in numbers), tf32


_RARE = ("use_fast_accum", "acc_type")


def _report(report: Report) -> tuple[str, ...]:
    errors, oracle = report.errors, report.share_of_oracle
    return (
        f"{report.problems:,}",
        *(f"{report.regret[k].geomean:.4f}" for k in KS),
        f"{report.regret[1].p95:.3f}",
        f"{report.regret[1].max:,.2f}",
        f"{report.regret[5].max:,.2f}",
        *(_percent(share) for share in (report.within_2pct, report.within_5pct, report.within_noise)),
        *(_percent(share) for share in (oracle.mean, oracle.p10, oracle.min)),
        *(("", "") if errors is None else (f"{errors.rmse_log:.3f}", f"{errors.rmse_us:,.1f}")),
    )


def _part(report: Report) -> tuple[str, ...]:
    return (
        f"{report.problems:,}",
        f"{report.regret[1].geomean:.4f}",
        f"{report.regret[5].geomean:.4f}",
        f"{report.regret[1].max:,.2f}",
        _percent(report.within_2pct),
        _percent(report.within_noise),
    )


def _times(measured_us: float, predicted_us: float, roofline_us: float) -> tuple[str, ...]:
    return _us(measured_us), _us(predicted_us), _us(roofline_us), f"{100 * roofline_us / measured_us:.1f}"


def _us(time: float) -> str:
    return f"{time:,.2f}" if math.isfinite(time) else "never"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _cells(*texts: str) -> tuple[Cell, ...]:
    return tuple(Cell(text) for text in texts)


def _spanning(*texts: str) -> tuple[Cell, ...]:
    """Return cells that span both rows of a problem."""
    return tuple(Cell(text, 2) for text in texts)
