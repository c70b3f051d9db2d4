"""A query's rows as lines of CSV. DuckDB builds the lines itself, several times faster than Python converts values."""

from __future__ import annotations

import csv
import io
import json
from itertools import chain
from typing import TYPE_CHECKING, Any

from diode_store.command_line.render import json_value
from diode_store.query.guard import is_explain
from diode_store.query.results import INTEGERS, QueryResult, bound, kinds_of, run_query

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import duckdb

_QUOTED = (
    "CASE WHEN contains({0}, '\"') OR contains({0}, ',') OR contains({0}, chr(10)) OR contains({0}, chr(13)) "
    "THEN '\"' || replace({0}, '\"', '\"\"') || '\"' ELSE {0} END"
)
_REAL = "CASE WHEN isfinite({0}) THEN {0}::DOUBLE::VARCHAR END"
_TIME = "replace({0}::VARCHAR, ' ', 'T')"
_MICROSECONDS = f"if(contains({_TIME}, '.'), rpad({_TIME}, 26, '0'), {_TIME})"
_PLAIN = "{0}::VARCHAR"
_JSON = _QUOTED.format("to_json({0})::VARCHAR")
_TEXTS = {
    **dict.fromkeys((*INTEGERS, "uhugeint", "boolean", "decimal", "date", "time", "uuid"), _PLAIN),
    **dict.fromkeys(("float", "double"), _REAL),
    **dict.fromkeys(("timestamp", "timestamp_s", "timestamp_ms"), _MICROSECONDS),
    "timestamp_ns": _TIME,
    **dict.fromkeys(("list", "array", "struct", "map"), _JSON),
    "blob": "lower(hex({0}))",
    "varchar": _QUOTED,
}
"""SQL text of a column ``{0}``, by DuckDB's name of its type; any other type is cast and quoted."""


def csv_lines(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] = ()) -> Iterator[str]:
    """Return a header and a line for each row, each with its line feed.

    NULL, NaN and infinity are empty fields, lists and structs are JSON, bytes are hexadecimal. Numbers have all digits.
    The function fetches the first rows before it returns, so early errors precede any output.

    Args:
        connection: from ``analytics.connect``.
        sql: one SELECT, with a ``?`` or ``$1`` for each parameter.
        parameters: the values.

    Raises:
        QueryError: as for ``results.run_query``, or the rows have times with a zone; also raised while lines are read.
    """
    if is_explain(sql):
        plan = run_query(connection, sql, parameters)
        return lines_of(plan.columns, plan)
    relation = bound(connection, sql, parameters)
    kinds = kinds_of(relation)
    texts = [f"coalesce({_text(kind, f'#{place}')}, '')" for place, kind in enumerate(kinds, 1)]
    # A lone empty field would make an empty line.
    line = f"""if({texts[0]} = '', '""', {texts[0]})""" if len(texts) == 1 else ", ',', ".join(texts)
    # The statement inside was checked, so this one needs no check.
    rows = QueryResult(connection, relation.project(f"concat({line}, chr(10))").sql_query(), parameters)
    return chain([_line(relation.columns)], (text for (text,) in rows))


def _text(kind: str, column: str) -> str:
    return _TEXTS.get(kind, _QUOTED.format(_PLAIN)).format(column)


def lines_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the same lines for rows that are already in Python."""
    yield _line(columns)
    yield from (_line([_cell(value) for value in row]) for row in rows)


def _line(fields: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue()


def _cell(value: object) -> object:
    plain = json_value(value)
    return json.dumps(plain, separators=(",", ":")) if isinstance(plain, (list, dict, bool)) else plain
