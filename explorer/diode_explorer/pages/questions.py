"""Queries with their values, and what comes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PARAMETER = re.compile(r"'[^']*'|\$(\w+)")
"""A parameter is what follows a dollar, but not in quotes: there names of models stand, which may have one."""
Value = str | int | float


@dataclass(frozen=True)
class Question:
    """One SELECT with a ``$name`` for each of its values."""

    sql: str
    values: Mapping[str, Value] = field(default_factory=dict)
    """May have more than the SQL asks for."""

    @property
    def bound(self) -> dict[str, Value]:
        """Return the values that it asks for."""
        return {name: self.values[name] for name in dict.fromkeys(_PARAMETER.findall(self.sql)) if name}

    @property
    def text(self) -> str:
        """Return it as somebody may run it elsewhere, with its values as literals."""
        return _PARAMETER.sub(lambda found: _literal(self.values[found[1]]) if found[1] else found[0], self.sql)


@dataclass(frozen=True)
class Answer:
    """The rows of a query."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool = False
    """Whether there are more rows."""

    def dicts(self) -> list[dict[str, Any]]:
        """Return the rows as column → value."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Extended:
    """A query, and columns beside it that are worked out from its rows."""

    question: Question
    extend: Callable[[Answer], Answer]


def where(conditions: Mapping[str, str], filters: Mapping[str, Value], *more: str) -> str:
    """Return the WHERE clause of the filters that are set, empty without any; their values are parameters.

    Args:
        conditions: name of a filter → the expression that must equal its value.
        filters: what is set.
        more: conditions that hold whatever is set.
    """
    wanted = [f"{expression} = ${name}" for name, expression in conditions.items() if name in filters]
    wanted += more
    return f"WHERE {' AND '.join(wanted)}\n" if wanted else ""


def _literal(value: Value) -> str:
    """A quote is all that ends a literal in DuckDB, which knows no escapes in plain ones."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
