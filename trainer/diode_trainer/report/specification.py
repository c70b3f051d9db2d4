"""Building blocks of pictures: frames, axes, tooltips and reference lines as Vega-Lite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""Name of the language; nothing is loaded from there."""
LEAST_LOSS = 0.01
"""Percent at which axes of losses begin. Smaller losses are drawn there, since a logarithm has no zero."""
LOSS_TITLE = "slower than the best measured (%)"
USUAL_HEIGHT = 320
TALL = 420
_LEAST_MOST_LOSS = 10.0
"""Least percent at which axes of losses end, so that neighboring pictures can be compared."""
_DECADES = [10.0**power for power in range(-2, 9)]
_ROW_HEIGHT = 24


def spec(title: tuple[str, str], rows: Iterable[NamedTuple] | None, content: Spec) -> Spec:
    """Return a whole specification; a screen reader reads its title."""
    text, direction = title
    data = {} if rows is None else {"data": values(rows)}
    title_of = {"$schema": SCHEMA, "title": {"text": text, "subtitle": direction}}
    return {**title_of, **untitled(f"{text}. {direction}.", {**data, **content})}


def untitled(description: str, content: Spec) -> Spec:
    """Return a whole specification whose title stands on the page; a screen reader reads the description."""
    return {
        "$schema": SCHEMA,
        "description": description,
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        **content,
    }


def values(rows: Iterable[NamedTuple]) -> Spec:
    """Return rows as the data of a specification."""
    return {"values": [row._asdict() for row in rows]}


def rows_height(count: int) -> int:
    """Return the height of a picture with ``count`` rows."""
    return max(count, 1) * _ROW_HEIGHT


def names() -> Spec:
    """Return the axis of named rows."""
    return {"ticks": False, "domain": False, "grid": True, "labelPadding": 8}


def loss(most: float) -> Spec:
    """Return a logarithmic axis of losses in percent.

    Args:
        most: the greatest loss, for which the axis has room.
    """
    end = max(_LEAST_MOST_LOSS, 1.2 * most)
    scale = {"type": "log", "domain": [LEAST_LOSS, end], "clamp": True, "nice": False}
    # A clamped axis draws ticks beyond its end at its end.
    axis = {"values": [decade for decade in _DECADES if decade <= end], "format": ",.2~f"}
    return {"field": "loss_pct", "type": "quantitative", "scale": scale, "axis": axis, "title": LOSS_TITLE}


def log_us(title: str) -> Spec:
    """Return a logarithmic axis of microseconds."""
    scale = {"type": "log", "nice": False, "padding": 6}
    return {"type": "quantitative", "scale": scale, "title": title, "axis": {"format": "~s", "values": _DECADES}}


def ratios(title: str) -> Spec:
    """Return a logarithmic axis of ratios: doubling and halving have the same length."""
    axis = {"format": ".3~f", "grid": False, "labelOverlap": "greedy", "labelSeparation": 4}
    scale = {"type": "log", "nice": False, "padding": 12}
    return {"type": "quantitative", "title": title, "scale": scale, "axis": axis}


def tips(*fields: tuple[str, str, str | None]) -> list[Spec]:
    """Return a tooltip's fields: (field, title, number format or None for text) each."""
    return [
        {"field": field, "title": title, "type": "nominal"}
        if number is None
        else {"field": field, "title": title, "type": "quantitative", "format": number}
        for field, title, number in fields
    ]


def diagonal(ends: Sequence[float], x: str, y: str, channel: Spec | None = None) -> list[Spec]:
    """Return the line on which x and y are equal, as a layer."""
    encoding = {
        "x": {"field": x, "type": "quantitative"},
        "y": {"field": y, "type": "quantitative", **(channel or {})},
    }
    values = [{x: end, y: end} for end in ends]
    return [{"data": {"values": values}, "mark": {"type": "line", "style": "reference"}, "encoding": encoding}]


def thresholds(losses: Sequence[float]) -> list[Spec]:
    """Return a dashed rule with its value at each loss, as layers."""
    data = {"values": [{"loss_pct": loss, "label": f"{loss}%"} for loss in losses]}
    x = {"field": "loss_pct", "type": "quantitative"}
    text = {"type": "text", "style": "note", "align": "left", "dx": 4, "dy": -8}
    return [
        {"data": data, "mark": {"type": "rule", "style": "reference"}, "encoding": {"x": x}},
        {"data": data, "mark": text, "encoding": {"x": x, "y": {"value": "height"}, "text": {"field": "label"}}},
    ]
