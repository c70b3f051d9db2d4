"""Pages of the site as self-contained files, for a wiki, a mail or a pull request.

Pictures are images in the page, in both color schemes, and there is no script. Reports of equal data are equal to the
last byte, so that a version control system shows what changed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diode_explorer.pages import PAGES
from diode_explorer.rendering import render, shown
from diode_explorer.visit import Visit
from diode_store.errors import ReportError
from diode_store.system.files import is_another, write_durably
from diode_trainer.report.drawing import BEGINNING, as_image, as_vector
from diode_trainer.report.html import style
from diode_trainer.report.theme import DARK, LIGHT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from diode_explorer.background import Background, Progress, T, Task
    from diode_explorer.feed import State
    from diode_explorer.pages.page import Page
    from diode_trainer.report.html import Shown
    from diode_trainer.report.questions import Value
    from diode_trainer.report.specification import Spec
    from diode_trainer.report.theme import Palette

_FIRST = next(iter(PAGES))
_PROBLEM, _MODEL = "problem", "model"
_MOST_MODELS = 3
"""Maximum number of pages of models, since evaluating one takes half a minute."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_MODE = 0o644
_MOST_VECTOR_BYTES = 120_000
"""Maximum bytes of a picture as SVG; a picture with more marks is smaller as PNG."""
_UNNAMED = re.compile(r"[^a-z0-9.]+")

Key = tuple[str, tuple[tuple[str, "Value"], ...]]
"""A page and its parameters."""


@dataclass
class Contents:
    """Pages of a report. Links from other pages add the pages of single problems and models."""

    most_problems: int
    """Maximum number of pages of single problems."""
    files: dict[Key, str] = field(default_factory=dict)
    waiting: deque[Key] = field(default_factory=deque)
    """Pages to write."""

    def add(self, page: str, values: Mapping[str, Value]) -> str:
        """Add a page to the report, and return its file. The first state of a page has the page's plain name."""
        key = (page, tuple(values.items()))
        if key not in self.files:
            is_first = all(of != page for of, _ in self.files)
            self.files[key] = _file_name(*key, is_first=is_first)
            self.waiting.append(key)
        return self.files[key]

    def address(self, page: str, values: Mapping[str, Value]) -> str | None:
        """Return the file of a page; None if the report does not have the page."""
        key = (page, tuple(values.items()))
        if key in self.files:
            return self.files[key]
        most = {_PROBLEM: self.most_problems, _MODEL: _MOST_MODELS}.get(page, 0)
        there = sum(of == page and any(name == page for name, _ in items) for of, items in self.files)
        return self.add(page, values) if page in values and there < most else None


@dataclass(frozen=True, kw_only=True)
class Printing(Visit):
    """A page of a report that is being written."""

    contents: Contents
    background: Background

    def work_out(self, task: Task[T]) -> Progress[T]:
        """Return the finished result of a task, since a file cannot show it later."""
        return self.background.wait(task)

    def address(self, page: str, values: Mapping[str, Value]) -> str | None:
        """Return the file of a page; None if the report does not have the page."""
        return self.contents.address(page, values)


def pages_of(
    state: State,
    background: Background,
    device: str | None,
    more: Sequence[tuple[str, Mapping[str, Value]]],
    most_problems: int,
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of a report.

    Args:
        state: the cache.
        background: runs long tasks.
        device: device for pages that show a single one; None for each page's default.
        more: further pages, or further states of pages.
        most_problems: maximum number of pages of single problems.

    Raises:
        QueryError: a query fails.
        NotThereError: ``more`` asks for something that is not there.
        ReportError: packages that draw pictures are missing.
    """
    contents = Contents(most_problems)
    for page in _printed():
        contents.add(page.name, {"device": device} if device and page.parameter("device") else {})
    for name, values in more:
        contents.add(name, values)
    while contents.waiting:
        # The list of all problems comes last: its links would take the places of the problems that other pages link to.
        key = min(contents.waiting, key=lambda each: each[0] == _PROBLEM and not dict(each[1]).get(_PROBLEM))
        contents.waiting.remove(key)
        yield contents.files[key], _printed_page(state, background, key, contents)


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write a report in place of the previous one, whole or not at all.

    Raises:
        ReportError: the folder holds other files with these names, or is not writable.
    """
    for name in files:
        if is_another(folder / name, BEGINNING):
            raise ReportError(f"{folder / name} exists and is not a page of a report; name another folder with -o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably({folder / name: content for name, content in files.items()}, mode=_MODE)
        for path in folder.glob("*.html"):
            if path.name not in files and not is_another(path, BEGINNING):
                path.unlink()
    except OSError as error:
        raise ReportError(f"{folder}: the report cannot be written ({error.strerror or error})") from None


def _printed() -> list[Page]:
    """Return the pages that files can hold."""
    return [page for page in PAGES.values() if page.is_printed]


def _printed_page(state: State, background: Background, key: Key, contents: Contents) -> bytes:
    name, items = key
    page, asked = PAGES[name], Printing(state, dict(items), contents=contents, background=background)
    parts = shown(page.parts(asked), asked)
    files = {each.name: next(f for (of, _), f in contents.files.items() if of == each.name) for each in _printed()}
    text = render(
        "page.html",
        title=page.title,
        text=page.text,
        menu=[(files[each.name], each.title, each is page) for each in _printed()],
        pages={each.name: each for each in _printed()},
        page=page,
        asked=asked,
        shown=parts,
        images={each.part.name: _images(each.spec) for each in _flat(parts) if each.spec},
        style=style(),
        policy=_POLICY,
        formats=(),
    )
    return text.encode()


def _flat(parts: Iterable[Shown]) -> Iterator[Shown]:
    for part in parts:
        yield from part.parts or (part,)


def _images(spec: Spec) -> tuple[str, str]:
    """Return a picture as data addresses, for light and for dark pages."""
    light, dark = (_image(spec, palette) for palette in (LIGHT, DARK))
    return light, dark


def _image(spec: Spec, palette: Palette) -> str:
    spec = {name: value for name, value in spec.items() if name != "autosize"}
    content, kind = as_vector(spec, palette), "svg+xml"
    if len(content) > _MOST_VECTOR_BYTES:
        content, kind = as_image(spec, palette), "png"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _file_name(page: str, items: tuple[tuple[str, Value], ...], *, is_first: bool) -> str:
    """Return a unique name that tells what the page shows."""
    if is_first:
        return "index.html" if page == _FIRST else f"{page}.html"
    said = "-".join(str(value) for name, value in items if name not in {_PROBLEM, "environment", "device"})
    digest = hashlib.blake2b(repr(items).encode(), digest_size=6).hexdigest()
    slug = _UNNAMED.sub("-", said.lower()).strip("-")[:40]
    return "-".join(part for part in (page, slug, digest) if part) + ".html"
