"""What a page is made of: tables and pictures with the SQL behind them, facts, commands and text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from diode_explorer.pages.questions import Answer, Extended, Question

TEXT, COUNT, TIME, NUMBER, PROSE = "text", "count", "time", "number", "prose"
"""Kinds of columns: counts and numbers are aligned to the right, times are UTC, prose may take several lines."""


@dataclass(frozen=True)
class Link:
    """Where a click on a value leads."""

    values: Mapping[str, str]
    """Parameter of that page → column of the query that has its value."""
    page: str | None = None
    """None for the page that it stands on."""
    keeps: bool = True
    """Whether that page also gets the parameters of this one that it knows."""
    part: str | None = None
    """The part of that page to begin at; None for its beginning."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    """Of the query; what a query has beyond a table's columns is for links and downloads."""
    head: str
    kind: str = TEXT
    decimals: int = 0
    """Of a number; the same for all, so that decimal points are below each other."""
    link: Link | None = None

    @property
    def is_number(self) -> bool:
        """Whether it is aligned to the right."""
        return self.kind in {COUNT, NUMBER}


@dataclass(frozen=True)
class Table:
    """Rows."""

    name: str
    """In addresses: letters and hyphens."""
    title: str
    text: str
    """What it shows, in a sentence or two."""
    columns: tuple[Column, ...]
    source: Question | Answer | Extended
    """A query, or what was worked out without one."""
    empty: str = "Nothing matches."
    """What stands in its place where it has no rows."""
    most: int | None = None
    """How many rows a page shows; None for as many as it can."""
    marked: str | None = None
    """The column of the query that says which rows stand out."""
    kind: str = field(default="table", init=False)


@dataclass(frozen=True)
class Picture:
    """A Vega-Lite specification of what a query found."""

    name: str
    title: str
    text: str
    source: Question | Answer | Extended
    draw: Callable[[list[dict[str, Any]]], dict[str, Any]]
    """Makes the specification, whose data are these rows: column → value."""
    empty: str = "Nothing matches."
    kind: str = field(default="picture", init=False)


@dataclass(frozen=True)
class Fact:
    """One figure or name, and what it is."""

    label: str
    value: str
    note: str = ""
    address: str | None = None
    """Where more is said of it."""


@dataclass(frozen=True)
class Facts:
    """What is known of one thing."""

    name: str
    title: str
    facts: tuple[Fact, ...]
    kind: str = field(default="facts", init=False)


@dataclass(frozen=True)
class Command:
    """Something to run in a shell."""

    name: str
    title: str
    text: str
    command: str
    kind: str = field(default="command", init=False)


@dataclass(frozen=True)
class Note:
    """A paragraph; an alarm is something that is wrong."""

    text: str
    is_alarm: bool = False
    name: str = ""
    is_passing: bool = False
    """Whether it tells of what is under way, so that the page is made anew at each look."""
    kind: str = field(default="note", init=False)


Part = Table | Picture | Facts | Command | Note
