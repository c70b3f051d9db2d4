"""Colors of reports: a palette for light pages and one for dark pages.

The hues are those of Okabe and Ito, which people with any kind of color vision tell apart. Specifications name no
color. They leave colors to Vega-Lite's configuration, so that one specification suits both palettes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
LABEL_LIMIT_PX = 260
_LABEL_OVERHANG = 16
"""Pixels that the last label of an axis may overhang."""
_SMALL = 11
_USUAL = 12


@dataclass(frozen=True)
class Palette:
    """Colors by purpose."""

    paper: str
    panel: str
    """Background of headline figures and code."""
    ink: str
    muted: str
    """Secondary text, and baselines."""
    line: str
    """Grid and rules."""
    model: str
    """The judged model."""
    alarm: str
    """Bad values, and nothing else."""
    second: str
    """Marks beside the model's, such as the best config."""
    steps: tuple[str, ...]
    """The model's hue from strong to weak, for k = 1, 3, 5 and 10."""
    heat: tuple[str, ...]
    """Scale from good to bad; good is nearly the paper."""


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
    """Return the palette's plain colors as CSS declarations."""
    return " ".join(f"--{name}: {value};" for name, value in asdict(palette).items() if isinstance(value, str))


def vega_config(palette: Palette) -> dict[str, Any]:
    """Return Vega's configuration for this palette.

    Styles give marks their colors: ``model``, ``alarm``, ``second``, ``baseline``, ``reference`` (a rule to compare
    with), ``chosen`` (the reader's choice) and ``note``. Ranges give scales their colors:

    - ``ordinal`` for k.
    - ``heatmap`` from good to bad.
    - ``diverging`` around a middle.
    - ``category`` for model, alarm, second, baseline, and the model again.
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
