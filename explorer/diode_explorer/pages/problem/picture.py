"""Picture of a problem's times, as a Vega-Lite specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_trainer.report.specification import tips, untitled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEIGHT = 340


def times_picture(rows: Sequence[Mapping[str, Any]], case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times of configs by place, fastest first.

    Args:
        rows: place, template, tile sizes, runtime_us, p10_us, p90_us, is_tie, is_vendor and is_default; with a
            model's ranking also predicted_us and model_place.
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
    is_ranked = any(point["predicted"] is not None for point in points)
    names = [*_KINDS, _PREDICTED] if is_ranked else list(_KINDS)
    kinds = {"field": "kind", "type": "nominal", "scale": {"domain": names}, "title": None}
    layers: list[dict[str, Any]] = [
        _ties(case, y),
        _percentiles(x, y),
        *([_predicted(x, y, kinds)] if is_ranked else []),
        _configs(x, y, kinds),
    ]
    if case["vendor_us"] is not None:
        layers.insert(1, _vendor(case["vendor_us"], y))
    content = {
        "height": _HEIGHT,
        "data": {"values": points},
        "layer": layers,
    }
    return untitled(f"Times of {len(rows)} configs by place, with the fastest's ties", content)


_KINDS = ("template kernel", "vendor kernel", "in Inductor's DEFAULT list", "TMA template")
"""Kinds of configs, in the order of their colors."""
_PREDICTED = "predicted"
_SHAPES = ["circle", "diamond", "square", "circle", "stroke"]


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    kernel, vendor, default, tma = _KINDS
    kind = kernel
    if row["is_vendor"]:
        kind = vendor
    elif row["is_default"]:
        kind = default
    elif "tma" in row["template"]:
        kind = tma
    return {
        "place": row["place"],
        "us": row["runtime_us"],
        "ratio": row["ratio"],
        "low": row["p10_us"],
        "high": row["p90_us"],
        "kind": kind,
        "config": config_text(row),
        "predicted": row.get("predicted_us"),
        "rank": row.get("model_place"),
    }


def _predicted(x: Mapping[str, Any], y: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's predictions, as dashes above and below the times."""
    return {
        "transform": [{"filter": "isValid(datum.predicted)"}, {"calculate": f"'{_PREDICTED}'", "as": "kind"}],
        "mark": {"type": "point", "shape": "stroke", "strokeWidth": 2, "opacity": 0.8, "size": 50},
        "encoding": {
            "x": x,
            "y": {"field": "predicted", **y},
            "color": kinds,
            "tooltip": tips(
                ("config", "config", None),
                ("predicted", "predicted (us)", ",.2f"),
                ("us", "measured (us)", ",.2f"),
                ("rank", "the model's place", ","),
            ),
        },
    }


def config_text(row: Mapping[str, Any]) -> str:
    """Return a row's config in short."""
    sizes = [row[name] for name in ("block_m", "block_n", "block_k")]
    if None in sizes:
        return str(row["template"])
    return f"{row['template']} {'x'.join(map(str, sizes))}, {row['num_stages']} stages, {row['num_warps']} warps"


def _ties(case: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
    """Return the band of ties with the best."""
    return {
        "data": {"values": [{"from": case["best_us"], "to": case["tie_us"]}]},
        "mark": {"type": "rect", "style": "second", "opacity": 0.18},
        "encoding": {"y": {"field": "from", **y}, "y2": {"field": "to"}},
    }


def _percentiles(x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
    """Return bars for the scatter of each config's runs, if known."""
    return {
        "transform": [{"filter": "datum.low != null && datum.high != null"}],
        "mark": {"type": "rule", "style": "baseline", "opacity": 0.5},
        "encoding": {"x": x, "y": {"field": "low", **y}, "y2": {"field": "high"}},
    }


def _configs(x: Mapping[str, Any], y: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point for each config."""
    hovered = tips(
        ("config", "config", None),
        ("us", "time (us)", ",.2f"),
        ("ratio", "time / best", ".3f"),
        ("low", "P10 (us)", ",.2f"),
        ("high", "P90 (us)", ",.2f"),
        ("kind", "what", None),
    )
    return {
        "mark": {"type": "point", "filled": True, "opacity": 0.9, "size": 34},
        "encoding": {
            "x": x,
            "y": {"field": "us", **y},
            "color": {**kinds, "legend": {"symbolOpacity": 1}},
            "shape": {**kinds, "scale": {**kinds["scale"], "range": _SHAPES[: len(kinds["scale"]["domain"])]}},
            "tooltip": hovered,
        },
    }


def _vendor(us: float, y: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "data": {"values": [{"us": us}]},
        "mark": {"type": "rule", "style": "reference"},
        "encoding": {"y": {"field": "us", **y}},
    }
