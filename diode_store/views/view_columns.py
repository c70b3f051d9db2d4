"""Descriptions of the views and their columns, from ``sql/columns.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("sql") / "columns.toml"


@dataclass(frozen=True)
class ViewText:
    """Description of one view."""

    row: str
    """Meaning of one row."""
    about: str
    """Markdown below the heading: order, filters, an example."""
    columns: dict[str, str]
    """Text of each column that the view describes itself."""

    def column(self, name: str) -> str:
        """Return the text of a column; a column without one is a ``KeyError``."""
        return self.columns[name] if name in self.columns else _texts()["shared"][name]


@cache
def _texts() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def view_text(view: str) -> ViewText:
    """Return the description of a view."""
    text = _texts()["views"][view]
    return ViewText(text["row"], text["about"].strip(), text["columns"])
