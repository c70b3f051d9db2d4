"""A page: its parameters, and what it shows with some of them set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from diode_store.errors import DiodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from diode_explorer.background import Progress, T, Task
    from diode_explorer.pages.parts import Part
    from diode_explorer.pages.questions import Answer, Question, Value

MOST_CHARACTERS = 500
"""Of a parameter's value; the names of devices and machines are shorter."""
MOST_NUMBER = 2**31


class NotThereError(DiodeError):
    """A page was asked about something that the warehouse does not have."""


class AddressError(DiodeError):
    """An address sets a parameter that a page does not have, sets one twice, or to what it cannot be."""


class Asked(Protocol):
    """What a page is made from."""

    @property
    def filters(self) -> Mapping[str, Value]:
        """Return the parameters that are set."""

    @property
    def spools(self) -> Sequence[Path]:
        """Return the spools of this machine that a page may tell of."""

    @property
    def generation(self) -> int:
        """Return which state of the lake answers; a newer one has a higher number."""

    def ask(self, question: Question) -> Answer:
        """Return what the lake answers.

        Raises:
            QueryError: the query fails, or takes too long.
        """

    def work_out(self, task: Task[T]) -> Progress[T]:
        """Return how far something is that takes too long for a request; to ask is to have it begun."""

    def address(self, page: str, values: Mapping[str, Value]) -> str | None:
        """Return the address of a page with parameters; None if there is no such page here."""


@dataclass(frozen=True)
class Parameter:
    """Something that an address may say."""

    name: str
    label: str
    is_number: bool = False
    options: str | tuple[str, ...] | Callable[[Mapping[str, Value]], str] | None = None
    """What it may be: a list, or a SELECT of values and how each is called, which may depend on what else is set; None
    where anything may be typed."""
    unset: str = "any"
    """How it is called to set none of them; where it is one of a list, it is what counts then."""
    is_shown: bool = True
    """Whether it has a field of its own; else it comes by links alone, and a click takes it away."""

    def parse(self, text: str) -> Value:
        """Return the value that a text stands for.

        Raises:
            ValueError: it stands for none; the message says why.
        """
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
"""How a table is ordered, on every page; ``ordering`` reads it."""


@dataclass(frozen=True)
class Page:
    """A page."""

    name: str
    """Its path."""
    title: str
    text: str
    parameters: tuple[Parameter, ...]
    parts: Callable[[Asked], Iterable[Part]]
    """May raise ``NotThereError``."""
    is_live: bool = False
    """Whether it shows more than what is in the lake, and so is made anew at each look."""
    fields: Callable[[Mapping[str, Value]], Iterable[str]] | None = None
    """Which of its parameters have fields when some are set; None for all that are shown."""

    def parse(self, items: Iterable[tuple[str, str]]) -> dict[str, Value]:
        """Return the parameters that an address sets, in the page's order; an empty one is not set.

        Raises:
            AddressError: one of them cannot be.
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
        """Return one by its name."""
        return next((each for each in self.parameters if each.name == name), None)
