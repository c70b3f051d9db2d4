"""The coverage map, as a Vega-Lite specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_explorer.pages.coverage.cells import octave_column, octave_text
from diode_trainer.report.specification import tips, untitled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from diode_explorer.pages.coverage.holes import Cell
    from diode_trainer.report.specification import Spec

_ROW_HEIGHT, _LEAST_HEIGHT = 24, 160
_INSET: Spec = {"xOffset": 1, "x2Offset": -1, "yOffset": -1, "y2Offset": 1}
"""Gaps between cells, in pixels."""
_LARGEST_GAIN = 2.0
"""End of the color scale of vendor / Triton."""

_LINEAR: Spec = {"range": "ordinal", "reverse": True}
_LOG: Spec = {**_LINEAR, "type": "log", "nice": False}
_SHARE: Spec = {**_LINEAR, "domain": [0, 100], "clamp": True}
_AROUND_1: Spec = {"type": "log", "domain": [1 / _LARGEST_GAIN, _LARGEST_GAIN], "clamp": True, "range": "diverging"}
SHOWN: dict[str, tuple[str, str, Spec, Spec]] = {
    "problems": ("problems", "problems", _LOG, {"format": ",d"}),
    "time": ("best_us", "best time (us), median", _LOG, {"format": "~s"}),
    "speed": ("tflops", "TFLOP/s, median", _LINEAR, {}),
    "roofline": ("roofline_pct", "of the roofline's speed (%), median", _SHARE, {}),
    "vendor": ("speedup", "vendor / Triton, median", _AROUND_1, {"values": [0.5, 0.7, 1, 1.4, 2], "format": ".1f"}),
    "wins": ("triton_wins_pct", "Triton faster (% of problems)", _SHARE, {}),
}
"""Meaning of the colors → column, title, scale and legend."""


def coverage_picture(
    rows: Sequence[Mapping[str, Any]],
    *,
    axes: tuple[str, str],
    shows: str,
    holes: Sequence[Cell],
    chosen: Mapping[str, int],
    address: Callable[[Mapping[str, int]], str | None],
) -> Spec:
    """Return the cells of a map by two sizes, the largest at the top right.

    Args:
        rows: octaves, problems and medians of each cell.
        axes: the vertical and the horizontal size.
        shows: meaning of the colors, a key of ``SHOWN``.
        holes: cells without problems that can be chosen too.
        chosen: column of an octave → start of the chosen one.
        address: address of a cell's octaves.
    """
    columns = octave_column(axes[0]), octave_column(axes[1])

    def drawn(row: Mapping[str, Any]) -> dict[str, Any]:
        up, right = (row[column] for column in columns)
        place = {column: row[column] for column in columns}
        return {**row, **_edges("up", up), **_edges("right", right), "address": address(place)}

    cells = [drawn({**row, "last": f"{row['last_measured_at']:%Y-%m-%d}"}) for row in rows]
    empty = [drawn(dict(zip(columns, hole, strict=True))) for hole in holes]
    places = _places(axes, [row[columns[0]] for row in rows], [row[columns[1]] for row in rows])
    marked = [
        each for each in (*cells, *empty) if chosen and all(each[name] == start for name, start in chosen.items())
    ]
    octaves = {row[columns[0]] for row in rows}
    content = {
        "height": max((max(octaves) // min(octaves)).bit_length() * _ROW_HEIGHT, _LEAST_HEIGHT),
        "encoding": places,
        "layer": [_empty_layer(empty, axes), _cell_layer(cells, axes, shows), _marked_layer(marked)],
    }
    return untitled(
        f"Cells by {axes[0].upper()} and {axes[1].upper()} in octaves, colored by {SHOWN[shows][1]}", content
    )


def _edges(axis: str, start: int) -> dict[str, Any]:
    return {axis: start, f"{axis}_end": 2 * start, f"{axis}_text": octave_text(start)}


def _places(axes: tuple[str, str], *starts: Sequence[int]) -> Spec:
    encoding = {}
    for channel, field, size, octaves in zip(("y", "x"), ("up", "right"), axes, starts, strict=True):
        ends = min(octaves), 2 * max(octaves)
        values = [2**power for power in range(ends[0].bit_length() - 1, ends[1].bit_length())]
        encoding[channel] = {
            "field": field,
            "type": "quantitative",
            "title": f"{size.upper()} (logarithmic)",
            "scale": {"type": "log", "base": 2, "domain": list(ends), "nice": False},
            "axis": {"grid": False, "values": values, "format": ",d", "labelOverlap": "greedy", "labelSeparation": 4},
        }
        encoding[f"{channel}2"] = {"field": f"{field}_end"}
    return encoding


def _cell_layer(cells: Sequence[Mapping[str, Any]], axes: tuple[str, str], shows: str) -> Spec:
    field, title, scale, legend = SHOWN[shows]
    if scale is _LOG:
        legend = {**legend, "values": _steps([each[field] for each in cells])}
    return {
        "data": {"values": cells},
        "mark": {"type": "rect", "cursor": "pointer", **_INSET},
        "encoding": {
            "color": {
                "field": field,
                "type": "quantitative",
                "title": title,
                "scale": {**scale, "interpolate": "rgb"},
                "legend": {"gradientLength": 200, **legend},
            },
            "tooltip": tips(
                *_octave_tips(axes),
                ("problems", "problems", ","),
                ("best_us", "best time (us)", ",.2f"),
                ("tflops", "TFLOP/s", ",.1f"),
                ("roofline_pct", "of the roofline (%)", ".0f"),
                ("speedup", "vendor / Triton", ".3f"),
                ("triton_wins_pct", "Triton faster (%)", ".0f"),
                ("last", "last measured", None),
            ),
        },
    }


def _steps(values: Sequence[float]) -> list[float]:
    """Return 1, 3, 10, 30 and so on, within the range of the values."""
    steps = (digit * 10.0**power for power in range(-3, 10) for digit in (1, 3))
    return [step for step in steps if min(values) <= step <= max(values)]


def _empty_layer(empty: Sequence[Mapping[str, Any]], axes: tuple[str, str]) -> Spec:
    data = [{**each, "problems": "none; click for the command that measures one"} for each in empty]
    return {
        "data": {"values": data},
        "mark": {"type": "rect", "style": "reference", "filled": False, "cursor": "pointer", **_INSET},
        "encoding": {"tooltip": tips(*_octave_tips(axes), ("problems", "problems", None))},
    }


def _marked_layer(marked: Sequence[Mapping[str, Any]]) -> Spec:
    return {
        "data": {"values": marked},
        "mark": {"type": "rect", "style": "chosen", "filled": False, "strokeWidth": 3},
    }


def _octave_tips(axes: tuple[str, str]) -> list[tuple[str, str, str | None]]:
    return [("up_text", axes[0].upper(), None), ("right_text", axes[1].upper(), None)]
