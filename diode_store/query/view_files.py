"""The SQL of the views: one file per view in ``views/``, which may include shared parts."""

from __future__ import annotations

import re
from pathlib import Path

from diode_store.query.noise_sql import noise_macros
from diode_store.query.regime_sql import regime_macros
from diode_store.query.roofline_sql import roofline_macros

VIEWS = (
    "observations",
    "fastest_configs",
    "fastest_by_template",
    "config_rank",
    "training_examples",
    "coverage",
    "best_times",
    "vendor_gap",
    "rooflines",
    "disagreements",
    "regressions",
    "regret",
)
"""The public views: their columns are documented and stable."""

_FOLDER = Path(__file__).with_name("views")
_INCLUDE = re.compile(r"^ *-- include (\w+\.sql)\n", re.MULTILINE)


def view_statements() -> tuple[str, ...]:
    """Return the SQL that makes all views, each after the views it uses."""
    return (noise_macros(), regime_macros(), roofline_macros(), *(_read(f"{name}.sql") for name in _files()))


def _files() -> tuple[str, ...]:
    return ("base", *VIEWS)


def _read(name: str) -> str:
    """Return a file's text with its includes, which may nest."""
    return _INCLUDE.sub(lambda found: _read(found[1]), (_FOLDER / name).read_text(encoding="utf-8"))
