"""The picture of a problem's times, as a Vega-Lite specification in the styles of the reports'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_trainer.report.specification import SCHEMA, tips

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEIGHT = 340


def times_picture(rows: Sequence[Mapping[str, Any]], case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times of configs by their place, fastest first.

    Args:
        rows: place, template, tile sizes, runtime_us, p10_us, p90_us, is_tie, is_vendor, is_default.
        case: best_us, tie_us and vendor_us of the problem.
    """
    points = [_point(row) for row in rows]
    x = {
        "field": "place",
        "type": "quantitative",
        "title": "place (logarithmic)",
        "scale": {"type": "log", "nice": False, "padding": 6},
        "axis": {"grid": False, "format": ","},
    }
    y = {"type": "quantitative", "title": "time (us)", "scale": {"type": "log", "nice": False, "padding": 8}}
    kinds = {"field": "kind", "type": "nominal", "scale": {"domain": list(_KINDS)}, "title": None}
    hovered = tips(
        ("config", "config", None),
        ("us", "time (us)", ",.2f"),
        ("ratio", "of the best", ".3f"),
        ("low", "P10 (us)", ",.2f"),
        ("high", "P90 (us)", ",.2f"),
        ("kind", "what", None),
    )
    band = {
        "data": {"values": [{"from": case["best_us"], "to": case["tie_us"]}]},
        "mark": {"type": "rect", "style": "second", "opacity": 0.18},
        "encoding": {"y": {"field": "from", **y}, "y2": {"field": "to"}},
    }
    bars = {
        "transform": [{"filter": "datum.low != null && datum.high != null"}],
        "mark": {"type": "rule", "style": "baseline", "opacity": 0.5},
        "encoding": {"x": x, "y": {"field": "low", **y}, "y2": {"field": "high"}},
    }
    dots = {
        "mark": {"type": "point", "filled": True, "opacity": 0.9, "size": 34},
        "encoding": {
            "x": x,
            "y": {"field": "us", **y},
            "color": {**kinds, "legend": {"symbolOpacity": 1}},
            "shape": {**kinds, "scale": {"domain": list(_KINDS), "range": ["circle", "diamond", "square", "circle"]}},
            "tooltip": hovered,
        },
    }
    layers: list[dict[str, Any]] = [band, bars, dots]
    if case["vendor_us"] is not None:
        layers.insert(1, _vendor(case["vendor_us"], y))
    return {
        "$schema": SCHEMA,
        "description": f"The times of {len(rows)} configs by place, and which tie with the fastest",
        "width": "container",
        "height": _HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": points},
        "layer": layers,
    }


_KINDS = ("a template's kernel", "the vendor's", "of Inductor's DEFAULT list", "of a TMA template")
"""What a config is; colours follow this order."""


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    kernel, vendor, default, tma = _KINDS
    kind = kernel
    if row["is_vendor"]:
        kind = vendor
    elif row["is_default"]:
        kind = default
    elif "tma" in row["template"]:
        kind = tma
    sizes = [row[name] for name in ("block_m", "block_n", "block_k")]
    config = row["template"]
    if None not in sizes:
        config += f" {'x'.join(map(str, sizes))}, {row['num_stages']} stages, {row['num_warps']} warps"
    return {
        "place": row["place"],
        "us": row["runtime_us"],
        "ratio": row["ratio"],
        "low": row["p10_us"],
        "high": row["p90_us"],
        "kind": kind,
        "config": config,
    }


def _vendor(us: float, y: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "data": {"values": [{"us": us}]},
        "mark": {"type": "rule", "style": "reference"},
        "encoding": {"y": {"field": "us", **y}},
    }
