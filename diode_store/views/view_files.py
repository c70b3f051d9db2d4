"""The SQL of the views and the summaries: one file for each in ``sql/``, which may include shared parts."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.devices import descriptor, known
from diode_store.views.noise_sql import noise_macros
from diode_store.views.problem_sql import problem_macros
from diode_store.views.regime_sql import regime_macros
from diode_store.views.roofline_sql import roofline_macros

if TYPE_CHECKING:
    from collections.abc import Iterable

VIEWS = (
    "observations",
    "published",
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
    "metrics",
    "problem_inputs",
)
"""The public views: their columns are documented and stable."""

_ALL = (*VIEWS, "training_timings")
"""All views that are made only if asked for."""

SUMMARIES = ("summaries", "covered")
"""Tables that a sync keeps up to date; the views read them."""

_FOLDER = Path(__file__).with_name("sql")
_COMMENT = re.compile("--.*")
_INCLUDE = re.compile(r"^ *-- include (\w+\.sql)\n", re.MULTILINE)


_BY_ANOTHER_WAY = re.compile(
    "show|describe|summarize|pragma|schema|catalog|_tables|_views|_columns|pg_|sqlite_|duckdb_", re.IGNORECASE
)
"""Words of statements that may reach a view which they do not name."""


def base_statements() -> tuple[str, ...]:
    """Return the SQL that makes what all views use."""
    return (noise_macros(), regime_macros(), roofline_macros(), problem_macros(), _read("base.sql"))


def view_statements(views: Iterable[str]) -> dict[str, str]:
    """Return the SQL that makes views and those they use: name → statement, each after what it uses."""
    found: dict[str, str] = {}
    for name in views:
        text = _read(f"{name}.sql")
        used = _named_in(_COMMENT.sub("", text))
        found |= view_statements(each for each in used if each != name) | {name: text}
    return found


def definition(summary: str) -> str:
    """Return the SELECT that works out one of ``SUMMARIES`` from the tables that ``base.sql`` names."""
    return _read(f"{summary}.sql")


@cache
def definitions_digest() -> str:
    """Return a digest of everything that a summary depends on beside the data."""
    digest = hashlib.blake2b(digest_size=16)
    for text in (*base_statements(), *map(definition, SUMMARIES)):
        digest.update(text.encode())
    # The peaks of devices are figures of these modules.
    for module in (descriptor, known):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()


def views_of(sql: str) -> tuple[str, ...]:
    """Return the views that a statement may read."""
    return VIEWS if _BY_ANOTHER_WAY.search(sql) else _named_in(sql)


def _named_in(sql: str) -> tuple[str, ...]:
    return tuple(name for name in _ALL if re.search(rf"\b{name}\b", sql, re.IGNORECASE))


def _read(name: str) -> str:
    """Return a file's text with its includes, which may nest."""
    return _INCLUDE.sub(lambda found: _read(found[1]), (_FOLDER / name).read_text(encoding="utf-8"))
