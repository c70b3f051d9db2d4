"""Pictures of an evaluation, as Vega-Lite specifications; ``calibration_pictures`` has the calibration's.

Each function is pure: it takes rows and returns a dictionary that JSON can hold. A specification contains its data.
Its title says what it shows and which direction is good. It names no color (``theme`` does) and fits the width of its
container; ``drawing.as_image`` sets a width.

Losses are ``(regret - 1) * 100``: by how many percent a choice is slower than the best measured one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_trainer.report.evaluation.rows import (
    BEST,
    BEST_OF_5,
    BEYOND,
    FIRST_PICK,
    HELD_OUT,
    LEARNED_FROM,
    PICKED,
    PREDICTED,
    ROOFLINE,
    WITHIN,
    most_loss,
)
from diode_trainer.report.specification import (
    LOSS_TITLE,
    TALL,
    USUAL_HEIGHT,
    Spec,
    diagonal,
    log_us,
    loss,
    names,
    rows_height,
    spec,
    thresholds,
    tips,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.report.evaluation.rows import (
        CurvePoint,
        DensityCell,
        LossPoint,
        MapCell,
        PartLoss,
        PickPoint,
        RankingLoss,
        WorstTime,
    )

_MOST_MAP_LOSS = 30.0
_NOBODY = ""


def regret_by_ranking(rows: Sequence[RankingLoss]) -> Spec:
    """Return the loss of each ranking if only its first k are tried: a row each, best first."""
    order = list(dict.fromkeys(row.ranking for row in rows))
    y = {"field": "ranking", "type": "nominal", "sort": order, "title": None, "axis": names()}
    x = loss(most_loss(rows))
    span = {
        "mark": {"type": "rule", "strokeWidth": 2, "style": "baseline", "opacity": 0.5},
        "encoding": {"y": y, "x": {**x, "aggregate": "min"}, "x2": {"field": "loss_pct", "aggregate": "max"}},
    }
    points = {
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
        "encoding": {
            "y": y,
            "x": x,
            "color": {"field": "k", "type": "ordinal", "title": "k tried"},
            "tooltip": tips(
                ("ranking", "ranking", None),
                ("k", "tried", None),
                ("regret", "regret (geomean)", ".4f"),
                ("p95", "95th percentile", ".3f"),
                ("worst", "worst", ".2f"),
                ("problems", "problems", ","),
            ),
        },
    }
    title = (
        "Loss of each ranking",
        "Geometric means of the best of the first k picks; left is better",
    )
    return spec(title, rows, {"layer": [span, points], "height": rows_height(len(order))})


def predicted_against_measured(cells: Sequence[DensityCell], picks: Sequence[PickPoint]) -> Spec:
    """Return predicted over measured times: shades are all configs, points are first picks."""
    shades = {
        "data": values(cells),
        "mark": {"type": "rect", "style": "baseline", "stroke": None},
        "encoding": {
            "x": {"field": "measured_low", **log_us("measured (us)")},
            "x2": {"field": "measured_high"},
            "y": {"field": "predicted_low", **log_us("predicted (us)")},
            "y2": {"field": "predicted_high"},
            "opacity": {
                "field": "configs",
                "type": "quantitative",
                "scale": {"type": "log", "range": [0.08, 0.6]},
                "legend": None,
            },
        },
    }
    points = {
        "data": values(picks),
        "mark": {"type": "point", "filled": True, "size": 22, "opacity": 0.75},
        "encoding": {
            "x": {"field": "measured_us", **log_us("measured (us)")},
            "y": {"field": "predicted_us", **log_us("predicted (us)")},
            "color": {
                "field": "verdict",
                "type": "nominal",
                "scale": {"domain": [WITHIN, BEYOND]},
                "title": "first pick",
            },
            "tooltip": _PICK_TIPS,
        },
    }
    title = "Predicted against measured time", "On the line is right; shades are all configs, points are first picks"
    layers = [shades, *diagonal(_ends(picks), "measured_us", "predicted_us"), points]
    return spec(title, None, {"layer": layers, "height": TALL})


def regret_map(cells: Sequence[MapCell]) -> Spec:
    """Return the loss of the first pick by M and N, in octaves."""
    octaves = {"type": "ordinal", "axis": {"labelOverlap": "greedy", "labelAngle": 0, "grid": False}}
    m_order, n_order = (
        [label for _, label in sorted({(getattr(c, f"{name}_from"), getattr(c, name)) for c in cells})] for name in "mn"
    )
    encoding = {
        "x": {"field": "n", **octaves, "sort": n_order, "title": "N, from … to twice that"},
        "y": {"field": "m", **octaves, "sort": m_order[::-1], "title": "M, from … to twice that"},
        "color": {
            "field": "loss_pct",
            "type": "quantitative",
            "scale": {
                "type": "symlog",
                "constant": 1,
                "domain": [0, _MOST_MAP_LOSS],
                "clamp": True,
                "interpolate": "rgb",
            },
            "legend": {"title": LOSS_TITLE, "values": [0, 1, 3, 10, 30], "gradientLength": 200},
        },
        "tooltip": tips(
            ("m", "M from", None),
            ("n", "N from", None),
            ("problems", "problems", ","),
            ("loss_pct", "geometric mean (%)", ".2f"),
            ("worst_pct", "worst (%)", ".1f"),
            ("worst", "worst problem", None),
        ),
    }
    title = "Loss of the first pick by M and N", "Strong colors are bad; blank cells are not measured"
    return spec(title, cells, {"mark": {"type": "rect"}, "encoding": encoding, "height": TALL})


def regret_ecdf(rows: Sequence[CurvePoint]) -> Spec:
    """Return the cumulative distribution of losses: a step curve for each ranking, at most four."""
    order = list(dict.fromkeys(row.ranking for row in rows))
    # The second color means bad, so no ranking has it.
    domain = [*order[:1], _NOBODY, *order[1:]]
    least = min((row.share_pct for row in rows), default=0.0)
    encoding = {
        "x": loss(most_loss(rows)),
        "y": {
            "field": "share_pct",
            "type": "quantitative",
            "title": "problems that lose at most this (%)",
            "scale": {"domain": [10 * (least // 10), 100]},
        },
        "color": {
            "field": "ranking",
            "type": "nominal",
            "scale": {"domain": domain},
            "legend": {"values": order, "columns": 2},
            "title": None,
        },
        "tooltip": tips(
            ("ranking", "ranking", None), ("loss_pct", "loses at most (%)", ".3g"), ("share_pct", "problems (%)", ".1f")
        ),
    }
    curves = {
        "mark": {"type": "line", "interpolate": "step-after", "clip": True, "strokeWidth": 2},
        "encoding": encoding,
    }
    title = (
        "Share of problems by loss",
        "Higher and further left is better; a curve starts at the share without loss",
    )
    return spec(title, rows, {"layer": [*thresholds((2, 5)), curves], "height": USUAL_HEIGHT})


def learning_curve(rows: Sequence[LossPoint]) -> Spec:
    """Return the loss of each fit after each epoch, on training and held-out problems."""
    encoding = {
        "x": {"field": "epoch", "type": "quantitative", "title": "epoch", "axis": {"tickMinStep": 1, "grid": False}},
        "y": {
            "field": "loss",
            "type": "quantitative",
            "scale": {"type": "log", "nice": False, "padding": 6},
            "title": "loss",
        },
        "color": {
            "field": "part",
            "type": "nominal",
            "scale": {"domain": [LEARNED_FROM, HELD_OUT]},
            "title": None,
        },
        "detail": {"field": "fit", "type": "nominal"},
        "tooltip": tips(
            ("fit", "fit", None), ("part", "problems", None), ("epoch", "epoch", None), ("loss", "loss", ".4f")
        ),
    }
    mark = {"type": "line", "point": {"size": 16}, "strokeWidth": 1.5, "opacity": 0.8}
    title = "Learning curve", "Lower is better; a rising held-out loss is overfitting"
    return spec(title, rows, {"mark": mark, "encoding": encoding, "height": USUAL_HEIGHT})


def regret_by_part(rows: Sequence[PartLoss], what: str, most: float) -> Spec:
    """Return the loss of the first pick and of the best of five, by part of the problems.

    Args:
        rows: two for each part, in the order to show them.
        what: property by which the problems are divided into parts, such as ``alignment``.
        most: the greatest loss in the neighboring pictures, which share one axis.
    """
    order = list(dict.fromkeys(row.part for row in rows))
    encoding = {
        "y": {"field": "part", "type": "nominal", "sort": order, "title": None, "axis": names()},
        "x": loss(most),
        "color": {
            "field": "tried",
            "type": "nominal",
            "scale": {"domain": [FIRST_PICK, "", BEST_OF_5], "range": "ordinal"},  # the colors of k = 1 and 5
            "legend": {"values": [FIRST_PICK, BEST_OF_5]},
            "title": None,
        },
        "tooltip": tips(
            ("part", what, None),
            ("tried", "tried", None),
            ("regret", "regret (geomean)", ".4f"),
            ("worst", "worst", ".2f"),
            ("problems", "problems", ","),
        ),
    }
    mark = {"type": "point", "filled": True, "size": 90, "opacity": 1}
    title = f"Loss by {what}", "Geometric means; left is better"
    return spec(title, rows, {"mark": mark, "encoding": encoding, "height": rows_height(len(order))})


def worst_times(rows: Sequence[WorstTime]) -> Spec:
    """Return the times of the costliest picks, beside the best measured, the predicted and the least possible times."""
    order = list(dict.fromkeys(row.problem for row in rows))
    kinds = [PREDICTED, PICKED, BEST, ROOFLINE]
    encoding = {
        "y": {"field": "problem", "type": "nominal", "sort": order, "title": None, "axis": names()},
        "x": {"field": "us", **log_us("time (us)")},
        "color": {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": kinds},
            "title": None,
            "legend": {"columns": 2, "symbolOpacity": 1},
        },
        "shape": {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": kinds, "range": ["diamond", "circle", "circle", "stroke"]},
            "title": None,
        },
        "tooltip": tips(
            ("problem", "problem", None), ("kind", "what", None), ("us", "us", ".4~g"), ("config", "config", None)
        ),
    }
    mark = {"type": "point", "size": 70, "strokeWidth": 2, "opacity": 1}
    title = (
        "The costliest picks",
        "The further right of the best a pick is, the more is lost; the roofline is the least possible time",
    )
    return spec(title, rows, {"mark": mark, "encoding": encoding, "height": rows_height(len(order))})


_PICK_TIPS = tips(
    ("problem", "problem", None),
    ("config", "first pick", None),
    ("predicted_us", "predicted (us)", ".4~g"),
    ("measured_us", "measured (us)", ".4~g"),
    ("best_us", "best measured (us)", ".4~g"),
    ("loss_pct", "lost (%)", ".2f"),
)


def _ends(picks: Sequence[PickPoint]) -> list[float]:
    """Return the least and the greatest time of either axis."""
    times = [time for pick in picks for time in (pick.measured_us, pick.predicted_us)]
    return [min(times, default=1.0), max(times, default=1.0)]
