"""Two models side by side, evaluated on the same problems."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_explorer.pages import cases
from diode_explorer.pages.model.report import case_address
from diode_store.command_line.render import counted
from diode_trainer.report.evaluation import pictures, rows
from diode_trainer.report.evaluation.content import WORST, left_out
from diode_trainer.report.evaluation.tables import rankings_table
from diode_trainer.report.parts import COUNT, NUMBER, Column, Fact, Facts, Note, Picture, Table, drawn
from diode_trainer.report.questions import Answer
from diode_trainer.report.specification import LEAST_LOSS, TALL, diagonal, loss, tips, untitled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from diode_explorer.judging.verdict import JudgedProblem, Verdict
    from diode_explorer.pages.page import Asked
    from diode_trainer.judging.metrics import Report
    from diode_trainer.report.parts import Part

_BEYOND = 0.02
"""Relative time from which a model's first pick counts as faster than the other's."""
_NOBODY = ""
_CASE = ("problem_key", "hardware", "environment_key", "regime_name", "problem")


def pair_parts(asked: Asked, names: Sequence[str], verdicts: Sequence[Verdict], by: str) -> Iterator[Part]:
    """Yield the parts of a page of two models.

    Args:
        asked: the request.
        names: the models' names.
        verdicts: their results.
        by: property by which the problems are divided into parts.
    """
    first, second = verdicts
    reports = {name: verdict.reports[verdict.model] for name, verdict in zip(names, verdicts, strict=True)}
    others = {name: report for name, report in first.reports.items() if name != first.model}
    pairs = _pairs(first, second)
    yield _facts(names, pairs)
    ordered = dict(sorted({**others, **reports}.items(), key=lambda item: item[1].regret[1].geomean))
    models = {name: reports[name] for name in sorted(names, key=list(ordered).index)}
    yield rankings_table("rankings", "Beside simpler rankings", {**models, **ordered}, names)
    yield from left_out(first.left_out)
    yield from (Note(f"{name}: {line}.") for name, one in zip(names, verdicts, strict=True) for line in one.notes)
    yield drawn("regret-by-ranking", pictures.regret_by_ranking(rows.ranking_losses(ordered)))
    yield drawn("regret-ecdf", pictures.regret_ecdf(rows.curve_points(_curves(names, verdicts))))
    yield _scatter(asked, names, first, second)
    yield _parts_table(names, by, first.parts[by], second.parts[by])
    for place, name in enumerate(names):
        yield _better_table(place, name, names[1 - place], pairs)


def _pairs(first: Verdict, second: Verdict) -> list[tuple[JudgedProblem, JudgedProblem]]:
    """Return both models' results on each problem."""
    others = {one.case: one for one in second.judged}
    return [(one, others[one.case]) for one in first.judged if one.case in others]


def _ratio(pair: tuple[JudgedProblem, JudgedProblem]) -> float:
    """Return the first model's time over the second's."""
    return pair[0].picked_us / pair[1].picked_us


def _facts(names: Sequence[str], pairs: Sequence[tuple[JudgedProblem, JudgedProblem]]) -> Facts:
    ratios = [_ratio(pair) for pair in pairs]
    better = [sum(ratio < 1 / (1 + _BEYOND) for ratio in ratios), sum(ratio > 1 + _BEYOND for ratio in ratios)]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
    ahead, behind = names if mean <= 1 else reversed(names)
    by = f"by more than {100 * _BEYOND:.0f}%"
    facts = [
        *(
            Fact(f"{name} is faster on", counted(count, "problem"), by)
            for name, count in zip(names, better, strict=True)
        ),
        Fact("about the same on", counted(len(ratios) - sum(better), "problem")),
        Fact("first picks on average", f"{100 * (max(mean, 1 / mean) - 1):.2f}%", f"{ahead} ahead of {behind}"),
    ]
    return Facts("beside", "Side by side", tuple(facts))


def _curves(names: Sequence[str], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    both = list(zip(names, verdicts, strict=True))
    curves = {f"{name}, first pick": np.array([one.regret for one in verdict.judged]) for name, verdict in both}
    return curves | {f"{name}, best of 5": np.array([one.regret_5 for one in verdict.judged]) for name, verdict in both}


def _scatter(asked: Asked, names: Sequence[str], first: Verdict, second: Verdict) -> Picture:
    pairs = _pairs(first, second)
    columns = ("problem", "first_pct", "second_pct", "better", "address")
    points = tuple(
        (one.problem, 100 * (one.regret - 1), 100 * (other.regret - 1), _better(names, one, other), address)
        for one, other in reversed(pairs)
        for address in [case_address(asked, one)]
    )
    return Picture(
        "losses",
        "Losses of both on each problem",
        f"Below the line {names[1]} is better, above it {names[0]}. Click a point to open its problem.",
        Answer(columns, points),
        lambda found: _scatter_spec(names, found),
    )


def _better(names: Sequence[str], one: JudgedProblem, other: JudgedProblem) -> str:
    ratio = _ratio((one, other))
    if 1 / (1 + _BEYOND) <= ratio <= 1 + _BEYOND:
        return "about the same"
    return f"{names[0] if ratio < 1 else names[1]} is faster"


def _scatter_spec(names: Sequence[str], points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    most = max((max(point["first_pct"], point["second_pct"]) for point in points), default=0.0)
    axis = loss(most)
    end = axis["scale"]["domain"][1]
    x = {**axis, "field": "first_pct", "title": f"{names[0]}: slower than the best measured (%)"}
    y = {**axis, "field": "second_pct", "title": f"{names[1]}: slower than the best measured (%)"}
    # The second color means bad.
    kinds = [f"{names[0]} is faster", _NOBODY, f"{names[1]} is faster", "about the same"]
    dots = {
        "mark": {"type": "point", "filled": True, "size": 30, "opacity": 0.7},
        "encoding": {
            "x": x,
            "y": y,
            "color": {
                "field": "better",
                "type": "nominal",
                "scale": {"domain": kinds},
                "legend": {"values": [kind for kind in kinds if kind]},
                "title": None,
            },
            "tooltip": tips(
                ("problem", "problem", None),
                ("first_pct", f"{names[0]} (%)", ".2f"),
                ("second_pct", f"{names[1]} (%)", ".2f"),
            ),
        },
    }
    content = {
        "height": TALL,
        "data": {"values": list(points)},
        "layer": [*diagonal([LEAST_LOSS, end], "first_pct", "second_pct"), dots],
    }
    return untitled(f"Losses of {names[0]} and {names[1]} on {len(points)} problems", content)


def _parts_table(names: Sequence[str], by: str, first: Mapping[str, Report], second: Mapping[str, Report]) -> Table:
    columns = (
        Column("part", "part"),
        Column("problems", "problems", COUNT),
        *(Column(f"regret_{k}_{i}", f"{name}, @{k}", NUMBER, 4) for k in (1, 5) for i, name in enumerate(names)),
    )
    found = tuple(
        (part, report.problems, *(of[part].regret[k].geomean for k in (1, 5) for of in (first, second)))
        for part, report in first.items()
        if part in second
    )
    return Table(
        "parts", f"By {by}", "Regret, geometric means.", columns, Answer(tuple(c.name for c in columns), found)
    )


def _better_table(place: int, name: str, other: str, pairs: Sequence[tuple[JudgedProblem, JudgedProblem]]) -> Table:
    """Return the problems on which one model's pick is faster, and by how much."""
    sided = [pair if place == 0 else (pair[1], pair[0]) for pair in pairs]
    ahead = sorted((pair for pair in sided if _ratio(pair) < 1), key=_ratio)
    found = tuple(
        (
            *(getattr(one, column) for column in _CASE),
            one.picked,
            one.picked_us,
            two.picked,
            two.picked_us,
            two.picked_us / one.picked_us,
            one.best_us,
        )
        for one, two in ahead
    )
    columns = (
        Column("problem", "problem", link=cases.TO_PROBLEM),
        Column("regime_name", "regime"),
        Column("picked", f"{name}'s pick"),
        Column("picked_us", "us", NUMBER, 2),
        Column("other", f"{other}'s pick"),
        Column("other_us", "us", NUMBER, 2),
        Column("ratio", "ratio", NUMBER, 3),
        cases.BEST_US,
    )
    names = (*_CASE, "picked", "picked_us", "other", "other_us", "ratio", "best_us")
    return Table(
        f"better-{place + 1}",
        f"Where {name} is faster",
        f"{counted(len(ahead), 'problem')}, ordered by how much slower {other}'s first pick is.",
        columns,
        Answer(names, found),
        "Nowhere.",
        most=WORST,
    )
