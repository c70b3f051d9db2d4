"""The coverage page: measured sizes, holes, and the problems that would fill them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from diode_explorer.pages import cases
from diode_explorer.pages.coverage.cells import (
    AXES,
    SIZES,
    Map,
    axes_of,
    conditions,
    octave_column,
    octave_options,
    octave_text,
)
from diode_explorer.pages.coverage.holes import Filling, holes
from diode_explorer.pages.coverage.picture import SHOWN, coverage_picture
from diode_explorer.pages.page import NotThereError, Page, Parameter
from diode_store.devices.known import with_known_attributes
from diode_trainer.report.parts import COUNT, NUMBER, TIME, Column, Command, Fact, Facts, Link, Note, Picture, Table
from diode_trainer.report.questions import Answer, Question, where

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from diode_collectors.problems.problem import SweepProblem
    from diode_explorer.pages.coverage.holes import Cell, Hole
    from diode_explorer.pages.page import Asked
    from diode_trainer.report.parts import Part
    from diode_trainer.report.questions import Value

_SEARCH_SPACE = "SAMPLE:72"
_MOST_HOLES, _MOST_PROBLEMS = 20, 100
"""Maximum rows of the tables."""
_CHOSEN = "chosen"
"""Name of the part about the chosen cell."""

_MOST_MEASURED = """\
SELECT hardware
FROM best_times
{where}GROUP BY hardware
ORDER BY count(DISTINCT problem_id) DESC, hardware
LIMIT 1"""
_DEVICES = "SELECT * EXCLUDE (key, extra) FROM hardware WHERE name = $device ORDER BY id"

_PROBLEMS = Column("problems", "problems", COUNT)
_ROOFLINE = Column("roofline_pct", "of the roofline, %", NUMBER)
_RATIOS = (
    Column("speedup", "vendor / Triton", NUMBER, 3),
    Column("tflops", "TFLOP/s", NUMBER, 1),
    _ROOFLINE,
)
_WINS = Column("triton_wins_pct", "Triton faster, %", NUMBER)
_MEASURED = Column("last_measured_at", "last measured, UTC", TIME)


def _parts(asked: Asked) -> Iterator[Part]:
    shown = _map(asked)
    covered = asked.ask(shown.cells()).dicts() if shown else []
    if shown is None or not covered:
        yield Note("Nothing matches the filters." if asked.filters else "Nothing is measured yet.")
        return
    cells = {(row[shown.columns[0]], row[shown.columns[1]]) for row in covered}
    filling = _filling(asked, shown)
    fillable = [(hole, problem) for hole in holes(cells) if (problem := _fits(filling.problem(hole.cell), shown))]
    yield _facts(asked, shown, sum(row["problems"] for row in covered), len(cells), len(fillable))
    yield _picture(asked, shown, [hole.cell for hole, _ in fillable])
    if shown.chosen:
        yield _chosen(shown, cells, filling)
    yield _holes_table(shown, fillable)
    yield _kinds_table(shown)
    yield _cells_table(shown)


def _map(asked: Asked) -> Map | None:
    """Return the map; None without a device."""
    for name in map(octave_column, SIZES):
        start = int(asked.filters.get(name, 1))
        if start < 1 or start & (start - 1):
            raise NotThereError(f"{name} is {start}, but a cell begins at a power of two")
    device = asked.filters.get("device")
    if device is None:
        condition = where(conditions(asked.filters), asked.filters)
        most = asked.ask(Question(_MOST_MEASURED.format(where=condition), asked.filters)).rows
        if not most:
            return None
        device = most[0][0]
    filters = {**asked.filters, "device": device}
    rows = asked.ask(Question(_DEVICES, filters)).dicts()
    devices = {row["id"]: with_known_attributes(cases.hardware_of(row)) for row in rows}
    if not devices:
        raise NotThereError(f"the warehouse has no device named {device}")
    return Map(filters, devices)


def _filling(asked: Asked, shown: Map) -> Filling:
    (kind,) = asked.ask(shown.usual_kind()).dicts()
    return Filling(kind, asked.ask(shown.usual_sizes()).dicts(), shown.axes, shown.third)


def _fits(problem: SweepProblem | None, shown: Map) -> SweepProblem | None:
    """Return the problem if a sweep can measure it and it fits into the device's memory."""
    memory_bytes = max(device.memory_bytes or 0 for device in shown.devices.values())
    if problem is None or (memory_bytes and problem.needed_bytes(on_cpu=False) > memory_bytes):
        return None
    return problem


def _facts(asked: Asked, shown: Map, problems: int, cells: int, empty: int) -> Facts:
    device = str(shown.filters["device"])
    facts = (
        Fact("device", device, "" if "device" in asked.filters else "the device with most problems"),
        Fact("problems", f"{problems:,}"),
        Fact("cells", f"{cells:,}", "with at least one problem"),
        Fact("holes", f"{empty:,}", "empty cells between others"),
    )
    up, right = shown.axes
    return Facts("shown", f"{up.upper()} by {right.upper()}", facts)


def _picture(asked: Asked, shown: Map, empty: Sequence[Cell]) -> Picture:
    leads = _address(asked, dict.fromkeys(shown.columns, 1))
    clicks = (
        " Click a cell here or below to list its problems, or to get the command that measures one." if leads else ""
    )
    return Picture(
        "map",
        "Map",
        f"A cell spans one octave of each size, from a power of two up to the next. A dashed cell is a hole.{clicks}",
        shown.cells(),
        lambda rows: coverage_picture(
            rows,
            axes=shown.axes,
            shows=str(asked.filters.get("show", next(iter(SHOWN)))),
            holes=empty,
            chosen=shown.chosen,
            address=lambda cell: _address(asked, cell),
        ),
    )


def _address(asked: Asked, cell: Mapping[str, int]) -> str | None:
    wanted = {**asked.filters, **cell}
    ordered = {each.name: wanted[each.name] for each in COVERAGE.parameters if each.name in wanted}
    found = asked.address(COVERAGE.name, ordered)
    return found and f"{found}#{_CHOSEN}"


def _chosen(shown: Map, cells: set[Cell], filling: Filling) -> Part:
    """Return the problems of the chosen cells, or the command that measures an empty one."""
    up, right = (shown.chosen.get(column) for column in shown.columns)
    title = " and ".join(
        f"{size.upper()} {octave_text(start)}"
        for size, start in zip(shown.axes, (up, right), strict=True)
        if start is not None
    )
    if up is None or right is None or (up, right) in cells:
        return _problems_table(shown, f"Problems with {title}")
    problem = filling.problem((up, right))
    if problem is None:
        return _nothing(title, "diode-collect cannot measure this op and dtype")
    if _fits(problem, shown) is None:
        return _nothing(title, f"{problem} does not fit into the memory of the device")
    return Command(
        _CHOSEN,
        f"No problem has {title}",
        f"Run this on a machine with {shown.filters['device']}, then `diode-ingest --once`. It measures one problem"
        " with the common sizes of this row and column.",
        shlex.join(["diode-collect", "--shape", str(problem), "--search-space", _SEARCH_SPACE]),
    )


def _nothing(title: str, why: str) -> Facts:
    return Facts(_CHOSEN, f"No problem has {title}", (Fact("problems", "none", why),))


def _problems_table(shown: Map, title: str) -> Table:
    return Table(
        _CHOSEN,
        title,
        "Last measurement of each problem, in the regime nearest to deployment.",
        (
            Column("problem", "problem", link=cases.TO_PROBLEM),
            Column("regime_name", "regime"),
            cases.CONFIGS,
            cases.BEST_US,
            cases.VENDOR_US,
            *_RATIOS,
            Column("template", "best template"),
            Column("torch", "torch"),
            Column("family", "family"),
            _MEASURED,
        ),
        shown.problems(),
        most=_MOST_PROBLEMS,
    )


def _holes_table(shown: Map, fillable: Sequence[tuple[Hole, SweepProblem]]) -> Table:
    rows = tuple((*hole.cell, hole.neighbors, str(problem)) for hole, problem in fillable)
    return Table(
        "holes",
        "Holes",
        "Empty cells between covered ones in their row or column. Those with most covered neighbors come first.",
        (
            *_octave_columns(shown),
            Column("neighbors", "covered neighbors, of 8", COUNT),
            Column("problem", "problem that fills it"),
        ),
        Answer((*shown.columns, "neighbors", "problem"), rows),
        "There are no holes.",
        most=_MOST_HOLES,
    )


def _kinds_table(shown: Map) -> Table:
    return Table(
        "kinds",
        "By op and dtype",
        "The same problems. TF32 counts as its own dtype.",
        (
            Column("op", "op", link=Link({"op": "op", "dtype": "arithmetic"})),
            Column("arithmetic", "dtype", link=Link({"dtype": "arithmetic"})),
            _PROBLEMS,
            cases.CONFIGS,
            _ROOFLINE,
            _WINS,
            _MEASURED,
        ),
        shown.kinds(),
    )


def _cells_table(shown: Map) -> Table:
    return Table(
        "cells",
        "Cells",
        "The map in numbers. Times, speeds and ratios are medians over a cell's problems.",
        (*_octave_columns(shown), _PROBLEMS, cases.CONFIGS, cases.BEST_US, *_RATIOS, _WINS, _MEASURED),
        shown.cells(),
    )


def _octave_columns(shown: Map) -> tuple[Column, Column]:
    up, right = shown.columns
    link = Link({up: up, right: right}, part=_CHOSEN)
    return Column(up, f"{shown.axes[0].upper()} from", COUNT, link=link), Column(
        right, f"{shown.axes[1].upper()} from", COUNT, link=link
    )


def _fields(filters: Mapping[str, Value]) -> Iterator[str]:
    yield from ("device", "environment", "regime", "op", "dtype", "layout", "family", "axes", "show")
    up, right, third = map(octave_column, axes_of(filters))
    yield third
    yield from (name for name in (up, right) if name in filters)


COVERAGE = Page(
    "coverage",
    "Coverage",
    "Measured sizes and their speed, and holes with the problems that would fill them. Each problem counts once, by its"
    " last measurement in the regime nearest to deployment.",
    (
        replace(cases.DEVICE, unset="most problems"),
        cases.ENVIRONMENT,
        cases.REGIME_OF,
        cases.OP,
        cases.DTYPE,
        cases.LAYOUT,
        cases.FAMILY,
        Parameter("axes", "axes", options=tuple(AXES), unset=next(iter(AXES))),
        Parameter("show", "color", options=tuple(SHOWN), unset=next(iter(SHOWN))),
        *(Parameter(octave_column(size), size.upper(), is_number=True, options=octave_options(size)) for size in SIZES),
    ),
    _parts,
    fields=_fields,
)
