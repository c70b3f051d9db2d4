"""A page: its parameters, and its parts for their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from diode_store.errors import DiodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from diode_explorer.background import Progress, T, Task
    from diode_trainer.report.parts import Part
    from diode_trainer.report.questions import Answer, Question, Value

MOST_CHARACTERS = 500
"""Maximum length of a parameter's value; names of devices and machines are shorter."""
MOST_SQL_CHARACTERS = 3_000
MOST_NUMBER = 2**31


class NotThereError(DiodeError):
    """The warehouse does not have what the page was asked for."""


class AddressError(DiodeError):
    """An address sets an unknown parameter, sets one twice, or has an invalid value."""


class Asked(Protocol):
    """A request for a page."""

    @property
    def filters(self) -> Mapping[str, Value]:
        """Return the parameters that are set."""

    @property
    def spools(self) -> Sequence[Path]:
        """Return the spools of this machine that a page may report on."""

    @property
    def generation(self) -> int:
        """Return the generation of the cache's state; increases whenever the cache changes."""

    def ask(self, question: Question) -> Answer:
        """Return the cache's answer.

        Raises:
            QueryError: the query fails, or takes too long.
        """

    def work_out(self, task: Task[T]) -> Progress[T]:
        """Return the progress of a background task, starting it if needed."""

    def address(self, page: str, values: Mapping[str, Value]) -> str | None:
        """Return the address of a page with parameters; None if the page is not here."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of an address."""

    name: str
    label: str
    is_number: bool = False
    is_sql: bool = False
    """True for text of several lines."""
    options: str | tuple[str, ...] | Callable[[Mapping[str, Value]], str] | None = None
    """Possible values: a list, or a SELECT of values and labels, which may depend on the filters; None for any text."""
    unset: str = "any"
    """Label of the unset parameter; if it is one of a list, also its default value."""
    is_shown: bool = True
    """True if the parameter has a field. Otherwise only links set it."""

    def parse(self, text: str) -> Value:
        """Return the value of a text.

        Raises:
            ValueError: the text is invalid; the message says why.
        """
        if self.is_sql:
            text = text.replace("\r\n", "\n").strip()
            if len(text) > MOST_SQL_CHARACTERS or not text.replace("\n", " ").replace("\t", " ").isprintable():
                raise ValueError(f"{self.name} is too long, or not printable")
            return text
        if len(text) > MOST_CHARACTERS or not text.isprintable():
            raise ValueError(f"{self.name} is too long, or not printable")
        if self.is_number:
            if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST_NUMBER))):
                raise ValueError(f"{self.name} must be a whole number, not {text[:50]!r}")
            number = int(text)
            if number > MOST_NUMBER:
                raise ValueError(f"{self.name} is larger than any size: {number}")
            return number
        if isinstance(self.options, tuple) and text not in self.options:
            raise ValueError(f"{self.name} must be one of {', '.join(self.options)}, not {text[:50]!r}")
        return text


SORT = Parameter("sort", "order", is_shown=False)
"""Order of a table, on every page; ``ordering`` reads it."""


@dataclass(frozen=True)
class Page:
    """A page."""

    name: str
    """Path of the page."""
    title: str
    text: str
    parameters: tuple[Parameter, ...]
    parts: Callable[[Asked], Iterable[Part]]
    """Returns the parts of the page; may raise ``NotThereError``."""
    is_live: bool = False
    """True if the page shows more than the cache, and so is rebuilt at every look."""
    is_printed: bool = True
    """False to leave it out of reports."""
    fields: Callable[[Mapping[str, Value]], Iterable[str]] | None = None
    """Returns the names of the parameters that have fields; None for all that are shown."""
    implied: Callable[[], Mapping[str, Value]] = dict
    """Returns the parameters that have one possible value, which an address need not set."""

    def parse(self, items: Iterable[tuple[str, str]]) -> dict[str, Value]:
        """Return the parameters that an address sets, in the page's order. Empty ones are not set.

        Raises:
            AddressError: a parameter is unknown, given twice, or invalid.
        """
        found: dict[str, Value] = {}
        seen = set()
        for name, text in items:
            parameter = self.parameter(name)
            if parameter is None:
                names = ", ".join(each.name for each in self.parameters) or "none"
                raise AddressError(f"unknown parameter {name[:50]!r}; {self.title} has {names}")
            if name in seen:
                raise AddressError(f"{name} is given twice")
            seen.add(name)
            if text:
                try:
                    found[name] = parameter.parse(text)
                except ValueError as error:
                    raise AddressError(str(error)) from None
        return {each.name: found[each.name] for each in self.parameters if each.name in found}

    def shown(self, filters: Mapping[str, Value]) -> list[Parameter]:
        """Return the parameters that have fields."""
        names = {each.name for each in self.parameters} if self.fields is None else {*self.fields(filters)}
        return [each for each in self.parameters if each.is_shown and each.name in names]

    def parameter(self, name: str) -> Parameter | None:
        """Return a parameter by name."""
        return next((each for each in self.parameters if each.name == name), None)
