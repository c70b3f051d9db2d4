"""The pages of the site as files that need nothing but themselves: for a wiki, a mail or a pull request.

Pictures are images in the page, in both colour schemes, and there is no script. Two reports of the same data are the
same to the last byte, so that a version control system shows what changed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from diode_explorer.pages import PAGES
from diode_explorer.rendering import THEME, render, shown
from diode_explorer.visit import Visit
from diode_store.errors import ReportError
from diode_store.files import is_another, write_durably
from diode_trainer.report.rendering import as_image, as_vector
from diode_trainer.report.theme import DARK, LIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from diode_explorer.background import Background, Progress, T, Task
    from diode_explorer.feed import State
    from diode_explorer.pages.page import Page
    from diode_explorer.pages.questions import Value
    from diode_explorer.rendering import Shown
    from diode_trainer.report.theme import Palette

BEGINNING = (
    b'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="diode report">'
)
"""What every page of a report begins with."""
_FIRST = next(iter(PAGES))
_PROBLEM, _MODEL = "problem", "model"
_MOST_MODELS = 3
"""Each is judged for it, which takes half a minute."""
_STATIC = Path(__file__).parent / "static"
_MODE = 0o644
_MOST_VECTOR_BYTES = 120_000
"""Of a picture as SVG; one with more marks is smaller as PNG."""
_UNNAMED = re.compile(r"[^a-z0-9.]+")

Key = tuple[str, tuple[tuple[str, "Value"], ...]]
"""A page and its parameters."""


@dataclass
class Contents:
    """Which pages a report has. Those of single problems and models come in as other pages link to them."""

    most_problems: int
    """How many pages of single problems it has at most."""
    files: dict[Key, str] = field(default_factory=dict)
    waiting: deque[Key] = field(default_factory=deque)
    """Those that are still to be written."""

    def add(self, page: str, values: Mapping[str, Value]) -> str:
        """Return the file of a page, which the report has from now on; the first of a page has its plain name."""
        key = (page, tuple(values.items()))
        if key not in self.files:
            is_first = all(of != page for of, _ in self.files)
            self.files[key] = _file_name(*key, is_first=is_first)
            self.waiting.append(key)
        return self.files[key]

    def address(self, page: str, values: Mapping[str, Value]) -> str | None:
        """Return the file of a page; None if the report does not have it."""
        key = (page, tuple(values.items()))
        if key in self.files:
            return self.files[key]
        most = {_PROBLEM: self.most_problems, _MODEL: _MOST_MODELS}.get(page, 0)
        there = sum(of == page and any(name == page for name, _ in items) for of, items in self.files)
        return self.add(page, values) if page in values and there < most else None


@dataclass(frozen=True, kw_only=True)
class Printing(Visit):
    """One page of a report in the making."""

    contents: Contents
    background: Background

    def work_out(self, task: Task[T]) -> Progress[T]:
        """Return what came of a task: a file can show nothing later."""
        return self.background.wait(task)

    def address(self, page: str, values: Mapping[str, Value]) -> str | None:
        """Return the file of a page; None if the report does not have it."""
        return self.contents.address(page, values)


def pages_of(
    state: State,
    background: Background,
    device: str | None,
    more: Sequence[tuple[str, Mapping[str, Value]]],
    most_problems: int,
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a report: name and content.

    Args:
        state: the lake.
        background: works out what takes long.
        device: what pages show that can show one alone; None for what they show by themselves.
        more: further pages, or further states of them.
        most_problems: how many pages of single problems there are at most.

    Raises:
        QueryError: a query fails.
        NotThereError: ``more`` asks for what is not there.
        ReportError: the packages that draw are missing.
    """
    contents = Contents(most_problems)
    for page in _printed():
        contents.add(page.name, {"device": device} if device and page.parameter("device") else {})
    for name, values in more:
        contents.add(name, values)
    while contents.waiting:
        # The list of all problems comes last: it would take the place of those that other pages point to.
        key = min(contents.waiting, key=lambda each: each[0] == _PROBLEM and not dict(each[1]).get(_PROBLEM))
        contents.waiting.remove(key)
        yield contents.files[key], _printed_page(state, background, key, contents)


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write a report in place of the one that is there: all of it or nothing.

    Raises:
        ReportError: the folder holds other files by these names, or cannot be written.
    """
    for name in files:
        if is_another(folder / name, BEGINNING):
            raise ReportError(f"{folder / name} is there and is no page of a report; name another folder with -o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably({folder / name: content for name, content in files.items()}, mode=_MODE)
        for path in folder.glob("*.html"):
            if path.name not in files and not is_another(path, BEGINNING):
                path.unlink()
    except OSError as error:
        raise ReportError(f"{folder}: the report cannot be written ({error.strerror or error})") from None


def _printed() -> list[Page]:
    """Return the pages that files can hold: not those that tell how things are at this moment."""
    return [page for page in PAGES.values() if not page.is_live]


def _printed_page(state: State, background: Background, key: Key, contents: Contents) -> bytes:
    name, items = key
    page, asked = PAGES[name], Printing(state, dict(items), contents=contents, background=background)
    found = list(shown(page.parts(asked), asked))
    homes = {each.name: next(f for (of, _), f in contents.files.items() if of == each.name) for each in _printed()}
    text = render(
        "page.html",
        pages={each.name: each for each in _printed()},
        page=page,
        asked=asked,
        shown=found,
        images={each.part.name: _images(each) for each in found if each.spec is not None},
        style=Markup(THEME + (_STATIC / "site.css").read_text(encoding="utf-8")),  # noqa: S704 - our own files
        home=homes.__getitem__,
        generation="",
        formats=(),
        options={},
    )
    return text.encode()


def _images(each: Shown) -> tuple[str, str]:
    """Return a picture as addresses that hold it, for light and for dark."""
    light, dark = (_image(each, palette) for palette in (LIGHT, DARK))
    return light, dark


def _image(each: Shown, palette: Palette) -> str:
    spec = {name: value for name, value in (each.spec or {}).items() if name not in {"title", "autosize"}}
    content, kind = as_vector(spec, palette), "svg+xml"
    if len(content) > _MOST_VECTOR_BYTES:
        content, kind = as_image(spec, palette), "png"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _file_name(page: str, items: tuple[tuple[str, Value], ...], *, is_first: bool) -> str:
    """Return a name that says what is on a page, and that no other page has."""
    if is_first:
        return "index.html" if page == _FIRST else f"{page}.html"
    said = "-".join(str(value) for name, value in items if name not in {_PROBLEM, "environment", "device"})
    digest = hashlib.blake2b(repr(items).encode(), digest_size=6).hexdigest()
    slug = _UNNAMED.sub("-", said.lower()).strip("-")[:40]
    return "-".join(part for part in (page, slug, digest) if part) + ".html"
