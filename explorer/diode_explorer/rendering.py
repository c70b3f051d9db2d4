"""Pages of the site as HTML: the shared templates with links, orders and filters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from diode_explorer.ordering import asked_order, is_by, next_order, ordered
from diode_explorer.pages.page import SORT
from diode_trainer.report import html
from diode_trainer.report.parts import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diode_explorer.pages.page import Asked, Page
    from diode_trainer.report.html import Shown
    from diode_trainer.report.parts import Column, Link, Part
    from diode_trainer.report.questions import Value


def shown(parts: Iterable[Part], asked: Asked) -> list[Shown]:
    """Return parts with their answers, in the order that the address asks for.

    Raises:
        QueryError: a query fails or takes too long.
        NotThereError: the page was asked about something that is not there.
        AddressError: the address asks for an order that the page does not have.
    """
    order = asked_order(asked)
    return list(html.shown((ordered(each, order) if isinstance(each, Table) else each for each in parts), asked.ask))


def render(template: str, **values: Any) -> str:
    """Return a page."""
    return _ENVIRONMENT.get_template(template).render(**values)


def address(page: str, values: Mapping[str, Value]) -> str:
    """Return the address of a page of the site with parameters, in their order."""
    return f"/{page}?{urlencode(values)}" if values else f"/{page}"


def linked(link: Link, row: Mapping[str, Any], page: Page, asked: Asked, pages: Mapping[str, Page]) -> str | None:
    """Return the address that a value of a row leads to; None if it leads nowhere."""
    target = pages.get(link.page or page.name)
    found = {name: row[column] for name, column in link.values.items()}
    if target is None or any(value is None for value in found.values()):
        return None
    keeps = asked.filters if link.keeps else {}
    is_same = target.name == page.name
    known = {name: keeps[name] for name in keeps if target.parameter(name) and (is_same or name != SORT.name)}
    wanted = {**known, **found}
    values = {each.name: wanted[each.name] for each in target.parameters if each.name in wanted}
    found_at = asked.address(target.name, values)
    return f"{found_at}#{link.part}" if found_at and link.part else found_at


@dataclass(frozen=True)
class Head:
    """The head of a column."""

    address: str | None
    """Address that orders the table by this column."""
    sorted: str | None
    """Present order by this column, as ARIA calls it; None if there is none."""


def head(table: Table, column: Column, page: Page, asked: Asked) -> Head:
    """Return the link of a column's head and the present order by this column."""
    order = asked_order(asked)
    now = ("descending" if order.is_descending else "ascending") if is_by(order, table, column) else None
    found = asked.address(page.name, {**asked.filters, SORT.name: str(next_order(table, column, order))})
    return Head(found and f"{found}#{table.name}", now)


_ENVIRONMENT = html.environment(Path(__file__).parent / "templates", head=head, linked=linked)
