"""A box for SQL: one SELECT over the views, its answer, and the values of its columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from diode_explorer.pages.page import Page, Parameter
from diode_store.errors import QueryError, first_line
from diode_trainer.report.parts import COUNT, NUMBER, PROSE, Column, Link, Note, Table
from diode_trainer.report.questions import Answer, Question, Typed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_explorer.pages.page import Asked
    from diode_trainer.report.parts import Part

_MOST_VALUES = 20
"""Maximum distinct values of a column that is a facet."""
_DECIMALS = 3
_VIEWS = """\
SELECT
    name AS view,
    array_to_string(column_names, ', ') AS columns,
    format('SELECT *{}FROM {}{}LIMIT 20', chr(10), name, chr(10)) AS example
FROM (SHOW ALL TABLES)
ORDER BY name"""


def _parts(asked: Asked) -> Iterator[Part]:
    sql = str(asked.filters.get("q", "")).rstrip("; \n")
    if sql:
        yield from _answered(asked, sql)
    else:
        yield Note("Type one SELECT in DuckDB's dialect, or click a view below to see its first rows.")
    yield Table(
        "views",
        "Views and tables",
        "Everything that a SELECT can query, with all columns. Click a name to see its first rows.",
        (Column("view", "view", link=Link({"q": "example"}, keeps=False)), Column("columns", "columns", PROSE)),
        Question(_VIEWS),
    )


def _answered(asked: Asked, sql: str) -> Iterator[Part]:
    question = Typed(sql)
    try:
        answer = asked.ask(question)
    except QueryError as error:
        yield Note(first_line(error), is_alarm=True)
        return
    columns = tuple(_column(name, place, answer) for place, name in enumerate(answer.names))
    if facets := _facets(sql, answer):
        yield Table(
            "facets",
            "Values",
            "Counts among the rows below, for columns with few distinct values. Click a value to keep its rows.",
            (
                Column("column", "column"),
                Column("value", "value", link=Link({"q": "narrowed"}, keeps=False)),
                Column("count", "rows", COUNT),
            ),
            Answer(("column", "value", "count", "narrowed"), facets),
        )
    yield Table("rows", "Rows", "", columns, question, "No row.", is_sortable=False)


def _column(name: str, place: int, answer: Answer) -> Column:
    values = [row[place] for row in answer.rows if row[place] is not None]
    if values and all(type(value) is int for value in values):
        return Column(name, name, COUNT)
    if values and all(type(value) is float for value in values):
        return Column(name, name, NUMBER, _DECIMALS)
    return Column(name, name)


def _facets(sql: str, answer: Answer) -> tuple[tuple[str, str, int, str], ...]:
    """Return column, value, count and a narrower SELECT for each value of a text column with few values."""
    found: list[tuple[str, str, int, str]] = []
    for place, name in enumerate(answer.names):
        values = [row[place] for row in answer.rows]
        if not all(isinstance(value, str) for value in values):
            continue
        counts = Counter(values)
        if 1 < len(counts) <= _MOST_VALUES:
            found += [(name, value, count, _narrowed(sql, name, value)) for value, count in counts.most_common()]
    return tuple(found)


def _narrowed(sql: str, column: str, value: str) -> str:
    quoted_column, quoted_value = column.replace('"', '""'), value.replace("'", "''")
    return f"SELECT *\nFROM (\n{sql}\n)\nWHERE \"{quoted_column}\" = '{quoted_value}'"


SQL = Page(
    "sql",
    "SQL",
    "One SELECT over the views, as in `diode query`: read-only, for at most 10 s and a quarter of the memory.",
    (Parameter("q", "SELECT", is_sql=True),),
    _parts,
    is_printed=False,
)
