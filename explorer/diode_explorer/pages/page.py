"""What a page is made of: tables, each with the SQL behind it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PARAMETER = re.compile(r"\$(\w+)")
TEXT, COUNT, TIME = "text", "count", "time"
"""Kinds of columns: counts are aligned to the right, times are UTC."""


@dataclass(frozen=True)
class Column:
    """A column of a table, in the order of its query."""

    head: str
    kind: str = TEXT
    link: str | None = None
    """The filter of the same page that a click on a value sets."""


@dataclass(frozen=True)
class Table:
    """A table of a page."""

    name: str
    """In addresses: letters and hyphens."""
    title: str
    text: str
    """What it shows, in a sentence or two."""
    columns: tuple[Column, ...]
    sql: Callable[[Mapping[str, str]], str]
    """Makes the query; takes the filters that are set, whose values are parameters: ``$device``."""
    empty: str = "Nothing matches."
    """What stands in its place where it has no rows."""


@dataclass(frozen=True)
class Page:
    """A page."""

    name: str
    """Its path."""
    title: str
    text: str
    tables: tuple[Table, ...]
    filters: Mapping[str, str] = field(default_factory=dict)
    """Name of a parameter → its label."""


def where(conditions: Mapping[str, str], filters: Mapping[str, str]) -> str:
    """Return the WHERE clause of the filters that are set, empty without any; their values are parameters.

    Args:
        conditions: name of a filter → the expression that must equal its value.
        filters: what is set.
    """
    wanted = [f"{expression} = ${name}" for name, expression in conditions.items() if name in filters]
    return f"WHERE {' AND '.join(wanted)}\n" if wanted else ""


def parameters_of(sql: str, filters: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the parameters that a query has."""
    return {name: filters[name] for name in dict.fromkeys(_PARAMETER.findall(sql))}


def filled_in(sql: str, filters: Mapping[str, str]) -> str:
    """Return a query as somebody may run it elsewhere, with its parameters as literals.

    A quote is all that ends a literal in DuckDB, which knows no escapes in plain ones.
    """
    return _PARAMETER.sub(lambda found: "'" + filters[found[1]].replace("'", "''") + "'", sql)
