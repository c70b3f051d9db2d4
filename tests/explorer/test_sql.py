"""The page of SQL: a visitor's SELECT, its rows and values, and its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import samples
from diode_explorer.feed import Feed
from diode_explorer.pages.sql import SQL
from diode_store.warehouse.store import Store
from diode_trainer.report.questions import Typed
from paged import parts, rows

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def feed(database_url: str) -> Iterator[Feed]:
    """Return a feed over three problems of two dtypes."""
    dtypes = ("bfloat16", "bfloat16", "float16")
    with Store.open(database_url) as store:
        store.write(
            samples.measurement(number, problem=samples.matmul(64 + number, 64, 64, dtype))
            for number, dtype in enumerate(dtypes)
        )
    with Feed(database_url) as found:
        yield found


def test_a_select_and_its_values(feed: Feed) -> None:
    """Rows come in the order of the query, with the values of text columns, each of which leads to a narrower query."""
    sql = "SELECT m, dtype FROM best_times ORDER BY m DESC; "
    found = parts(feed, SQL, q=sql)
    assert [tuple(row.values()) for row in rows(found["rows"])] == [
        (66, "float16"),
        (65, "bfloat16"),
        (64, "bfloat16"),
    ]
    assert [(row["column"], row["value"], row["count"]) for row in rows(found["facets"])] == [
        ("dtype", "bfloat16", 2),
        ("dtype", "float16", 1),
    ]
    narrower = str(rows(found["facets"])[1]["narrowed"])
    assert [tuple(row.values()) for row in rows(parts(feed, SQL, q=narrower)["rows"])] == [(66, "float16")]


def test_lists_have_no_counts(feed: Feed) -> None:
    """A column of lists is shown like any other."""
    found = parts(feed, SQL, q="SELECT [m, 1] AS sizes FROM best_times ORDER BY m")
    assert rows(found["rows"])[0] == {"sizes": [64, 1]}
    assert "facets" not in found


def test_values_are_quoted(feed: Feed) -> None:
    """A value or a column's name with quotes narrows as any other does."""
    sql = """SELECT * FROM (VALUES ('it''s'), ('x')) AS t("a ""b" )"""
    narrower = str(rows(parts(feed, SQL, q=sql)["facets"])[0]["narrowed"])
    assert [tuple(row.values()) for row in rows(parts(feed, SQL, q=narrower)["rows"])] == [("it's",)]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nothing", 'Referenced column "nothing" was not found'),
        ("DROP VIEW best_times", "queries are read-only"),
        ("SELECT * FROM read_csv('/etc/passwd')", "queries are read-only"),
        ("SELECT range(3000000000)", "memory"),
    ],
)
def test_what_cannot_be_asked(feed: Feed, sql: str, said: str) -> None:
    """The page says why, and the next query works."""
    notes = [part.part.text for part in parts(feed, SQL, q=sql).values() if getattr(part.part, "is_alarm", False)]
    assert [said in note for note in notes] == [True]
    assert rows(parts(feed, SQL, q="SELECT 1 AS one")["rows"]) == [{"one": 1}]


def test_views_have_an_example(feed: Feed) -> None:
    """Each view's example is a query that works."""
    examples = {str(row["view"]): str(row["example"]) for row in rows(parts(feed, SQL)["views"])}
    assert {"best_times", "fastest_configs", "observations", "hardware"} <= examples.keys()
    assert len(rows(parts(feed, SQL, q=examples["best_times"])["rows"])) == 3


def test_text_of_several_lines() -> None:
    """An address may hold line breaks and tabs of a query, and nothing else that cannot be printed."""
    assert SQL.parse([("q", "SELECT 1,\r\n\t2\n")]) == {"q": "SELECT 1,\n\t2"}
    with pytest.raises(ValueError, match="too long, or not printable"):
        SQL.parameters[0].parse("SELECT\x00")


def test_what_is_typed_is_downloaded(feed: Feed) -> None:
    """As a table of all of its rows."""
    table = feed.state.table(Typed("SELECT range AS n FROM range(5)"))
    assert table.to_pydict() == {"n": [0, 1, 2, 3, 4]}
