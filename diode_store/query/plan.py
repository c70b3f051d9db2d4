"""DuckDB's plan of a query as readable text: one line for each step, with its inputs indented below."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from diode_store.errors import QueryError
from diode_store.query.guard import check_reads_only
from diode_store.query.results import run_query

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

_SHOWN = (
    "Table",
    "CTE Name",
    "Join Type",
    "Conditions",
    "Expression",
    "Filters",
    "Groups",
    "Order By",
    "Top",
)
_LONGEST = 100


def plan_json(connection: duckdb.DuckDBPyConnection, sql: str, *, analyze: bool) -> str:
    """Return the plan of one SELECT as DuckDB's JSON.

    Args:
        connection: a connection from ``diode_store.query.analytics.connect``.
        sql: the SELECT, without EXPLAIN.
        analyze: run it, and report the rows and seconds of each step.

    Raises:
        QueryError: the query is not one SELECT, would write or read elsewhere, or fails; one line.
    """
    # Check the query alone first: after EXPLAIN, DuckDB parses another EXPLAIN or a comment differently.
    check_reads_only(connection, sql)
    if sql.lstrip()[: len("explain")].lower() == "explain":
        raise QueryError("give the SELECT alone; --explain and --analyze put EXPLAIN before it")
    options = "ANALYZE, FORMAT json" if analyze else "FORMAT json"
    [[_kind, text]] = run_query(connection, f"EXPLAIN ({options}) {sql}")
    return str(text)


def plan_lines(text: str) -> Iterator[str]:
    """Yield the lines of a plan in DuckDB's JSON."""
    plan = json.loads(text)
    for step in plan["operator"] if isinstance(plan, dict) else plan:
        yield from _lines(step, 0)


def _lines(step: dict[str, Any], depth: int) -> Iterator[str]:
    name = str(step.get("name") or step.get("type")).strip().lower().replace("_", " ")
    if name in {"result collector", "explain analyze"}:
        deeper = depth
    else:
        deeper = depth + 1
        yield "  " * depth + ", ".join([name, *_details(step)])
    for child in step.get("children", []):
        yield from _lines(child, deeper)


def _details(step: dict[str, Any]) -> Iterator[str]:
    """Yield the details of a step, and its rows and time."""
    about = step.get("extra_info") or {}
    yield from (_short(about[label]) for label in _SHOWN if label in about)
    if "timing" in step:
        yield f"{step['intermediate_rows']:,} rows, {step['timing']:.3f} s"
    elif "Estimated Cardinality" in about:
        yield f"about {int(about['Estimated Cardinality']):,} rows"


def _short(value: object) -> str:
    words = value if isinstance(value, list) else [value]
    text = " and ".join(" ".join(str(word).split()) for word in words)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
