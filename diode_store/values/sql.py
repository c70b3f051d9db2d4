"""Texts in SQL."""

from __future__ import annotations


def quoted(text: str) -> str:
    """Return a text as a literal of SQL: only a quote ends one, in DuckDB and in the predicates of delta-rs."""
    return "'" + text.replace("'", "''") + "'"
