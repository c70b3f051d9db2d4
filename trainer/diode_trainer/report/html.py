"""HTML pages of parts. The templates escape every value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from diode_store.candidates.names import SHORT_DTYPES
from diode_store.command_line.render import json_value
from diode_store.values.times import duration_text
from diode_trainer.report.parts import COUNT, DURATION, NUMBER, TIME, Note, Picture, Section, Table
from diode_trainer.report.questions import Answer, Extended, Question
from diode_trainer.report.theme import DARK, LIGHT, css_variables, vega_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from diode_trainer.report.parts import Column, Part

_ROOM = Path(__file__).parent
STATIC = _ROOM / "static"
"""Folder of the style and of the scripts that draw pictures."""
THEME = (
    f":root {{ {css_variables(LIGHT)} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {css_variables(DARK)} }} }}\n"
)
"""CSS variables for the colors of both schemes."""
PALETTES = {"light": vega_config(LIGHT), "dark": vega_config(DARK)}
"""Vega's configuration for each color scheme."""
_CODE = re.compile(r"`([^`]+)`")
_NUMBERS: dict[str, Callable[[float, int], str]] = {
    COUNT: lambda value, _: f"{value:,}",
    NUMBER: lambda value, decimals: f"{value:,.{decimals}f}",
    DURATION: lambda value, _: duration_text(value),
}
_DIGITS = 6
"""Significant digits of a picture's numbers: enough for the eye, in a fraction of the bytes."""


@dataclass(frozen=True)
class Shown:
    """A part with its rows or its specification."""

    part: Part
    answer: Answer | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    """Empty without rows."""
    parts: tuple[Shown, ...] = ()
    """Parts of a section."""

    @property
    def is_passing(self) -> bool:
        """Return whether the part reports work in progress."""
        return isinstance(self.part, Note) and self.part.is_passing

    @property
    def sql(self) -> str | None:
        """Return the part's query, ready to run elsewhere."""
        source = getattr(self.part, "source", None)
        if isinstance(source, Extended):
            source = source.question
        return source.text if isinstance(source, Question) else None


def shown(parts: Iterable[Part], ask: Callable[[Question], Answer] | None = None) -> Iterator[Shown]:
    """Yield parts with their answers.

    Args:
        parts: the parts.
        ask: answers queries; None if no part has one.
    """
    for part in parts:
        if isinstance(part, Section):
            yield Shown(part, parts=tuple(shown(part.parts, ask)))
        elif isinstance(part, Table | Picture):
            yield _answered(part, ask)
        else:
            yield Shown(part)


def _answered(part: Table | Picture, ask: Callable[[Question], Answer] | None) -> Shown:
    source = part.source
    if isinstance(source, Question | Extended):
        assert ask is not None, f"{part.name} has a query"  # noqa: S101 - only pages of a site have queries
        answer = source.extend(ask(source.question)) if isinstance(source, Extended) else ask(source)
    else:
        answer = source
    if isinstance(part, Picture):
        spec = part.draw(answer.dicts()) if answer.rows else {}
        # The page itself has the title.
        return Shown(part, answer, _plain({name: each for name, each in spec.items() if name != "title"}))
    if part.most is not None and len(answer.rows) > part.most:
        answer = Answer(answer.names, answer.rows[: part.most], is_cut=True)
    return Shown(part, answer)


def environment(*folders: Path, **globals_: Any) -> Environment:
    """Return the environment of the shared templates.

    Args:
        folders: further folders of templates, which come first.
        globals_: further functions and values for all templates.
    """
    made = Environment(
        loader=FileSystemLoader([*folders, _ROOM / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(cell=cell, json=_json, prose=prose, palettes=PALETTES, **globals_)
    return made


def style() -> Markup:
    """Return the whole style, for a page that is a file of its own."""
    return Markup(THEME + (STATIC / "page.css").read_text(encoding="utf-8"))  # noqa: S704 - our own files


def cell(value: object, column: Column) -> str:
    """Return a value as a person reads it: ``1,024``, ``2026-11-27 09:30:00``, ``4 d 11 h``, ``bf16``."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, int | float) and column.kind in _NUMBERS:
        return _NUMBERS[column.kind](value, column.decimals)
    if column.kind == TIME and isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return named(str(value))


def named(value: str) -> str:
    """Return the short name of a dtype, and any other text unchanged."""
    return SHORT_DTYPES.get(value, value)


def prose(text: str) -> Markup:
    """Return text as HTML, with code for what backticks enclose."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


def _plain(value: Any) -> Any:
    """Return a specification without NaN and superfluous digits, as JSON can hold it."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, str):
        return named(value)
    if value is None or isinstance(value, int):
        return value
    return json_value(value)


def _json(value: object) -> str:
    """Return JSON for a script element, with no character that could end the element."""
    return htmlsafe_json_dumps(value, separators=(",", ":"), ensure_ascii=False)
