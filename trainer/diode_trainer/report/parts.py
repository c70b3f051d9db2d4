"""Parts of a page: tables, pictures, facts, commands and notes."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from diode_trainer.report.questions import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from diode_trainer.report.questions import Extended, Question
    from diode_trainer.report.specification import Spec

Row = dict[str, Any]

TEXT, COUNT, TIME, NUMBER, DURATION, PROSE = "text", "count", "time", "number", "duration", "prose"
"""Kinds of columns. Counts, numbers and durations (in seconds) are right-aligned, times are UTC, prose wraps."""


@dataclass(frozen=True)
class Link:
    """A link from a value to a page."""

    values: Mapping[str, str]
    """Parameter of the target page → column of the query that has its value."""
    page: str | None = None
    """Name of the target page; None for the page that has the link."""
    keeps: bool = True
    """True if the target page also gets the current page's parameters that it knows."""
    part: str | None = None
    """Part of the target page to scroll to; None for its top."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    """Column of the query. A query's further columns serve links and downloads."""
    head: str
    kind: str = TEXT
    decimals: int = 0
    """Decimals of every number, so that decimal points align."""
    link: Link | None = None
    unit: str = ""
    """Second line of the head."""

    @property
    def is_number(self) -> bool:
        """Return whether the column is right-aligned."""
        return self.kind in {COUNT, NUMBER, DURATION}


@dataclass(frozen=True)
class Table:
    """A table of rows."""

    name: str
    """Name in addresses: letters, digits and hyphens."""
    title: str
    text: str
    """One or two sentences on what the table shows."""
    columns: tuple[Column, ...]
    source: Question | Answer | Extended
    """A query, or rows computed without one."""
    empty: str = "Nothing matches."
    """Text in place of a table without rows."""
    most: int | None = None
    """Number of rows that a page shows; None for as many as possible."""
    is_sortable: bool = True
    """True if a click on a head sorts the rows; False if the query sets the order."""
    marked: str | None = None
    """Column of the query that says which rows are bold."""
    kind: str = field(default="table", init=False)


@dataclass(frozen=True)
class Picture:
    """A Vega-Lite picture of an answer."""

    name: str
    title: str
    text: str
    source: Question | Answer | Extended
    draw: Callable[[list[Row]], Spec]
    """Returns the specification for the answer's rows (column → value)."""
    empty: str = "Nothing matches."
    kind: str = field(default="picture", init=False)


@dataclass(frozen=True)
class Fact:
    """A figure or a name with its label."""

    label: str
    value: str
    note: str = ""
    address: str | None = None
    """Address of a page that says more."""


@dataclass(frozen=True)
class Facts:
    """Facts about one thing."""

    name: str
    title: str
    facts: tuple[Fact, ...]
    is_headline: bool = False
    """True if these are the figures that open a page."""
    kind: str = field(default="facts", init=False)


@dataclass(frozen=True)
class Command:
    """A shell command."""

    name: str
    title: str
    text: str
    command: str
    kind: str = field(default="command", init=False)


@dataclass(frozen=True)
class Note:
    """A paragraph. An alarm reports something wrong."""

    text: str
    is_alarm: bool = False
    name: str = ""
    is_passing: bool = False
    """True if the note reports work in progress, so that the page is rebuilt at every look."""
    kind: str = field(default="note", init=False)


@dataclass(frozen=True)
class Section:
    """Parts under one heading."""

    name: str
    title: str
    parts: tuple[Part, ...]
    text: str = ""
    is_grid: bool = False
    """True if the parts stand side by side if there is room."""
    kind: str = field(default="section", init=False)


Part = Table | Picture | Facts | Command | Note | Section


def flat(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield all parts, with a section's parts in its place."""
    for part in parts:
        yield from part.parts if isinstance(part, Section) else (part,)


def drawn(name: str, spec: Spec, text: str = "") -> Picture:
    """Return a picture of a specification that contains its data and its title.

    Args:
        name: the part's name.
        spec: the specification; its subtitle says which direction is good.
        text: text before the subtitle.
    """
    shown = max(data_of(spec), key=lambda rows: (len(rows[0]) if rows else 0, len(rows)))
    names = tuple(dict.fromkeys(name for row in shown for name in row))
    answer = Answer(names, tuple(tuple(row.get(name) for name in names) for row in shown))
    title = spec["title"]
    return Picture(name, title["text"], f"{text} {title['subtitle']}.".strip(), answer, partial(_as_it_is, spec))


def with_addresses(picture: Picture, address: Callable[[Row], str | None]) -> Picture:
    """Return a drawn picture whose marks lead to addresses.

    Args:
        picture: result of ``drawn``.
        address: address of a mark by its row; None for no link.
    """
    spec = copy.deepcopy(picture.draw([]))
    for rows in data_of(spec):
        for row in rows:
            if found := address(row):
                row["address"] = found
    return replace(picture, draw=partial(_as_it_is, spec))


def data_of(spec: Spec) -> list[list[Row]]:
    """Return the rows of a specification and of its layers."""
    layers = [spec, *spec.get("layer", ())]
    return [layer["data"]["values"] for layer in layers if layer.get("data", {}).get("values")] or [[]]


def _as_it_is(spec: Spec, _rows: list[Row]) -> Spec:
    return spec
