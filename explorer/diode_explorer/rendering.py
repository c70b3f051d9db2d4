"""Pages as HTML. Everything that is filled in is escaped, wherever it comes from."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from diode_explorer.pages.page import COUNT, TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_explorer.pages.page import Column


def render(template: str, **values: Any) -> str:
    """Return a page."""
    return _ENVIRONMENT.get_template(template).render(**values)


def cell(value: object, column: Column) -> str:
    """Return a value as a person reads it: counts with a comma for thousands, times to the second."""
    if value is None:
        return "-"
    if column.kind == COUNT and isinstance(value, int):
        return f"{value:,}"
    if column.kind == TIME and isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    return str(value)


def address(path: str, filters: Mapping[str, str], **changes: str | None) -> str:
    """Return the address of a page, with filters as they are but for some; None takes one away."""
    wanted = {name: value for name, value in ({**filters, **changes}).items() if value is not None}
    return f"{path}?{urlencode(wanted)}" if wanted else path


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals.update(cell=cell, address=address)
