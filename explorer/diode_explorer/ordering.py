"""Order of a table's rows, set by a click on a column's head."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from diode_explorer.pages.page import SORT, AddressError
from diode_trainer.report.questions import Answer, Extended, Question

if TYPE_CHECKING:
    from diode_explorer.pages.page import Asked
    from diode_trainer.report.parts import Column, Table

_WRITTEN = re.compile(r"([\w-]+)\.(\w+?)(-desc)?")


@dataclass(frozen=True)
class Order:
    """Column of a table and direction, written ``configs.runtime_us-desc``."""

    table: str
    column: str
    is_descending: bool

    def __str__(self) -> str:
        """Return the order as an address has it."""
        return f"{self.table}.{self.column}{'-desc' * self.is_descending}"


def is_by(order: Order | None, table: Table, column: Column) -> TypeGuard[Order]:
    """Return whether an order is by this column of this table."""
    return order is not None and (order.table, order.column) == (table.name, column.name)


def asked_order(asked: Asked) -> Order | None:
    """Return the order that an address asks for.

    Raises:
        AddressError: the text is not an order.
    """
    text = asked.filters.get(SORT.name)
    if text is None:
        return None
    found = _WRITTEN.fullmatch(str(text))
    if found is None:
        raise AddressError(f"sort must be TABLE.COLUMN or TABLE.COLUMN-desc, not {str(text)[:50]!r}")
    return Order(found[1], found[2], found[3] is not None)


def ordered(table: Table, order: Order | None) -> Table:
    """Return the table in this order, if the order is for this table. Equal rows and missing values keep their order.

    Raises:
        AddressError: the table has no such column.
    """
    if order is None or order.table != table.name:
        return table
    if order.column not in {column.name for column in table.columns}:
        names = ", ".join(column.name for column in table.columns)
        raise AddressError(f"{table.title} has no column {order.column[:50]!r}; it has {names}")
    source = table.source
    if isinstance(source, Question):
        return replace(table, source=_asked_in_order(source, order))
    if isinstance(source, Extended):
        return replace(table, source=Extended(source.question, lambda answer: _sorted(source.extend(answer), order)))
    return replace(table, source=_sorted(source, order))


def next_order(table: Table, column: Column, order: Order | None) -> Order:
    """Return the order after a click on a column's head: numbers descend first, and a second click reverses."""
    if is_by(order, table, column):
        return replace(order, is_descending=not order.is_descending)
    return Order(table.name, column.name, column.is_number)


def _asked_in_order(question: Question, order: Order) -> Question:
    direction = "DESC" if order.is_descending else "ASC"
    sql = f"""\
SELECT * EXCLUDE (given_place)
FROM (
SELECT *, row_number() OVER () AS given_place
FROM (
{question.sql}
)
)
ORDER BY {order.column} {direction} NULLS LAST, given_place"""  # noqa: S608 - one of our own columns
    return Question(sql, question.values)


def _sorted(answer: Answer, order: Order) -> Answer:
    place = answer.names.index(order.column)

    def value(row: tuple[Any, ...]) -> Any:
        return row[place]

    some = sorted((row for row in answer.rows if value(row) is not None), key=value, reverse=order.is_descending)
    return replace(answer, rows=(*some, *(row for row in answer.rows if value(row) is None)))
