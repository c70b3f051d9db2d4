"""Picture of the change by slice, as a Vega-Lite specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_trainer.report.specification import names, ratios, rows_height, tips, untitled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from diode_trainer.report.specification import Spec

_X = ratios("time after / before (logarithmic)")


def change_picture(rows: Sequence[Mapping[str, Any]], name: str, address: Callable[[str], str | None]) -> Spec:
    """Return the ratios after / before of slices: geometric means, over the noise.

    Args:
        rows: slices, as ``Pairs.slices`` returns them.
        name: name of the slices.
        address: address of a slice.
    """
    points = [_point(row, address) for row in rows]
    order = [point["slice"] for point in points]
    y = {"field": "slice", "type": "nominal", "sort": order, "title": None, "axis": {**names(), "grid": False}}
    reference = {
        "data": {"values": [{"ratio": 1}]},
        "mark": {"type": "rule", "style": "reference"},
        "encoding": {"x": {"field": "ratio", **_X}},
    }
    content = {
        "height": rows_height(len(points)),
        "data": {"values": points},
        "layer": [
            _span("noise", y, {"type": "rect", "style": "second", "opacity": 0.18}),
            reference,
            _span("quarter", y, {"type": "rule", "style": "baseline", "strokeWidth": 2, "opacity": 0.7}),
            _span("mean", y, {"type": "rule", "style": "model", "strokeWidth": 7, "opacity": 0.45}),
            _dots(y),
        ],
    }
    return untitled(f"The ratio of times after and before, by {name}; above 1 is slower", content)


def _point(row: Mapping[str, Any], address: Callable[[str], str | None]) -> dict[str, Any]:
    noise = 1 + row["noise_pct"] / 100
    text = "-" if row["mean_from"] is None else f"{row['mean_from']:.3f} to {row['mean_to']:.3f}"
    return {
        **row,
        "slice": "(none)" if row["slice"] is None else row["slice"],
        "noise_from": 1 / noise,
        "noise_to": noise,
        "interval": text,
        "quarters": f"{row['quarter_from']:.3f} to {row['quarter_to']:.3f}",
        "address": None if row["slice"] is None else address(row["slice"]),
    }


def _span(field: str, y: Mapping[str, Any], mark: Mapping[str, Any]) -> Spec:
    """Return marks from one column to another."""
    return {
        "transform": [{"filter": f"datum.{field}_from != null"}],
        "mark": mark,
        "encoding": {"x": {"field": f"{field}_from", **_X}, "x2": {"field": f"{field}_to"}, "y": y},
    }


def _dots(y: Mapping[str, Any]) -> Spec:
    return {
        "mark": {"type": "point", "style": "model", "filled": True, "size": 70, "opacity": 1, "cursor": "pointer"},
        "encoding": {
            "x": {"field": "mean_ratio", **_X},
            "y": y,
            "tooltip": tips(
                ("slice", "slice", None),
                ("problems", "problems", ","),
                ("mean_ratio", "geometric mean", ".4f"),
                ("interval", "95% interval", None),
                ("quarters", "middle half", None),
                ("noise_pct", "noise (%)", ".1f"),
                ("slower", "slower", ","),
                ("faster", "faster", ","),
            ),
        },
    }
