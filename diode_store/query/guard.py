"""Check of a query's SQL: one statement that reads the cache's tables and nothing else.

DuckDB's own lock is not enough: COPY TO may overwrite the cache's allowed files, even from inside a WITH, and EXPLAIN
ANALYZE runs its statement. Therefore the guard parses the statement. Its tree may hold only queries and harmless table
functions.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import duckdb

from diode_store.errors import QueryError

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "repeat", "json_each", "json_tree", "summary"})
# EXPLAIN has no tree of its own, so the guard removes it and checks the explained statement. A comment may not precede
# EXPLAIN: only DuckDB's lexer finds its end, and another reading would check another statement than the one run.
_SPACE = r"[ \t\r\n]"
_EXPLAIN = re.compile(
    rf"{_SPACE}*explain(?:{_SPACE}+analyze)?(?:{_SPACE}*\([\w, \t\r\n]*\))?{_SPACE}+", re.IGNORECASE | re.ASCII
)
_READ_ONLY = "queries are read-only"
NO_ZONES = "a time with a zone cannot be shown; cast it, as in now()::TIMESTAMP (times in the cache are UTC)"
_POINTER = re.compile(r"^LINE \d+:|^\^+$")


def check_reads_only(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise QueryError with one line unless ``sql`` is one statement that only reads.

    Args:
        connection: any connection; it parses ``sql`` and runs none of it.
        sql: the user's text.
    """
    kinds = _kinds(sql)
    if not kinds:
        raise QueryError('there is no statement; try "SELECT count(*) FROM observations"')
    if len(kinds) > 1:
        raise QueryError(f"{len(kinds)} statements at once; give one")
    kind = kinds[0]
    if kind == duckdb.StatementType.EXPLAIN:
        _check_explained(connection, sql)
    elif kind == duckdb.StatementType.SELECT:
        _check_tree(connection, sql)
    else:
        raise QueryError(f"{_READ_ONLY}: {kind.name.replace('_', ' ')} is refused; use SELECT or EXPLAIN")


def one_line(error: BaseException) -> str:
    """Return DuckDB's message on one line: with its hints, without the marked excerpt of the SQL."""
    if "pytz" in str(error):
        return NO_ZONES
    lines = (line.strip() for line in str(error).splitlines())
    return " ".join(line for line in lines if line and not _POINTER.match(line))


def without_semicolon(sql: str) -> str:
    """Return one statement up to its closing semicolon, so that it can stand inside another."""
    text = sql.encode()
    tokens = duckdb.tokenize(sql)
    ends = [at for at, kind in tokens if kind == duckdb.token_type.operator and text[at : at + 1] == b";"]
    return text[: ends[0]].decode() if ends else sql


def is_explain(sql: str) -> bool:
    """Return whether ``sql`` is an EXPLAIN, which cannot stand inside another statement."""
    return _kinds(sql) == [duckdb.StatementType.EXPLAIN]


def _check_explained(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    explain = _EXPLAIN.match(sql)
    if explain is None:
        raise QueryError(
            "this EXPLAIN is not understood; begin with EXPLAIN or EXPLAIN ANALYZE and a space, no comment"
        )
    explained = sql[explain.end() :]
    if _kinds(explained) != [duckdb.StatementType.SELECT]:
        raise QueryError(f"{_READ_ONLY}: only a SELECT can be explained")
    _check_tree(connection, explained)


def _kinds(sql: str) -> list[duckdb.StatementType]:
    try:
        return [statement.type for statement in duckdb.extract_statements(sql)]
    except duckdb.Error as error:
        raise QueryError(one_line(error)) from error
    except (ValueError, TypeError) as error:  # a statement missing in DuckDB's own enumeration; text that is not UTF-8
        raise QueryError(f"{_READ_ONLY}: this statement is not understood; use SELECT or EXPLAIN") from error


def _check_tree(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    [[text]] = connection.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()
    tree = json.loads(text)
    if tree.get("error"):
        raise QueryError(f"{_READ_ONLY}: this statement cannot be checked; write it as a plain SELECT")
    for node in _objects(tree["statements"]):
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in _QUERY_NODES:
            what = kind.removesuffix("_NODE").removesuffix("_QUERY")
            raise QueryError(f"{_READ_ONLY}: {what} inside a WITH is refused")
        if kind == "TABLE_FUNCTION":
            name = str(node.get("function", {}).get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                raise QueryError(f"{_READ_ONLY} and see the cache only: the table function {name}() is refused")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in ``value``, at any depth."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
