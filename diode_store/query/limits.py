"""Limits of a query; light, so that a command's help need not load the query code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Time and memory that a query may take."""

    time_s: float = 600.0
    """Seconds until a query ends."""
    memory: str = "50%"
    """Memory of a query's process, in DuckDB's notation: ``4GB``, or a share of the machine's memory."""


DEFAULT = Limits()
