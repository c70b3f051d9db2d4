"""Pages as HTML. Everything that is filled in is escaped, wherever it comes from."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from diode_explorer.ordering import asked_order, is_by, next_order, ordered
from diode_explorer.pages.page import SORT
from diode_explorer.pages.parts import COUNT, NUMBER, TIME, Note, Picture, Table
from diode_explorer.pages.questions import Answer, Extended, Question
from diode_store.render import json_value
from diode_trainer.report.theme import DARK, LIGHT, css_variables, vega_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from diode_explorer.pages.page import Asked, Page
    from diode_explorer.pages.parts import Column, Link, Part
    from diode_explorer.pages.questions import Value

THEME = (
    f":root {{ {css_variables(LIGHT)} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {css_variables(DARK)} }} }}\n"
)
"""The colours, as CSS."""
PALETTES = {"light": vega_config(LIGHT), "dark": vega_config(DARK)}
"""The same for pictures."""
_TYPED = re.compile(r"`([^`]+)`")
_DIGITS = 6
"""That a number of a picture has: more than anybody sees, and a fraction of the bytes."""


@dataclass(frozen=True)
class Shown:
    """A part with what was found for it."""

    part: Part
    answer: Answer | None = None
    spec: dict[str, Any] | None = None

    @property
    def is_passing(self) -> bool:
        """Whether it tells of what is under way."""
        return isinstance(self.part, Note) and self.part.is_passing

    @property
    def sql(self) -> str | None:
        """Return the query behind it, ready to be run elsewhere."""
        source = getattr(self.part, "source", None)
        if isinstance(source, Extended):
            source = source.question
        return source.text if isinstance(source, Question) else None


def shown(parts: Iterable[Part], asked: Asked) -> Iterator[Shown]:
    """Yield parts with what the lake answers.

    Raises:
        QueryError: a query fails, or takes too long.
        NotThereError: the page was asked about what is not there.
        AddressError: it was asked for an order that it cannot have.
    """
    order = asked_order(asked)
    for each in parts:
        if not isinstance(each, Table | Picture):
            yield Shown(each)
            continue
        part = ordered(each, order) if isinstance(each, Table) else each
        answer = _answered(part.source, asked)
        spec = part.draw(answer.dicts()) if isinstance(part, Picture) and answer.rows else None
        if isinstance(part, Table) and part.most is not None and len(answer.rows) > part.most:
            answer = Answer(answer.names, answer.rows[: part.most], is_cut=True)
        yield Shown(part, answer, None if spec is None else _plain(spec))


def _answered(source: Question | Answer | Extended, asked: Asked) -> Answer:
    if isinstance(source, Extended):
        return source.extend(asked.ask(source.question))
    return source if isinstance(source, Answer) else asked.ask(source)


def render(template: str, **values: Any) -> str:
    """Return a page."""
    return _ENVIRONMENT.get_template(template).render(**values)


def address(page: str, values: Mapping[str, Value]) -> str:
    """Return the address of a page of the site with parameters, in their order."""
    return f"/{page}?{urlencode(values)}" if values else f"/{page}"


def linked(link: Link, row: Mapping[str, Any], page: Page, asked: Asked, pages: Mapping[str, Page]) -> str | None:
    """Return where a value of a row leads; None where it leads nowhere."""
    target = pages.get(link.page or page.name)
    found = {name: row[column] for name, column in link.values.items()}
    if target is None or any(value is None for value in found.values()):
        return None
    keeps = asked.filters if link.keeps else {}
    is_same = target.name == page.name
    known = {name: keeps[name] for name in keeps if target.parameter(name) and (is_same or name != SORT.name)}
    wanted = {**known, **found}
    ordered = {each.name: wanted[each.name] for each in target.parameters if each.name in wanted}
    found_at = asked.address(target.name, ordered)
    return f"{found_at}#{link.part}" if found_at and link.part else found_at


@dataclass(frozen=True)
class Head:
    """The head of a column."""

    address: str | None
    """What orders the table by it."""
    sorted: str | None
    """How it is ordered by it, as ARIA has it; None if it is not."""


def head(table: Table, column: Column, page: Page, asked: Asked) -> Head:
    """Return where a click on a column's head leads, and how the table is ordered by it."""
    order = asked_order(asked)
    now = ("descending" if order.is_descending else "ascending") if is_by(order, table, column) else None
    found = asked.address(page.name, {**asked.filters, SORT.name: str(next_order(table, column, order))})
    return Head(found and f"{found}#{table.name}", now)


def cell(value: object, column: Column) -> str:
    """Return a value as a person reads it: numbers with a comma for thousands, times to the second."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if column.kind == COUNT and isinstance(value, int):
        return f"{value:,}"
    if column.kind == NUMBER and isinstance(value, int | float):
        return f"{value:,.{column.decimals}f}"
    if column.kind == TIME and isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return str(value)


def prose(text: str) -> Markup:
    """Return a text of ours or of an error, in which backticks enclose what is typed, as HTML."""
    return Markup(_TYPED.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


def _plain(value: Any) -> Any:
    """Return a specification as JSON can hold it: no NaN, and no more digits than anybody sees."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return json_value(value)


def _json(value: object) -> str:
    """Return JSON that may stand in a script element: no character of it can end the element."""
    return htmlsafe_json_dumps(value, separators=(",", ":"), ensure_ascii=False)


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals.update(
    cell=cell, head=head, linked=linked, json=_json, prose=prose, home=lambda page: address(page, {})
)
