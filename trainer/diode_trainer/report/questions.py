"""Queries with their values, and their answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diode_store.values.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PARAMETER = re.compile(r"'[^']*'|\$(\w+)")
"""A dollar begins a parameter, except inside quotes: names of models may contain one."""
Value = str | int | float


@dataclass(frozen=True)
class Question:
    """One SELECT with a ``$name`` for each value."""

    sql: str
    values: Mapping[str, Value] = field(default_factory=dict)
    """Values by name; may hold more than the SQL uses."""

    @property
    def bound(self) -> dict[str, Value]:
        """Return the values that the SQL uses."""
        return {name: self.values[name] for name in dict.fromkeys(_PARAMETER.findall(self.sql)) if name}

    @property
    def text(self) -> str:
        """Return the SQL with its values as literals, to run elsewhere."""
        return _PARAMETER.sub(lambda found: _literal(self.values[found[1]]) if found[1] else found[0], self.sql)


@dataclass(frozen=True)
class Typed(Question):
    """One SELECT that a visitor typed. A separate process runs it, within limits."""

    @property
    def bound(self) -> dict[str, Value]:
        """Return no values: a dollar belongs to the visitor's SQL."""
        return {}

    @property
    def text(self) -> str:
        """Return the SQL unchanged."""
        return self.sql


@dataclass(frozen=True)
class Answer:
    """The rows of a query."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool = False
    """True if there are more rows."""

    def dicts(self) -> list[dict[str, Any]]:
        """Return the rows as column → value."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Extended:
    """A query, and columns computed from its rows."""

    question: Question
    extend: Callable[[Answer], Answer]


def where(conditions: Mapping[str, str], filters: Mapping[str, Value], *more: str) -> str:
    """Return the WHERE clause of the filters that are set, or an empty string. Values stay parameters.

    Args:
        conditions: name of a filter → the expression that must equal its value.
        filters: the filters that are set.
        more: further conditions, which always hold.
    """
    wanted = [f"{expression} = ${name}" for name, expression in conditions.items() if name in filters]
    wanted += more
    return f"WHERE {' AND '.join(wanted)}\n" if wanted else ""


def _literal(value: Value) -> str:
    """Return a value as SQL."""
    return quoted(value) if isinstance(value, str) else str(value)
