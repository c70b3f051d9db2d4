"""Calibration pictures of an evaluation, as Vega-Lite specifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_trainer.report.specification import USUAL_HEIGHT, Spec, diagonal, spec, tips

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.report.evaluation.rows import CertaintyGroup, RatioBand, SpreadGroup


def calibration_of_ratios(rows: Sequence[RatioBand]) -> Spec:
    """Return a plot of measured over predicted slowdowns, both relative to the first pick."""
    x = {
        "field": "predicted",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False},
        "title": "predicted time / first pick",
        "axis": {"values": [1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100], "grid": False},
    }
    measured = {"type": "quantitative", "scale": {"type": "log", "nice": False}, "title": "measured time / first pick"}
    hovered = tips(
        ("predicted", "predicted ratio", ".3f"),
        ("median", "measured ratio, median", ".3f"),
        ("low", "10th percentile", ".3f"),
        ("high", "90th percentile", ".3f"),
        ("configs", "configs", ","),
    )
    band = {
        "mark": {"type": "area", "style": "model", "opacity": 0.2},
        "encoding": {"x": x, "y": {"field": "low", **measured}, "y2": {"field": "high"}, "tooltip": hovered},
    }
    median = {
        "mark": {"type": "line", "style": "model", "point": {"style": "model", "size": 40, "filled": True}},
        "encoding": {"x": x, "y": {"field": "median", **measured}, "tooltip": hovered},
    }
    ends = [min((r.predicted for r in rows), default=1.0), max((r.predicted for r in rows), default=1.0)]
    title = (
        "Measured against predicted slowdowns",
        "The dashed line is a perfect prediction; the band holds 80% of the configs",
    )
    return spec(
        title, rows, {"layer": [band, *diagonal(ends, "predicted", "median", measured), median], "height": USUAL_HEIGHT}
    )


def calibration_of_spread(rows: Sequence[SpreadGroup], *, is_calibrated: bool) -> Spec:
    """Return a plot of losses over expected losses, in groups of equally many problems.

    Args:
        rows: the groups.
        is_calibrated: True for expectations from a calibration, False for expectations of the raw members.
    """
    losses = {"type": "quantitative", "scale": {"type": "symlog", "constant": 0.1}}
    expected = "expected loss" if is_calibrated else "loss that the members expect"
    x = {"field": "expected_pct", **losses, "title": f"{expected} (%)"}
    y = {"field": "loss_pct", **losses, "title": "measured loss (%)"}
    for channel in (x, y):
        channel["axis"] = {"values": [0, 0.1, 0.3, 1, 3, 10, 30, 100], "format": ",.2~f"}
    points = {
        "mark": {"type": "line", "style": "model", "point": {"style": "model", "size": 60, "filled": True}},
        "encoding": {
            "x": x,
            "y": y,
            "tooltip": tips(
                ("expected_pct", "expected (%)", ".2f"),
                ("loss_pct", "measured (%)", ".2f"),
                ("share_pct", "share of all loss (%)", ".0f"),
                ("problems", "problems", ","),
            ),
        },
    }
    most = max((max(r.expected_pct, r.loss_pct) for r in rows), default=1.0)
    title = (
        f"Measured against expected loss ({_source(is_calibrated=is_calibrated)})",
        "The losses should rise; above the dashed line the model is overconfident",
    )
    return spec(
        title,
        rows,
        {"layer": [*diagonal([0.0, most], "expected_pct", "loss_pct", losses), points], "height": USUAL_HEIGHT},
    )


def calibration_of_certainty(rows: Sequence[CertaintyGroup], *, is_calibrated: bool) -> Spec:
    """Return a plot of how often the first pick was within 2% of the best, over the predicted probability.

    Args:
        rows: the groups.
        is_calibrated: True for probabilities from a calibration, False for shares of members.
    """
    said = "probability" if is_calibrated else "share of members"
    percent = {"type": "quantitative", "scale": {"domain": [0, 100]}}
    points = {
        "mark": {"type": "point", "style": "model", "filled": True, "opacity": 1},
        "encoding": {
            "x": {"field": "said_pct", **percent, "title": f"predicted {said} within 2% of the best (%)"},
            "y": {"field": "was_pct", **percent, "title": "first picks within 2% of the best (%)"},
            "size": {"field": "problems", "type": "quantitative", "scale": {"range": [30, 300]}, "legend": None},
            "tooltip": tips(
                ("said_pct", "predicted (%)", ".1f"), ("was_pct", "measured (%)", ".1f"), ("problems", "problems", ",")
            ),
        },
    }
    title = (
        f"Measured against predicted certainty ({_source(is_calibrated=is_calibrated)})",
        "The dashed line is a perfect prediction; a large point stands for many problems",
    )
    return spec(
        title,
        rows,
        {"layer": [*diagonal([0.0, 100.0], "said_pct", "was_pct", percent), points], "height": USUAL_HEIGHT},
    )


def _source(*, is_calibrated: bool) -> str:
    """Return the source of a model's confidence."""
    return "calibrated" if is_calibrated else "members, not calibrated"
