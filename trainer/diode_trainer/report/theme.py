"""The colours of reports: one palette for a light page and one for a dark one.

The hues are those of Okabe and Ito, which people with any kind of colour vision tell apart. Specifications name no
colour: they leave it to Vega-Lite's configuration, so that one specification suits both palettes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
LABEL_LIMIT_PX = 260
_LABEL_OVERHANG = 16
"""What the last label of an axis may stand out."""
_SMALL = 11
_USUAL = 12


@dataclass(frozen=True)
class Palette:
    """What is drawn in which colour."""

    paper: str
    panel: str
    """Behind headline figures and the heads of tables."""
    ink: str
    muted: str
    """Text that comes second, and baselines."""
    line: str
    """Grid and rules."""
    model: str
    """The judged model: what a reader came for."""
    alarm: str
    """What is bad, and only that."""
    second: str
    """What stands beside the model, such as the best config."""
    steps: tuple[str, ...]
    """The model's hue from strong to weak: a figure at k = 1, 3, 5 and 10."""
    heat: tuple[str, ...]
    """From good to bad; good is nearly the paper."""


LIGHT = Palette(
    paper="#ffffff",
    panel="#f5f6f7",
    ink="#1c2126",
    muted="#5f6870",
    line="#dfe3e6",
    model="#0072b2",
    alarm="#d55e00",
    second="#009e73",
    steps=("#004c78", "#0072b2", "#4da3d4", "#a3d0ec"),
    heat=("#e6ebef", "#f6d9a8", "#e69f00", "#d55e00", "#7a2e00"),
)
DARK = Palette(
    paper="#14181c",
    panel="#1d2329",
    ink="#e4e8eb",
    muted="#9aa5ae",
    line="#333b43",
    model="#56b4e9",
    alarm="#f08a3c",
    second="#2bbf96",
    steps=("#b5e0fa", "#56b4e9", "#2b83b8", "#1f5678"),
    heat=("#222a31", "#5a3a12", "#a85b0a", "#e69f00", "#ffe3a3"),
)


def css_variables(palette: Palette) -> str:
    """Return the palette's plain colours as CSS declarations."""
    return " ".join(f"--{name}: {value};" for name, value in asdict(palette).items() if isinstance(value, str))


def vega_config(palette: Palette) -> dict[str, Any]:
    """Return the configuration that gives a specification this palette.

    A mark takes its colour from a style: ``model``, ``alarm``, ``second``, ``baseline``, ``reference`` (a rule to
    compare with), ``chosen`` (what a reader picked) or ``note``. A scale over k uses the range ``ordinal``, one over
    what is good and bad ``heatmap``, one around a middle ``diverging``, one over (model, alarm, second, baseline, the
    model again) ``category``.
    """
    title = {"color": palette.ink, "subtitleColor": palette.muted, "fontSize": 14, "subtitleFontSize": _USUAL}
    return {
        "background": palette.paper,
        "font": _FONT,
        "padding": {"left": 4, "top": 4, "right": _LABEL_OVERHANG, "bottom": 4},
        "view": {"stroke": None},
        "axis": _axis(palette),
        "title": {**title, "anchor": "start", "frame": "group", "offset": 12, "subtitlePadding": 6},
        "legend": {
            "orient": "top",
            "labelColor": palette.ink,
            "titleColor": palette.muted,
            "labelFontSize": _USUAL,
            "titleFontSize": _USUAL,
            "titleFontWeight": "normal",
            "labelLimit": LABEL_LIMIT_PX,
            "titleLimit": 300,
            "symbolStrokeWidth": 2,
        },
        "text": {"color": palette.ink, "fontSize": _SMALL},
        "style": {
            "model": {"color": palette.model},
            "alarm": {"color": palette.alarm},
            "second": {"color": palette.second},
            "baseline": {"color": palette.muted},
            "reference": {"color": palette.muted, "strokeDash": [4, 4], "strokeWidth": 1},
            "chosen": {"color": palette.ink},
            "note": {"color": palette.muted, "fontSize": _SMALL},
        },
        "range": {
            "category": [palette.model, palette.alarm, palette.second, palette.muted, palette.steps[2]],
            "ordinal": list(palette.steps),
            "ramp": list(palette.heat),
            "heatmap": list(palette.heat),
            "diverging": [palette.heat[3], palette.heat[1], palette.heat[0], palette.steps[3], palette.steps[1]],
        },
    }


def _axis(palette: Palette) -> dict[str, Any]:
    return {
        "labelColor": palette.muted,
        "titleColor": palette.muted,
        "gridColor": palette.line,
        "domainColor": palette.line,
        "tickColor": palette.line,
        "labelFontSize": _SMALL,
        "titleFontSize": _USUAL,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelPadding": 4,
        "labelLimit": LABEL_LIMIT_PX,
    }
