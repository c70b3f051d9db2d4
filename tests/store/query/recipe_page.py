"""The recipes of docs, and a small warehouse whose answers to them were worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from view_warehouse import TMA, VENDOR, A, B, C, estimate

import samples
from diode_store.records import Outcome, Source

if TYPE_CHECKING:
    from view_warehouse import Warehouse

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (DOCS / "recipes.md", DOCS / "recipes-measurements.md")
SMALL = samples.matmul(1600, 1600, 64)
LARGE = samples.matmul(1024, 2048, 2048)
NEWER = replace(samples.ENVIRONMENT, torch="2.13.0+cu130")
_SECTION = re.compile(r"^## (\d+)\. ([^\n]+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_SQL = re.compile(r"^```sql\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ROWS = re.compile(
    r"^(Over the bundled data|Over a small example)[^\n]*:\n\n```csv\n(.*?)^```", re.DOTALL | re.MULTILINE
)


class Recipe(NamedTuple):
    """One recipe of the page."""

    number: int
    title: str
    sql: str
    is_bundled: bool
    """Whether the rows are of the bundled data; else of the small warehouse."""
    rows: str
    """The first rows of the answer as CSV, with a header."""


def recipes(page: str | None = None) -> list[Recipe]:
    """Return the recipes of the page, or of a text."""
    found = []
    text = page or "".join(path.read_text(encoding="utf-8") for path in PAGES)
    for number, title, section in _SECTION.findall(text):
        [sql] = _SQL.findall(section)
        [(source, rows)] = _ROWS.findall(section)
        found.append(Recipe(int(number), title, sql, source == "Over the bundled data", rows))
    return found


def fill(warehouse: Warehouse) -> None:
    """Measure two problems on two devices and in two environments."""

    def measure(times: dict[Any, Any], problem: Any, after_s: int = 0, **overrides: Any) -> None:
        at = samples.MEASURED_AT + timedelta(seconds=after_s)
        warehouse.measure(times, problem=problem, measured_at=at, **overrides)

    sweep = {"source": Source.SWEEP, "sweep_id": "0123456789abcdef"}
    measure({A: 8.0, B: 10.0, VENDOR: 9.0, C: Outcome.OUT_OF_RESOURCES}, SMALL, **sweep)
    measure({A: 20.0, B: 20.5, VENDOR: 18.0, TMA: estimate(TMA, 40.0)}, LARGE, 90, **sweep)
    measure({B: 25.0}, LARGE, 60, flags=("throttled",), **sweep)
    measure({A: 8.4}, SMALL)
    measure({A: 1.0}, SMALL, is_replay=True)
    measure({A: 12.0, B: 11.0, VENDOR: 16.0, C: Outcome.TIMEOUT}, SMALL, hardware=samples.H100)
    measure({A: 9.02, B: 6.56}, SMALL, environment=NEWER)
