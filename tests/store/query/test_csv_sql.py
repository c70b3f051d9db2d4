"""CSV that DuckDB puts together: exact values, quoted where a reader needs it."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import struct
from contextlib import closing
from typing import TYPE_CHECKING

import duckdb
import pytest

from diode_store.errors import QueryError
from diode_store.query.csv_sql import csv_lines, lines_of
from diode_store.query.results import run_query

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = ("plain", "", "a,b", 'say "no"', "two\nlines", "carriage\rreturn", " blank ", "ü", "NULL", '"')


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a connection that knows no table."""
    with closing(duckdb.connect()) as opened:
        yield opened


def both(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[str, str]:
    """Return what DuckDB puts together, and what Python makes of the same rows."""
    result = run_query(connection, sql)
    by_python = "".join(lines_of(result.columns, result))
    return "".join(csv_lines(connection, sql)), by_python


def test_numbers_keep_all_their_digits(connection: duckdb.DuckDBPyConnection) -> None:
    """A double reads back as it was, to the last bit; what is no number is an empty field."""
    rng = random.Random(7)  # noqa: S311 - no secret
    found = [struct.unpack("d", rng.randbytes(8))[0] for _ in range(2000)]
    numbers = [*found, *(10.0**power for power in range(-20, 25)), 0.1 + 0.2, -0.0, math.inf, -math.inf, math.nan]
    connection.execute("CREATE TABLE numbers AS SELECT unnest($1::DOUBLE[]) AS x", [numbers])
    _, *lines = csv_lines(connection, "SELECT x, 1 FROM numbers")
    fields = [line.split(",")[0] for line in lines]
    assert fields == [repr(x) if math.isfinite(x) else "" for x in numbers]


def test_texts_are_quoted_where_needed(connection: duckdb.DuckDBPyConnection) -> None:
    """Any CSV reader gets back every text; so it does the name of a column."""
    connection.execute("CREATE TABLE texts AS SELECT unnest($1) AS a, unnest($1) AS b", [list(TEXTS)])
    text = "".join(csv_lines(connection, 'SELECT a AS "a, ""or"" b", b FROM texts'))
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows == [['a, "or" b', "b"], *([text, text] for text in TEXTS)]
    assert text.splitlines()[1] == "plain,plain"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS a, NULL AS b, true AS c, 1.5 AS d, 7::HUGEINT AS e, 0.1::FLOAT AS f",
        "SELECT '\\xAB'::BLOB AS a, DATE '2020-01-02' AS b, TIME '12:00:00' AS c, 'x'::ENUM('x', 'y') AS d",
        "SELECT TIMESTAMP '2020-01-02 03:04:05' AS a, TIMESTAMP '2020-01-02 03:04:05.5' AS b",
        "SELECT TIMESTAMP '2020-01-02 03:04:05.000001' AS a, '2020-01-02'::TIMESTAMP_S AS b",
        """SELECT [1, 2] AS a, [NULL, 'a"b'] AS b, {'x': 1.5, 'y': [true]} AS c, MAP {'k': 1} AS d, [] AS e""",
        "SELECT NULL AS a",
        "SELECT '' AS a",
        "SELECT range AS n FROM range(25_000)",
        "SELECT range AS n FROM range(30) ORDER BY n % 7, n DESC LIMIT 20",
        "SELECT 1 AS a, 2 AS a",
        "SELECT 1 AS a WHERE false",
        "-- why\nSELECT 1 AS a; -- because",
        "SELECT ';' AS a /* ; */ ; ",
        "FROM range(3)",
        "VALUES (1, 'a'), (2, 'b')",
        "DESCRIBE SELECT 1 AS a, 'b' AS b",
        "SELECT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID AS u",
        "EXPLAIN SELECT 1",
    ],
)
def test_python_says_the_same(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Every kind of value and of statement, in the same order of rows."""
    ours, by_python = both(connection, sql)
    assert ours == by_python


def test_types_that_only_text_can_hold(connection: duckdb.DuckDBPyConnection) -> None:
    """They are DuckDB's own text; a list's is JSON."""
    sql = "SELECT INTERVAL '1 day' AS a, '101'::BIT AS b, union_value(n := 2) AS c, [INTERVAL '2 days'] AS d"
    _, line = csv_lines(connection, sql)
    *fields, nested = next(csv.reader([line]))
    assert (fields, json.loads(nested)) == (["1 day", "101", "2"], ["2 days"])


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT now()", "cast it, as in now()::TIMESTAMP"),
        ("SELECT error('early') FROM range(3)", "early"),
        ("CREATE TABLE x AS SELECT 1", "read-only"),
        ("SELECT 1) UNION (SELECT 2", "syntax error"),
    ],
)
def test_what_fails_early_fails_before_anything_is_printed(
    connection: duckdb.DuckDBPyConnection, sql: str, expected: str
) -> None:
    """No header comes first."""
    with pytest.raises(QueryError) as raised:
        csv_lines(connection, sql)
    assert expected in str(raised.value)
