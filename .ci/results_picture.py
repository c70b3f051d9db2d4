"""Draw ``docs/pictures/whole-models.svg`` from ``docs/results/whole-models.json``: tuning seconds and call time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).resolve().parents[1] / "docs"
FIGURES = DOCS / "results" / "whole-models.json"
PICTURE = DOCS / "pictures" / "whole-models.svg"
WIDTH, HEIGHT = 760, 190
NAMES_END, BAR_WIDTH, ROW, FIRST_ROW = 196, 190, 44, 68
TEXT = "#7a7a7a"  # readable on a white and on a black page
COLORS = ("#8b949e", "#2f81f7", "#2da44e")


def svg(figures: dict[str, Any]) -> str:
    """Return the picture: one row for each way of compiling, one column of bars for each measure."""
    rows = figures["rows"]
    stock = rows[0]
    calls = [row["call_over_plain"] / stock["call_over_plain"] for row in rows]
    title = f"{figures['models']} models on an {figures['device']}: tuning seconds, and time of a call against stock"
    style = f'font-family="system-ui, sans-serif" font-size="15" fill="{TEXT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" {style}>',
        f"<title>{escape(title)}</title>",
        *(_text(NAMES_END - 12, _middle(place), row["name"], "end") for place, row in enumerate(rows)),
        *_bars(NAMES_END, "seconds added to first calls", [row["tuning_s"] for row in rows], "{:.0f} s"),
        *_bars(NAMES_END + BAR_WIDTH + 96, "time of a call", calls, "{:.1%}"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _bars(left: int, heading: str, values: list[float], shown: str) -> Iterator[str]:
    yield _text(left, FIRST_ROW - 34, heading, "start", "bold")
    for place, value in enumerate(values):
        width = max(2.0, BAR_WIDTH * value / max(values))
        top = FIRST_ROW + place * ROW - 14
        yield f'<rect x="{left}" y="{top}" width="{width:.1f}" height="28" rx="3" fill="{COLORS[place]}"/>'
        yield _text(left + width + 8, _middle(place), shown.format(value), "start")


def _middle(place: int) -> int:
    return FIRST_ROW + place * ROW + 5


def _text(x: float, y: int, text: str, anchor: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


def main() -> None:
    """Write the picture."""
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(json.loads(FIGURES.read_text(encoding="utf-8"))), encoding="utf-8")
    sys.stdout.write(f"wrote {PICTURE}\n")


if __name__ == "__main__":
    main()
