"""Whatever an address says, diode serve answers it: a page, a file, or why not; never a failure, and never as HTML."""

from __future__ import annotations

import asyncio
import html
import logging
import re
import shutil
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from diode_explorer.background import Background, Progress
from diode_explorer.feed import Feed
from diode_explorer.pages import PAGES
from diode_explorer.site import make_site
from diode_store.errors import DiodeError, first_line
from diode_store.warehouse.store import Store
from filled import STRANGE, beyond, bundled, strange_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hypothesis.strategies import DrawFn

    from diode_explorer.background import T, Task
    from diode_explorer.guarding import Guard

NAMES = tuple(PAGES)
_STATUSES = {200, 302, 307, 400, 404, 414}
_ELEMENTS = re.compile(
    "html|head|meta|title|link|script|noscript|body|header|nav|main|section|a|h1|h2|h3|p|span|small|code|pre|details|summary|div|figure|dl"
    "|dt|dd|form|label|input|textarea|select|option|button|table|thead|tbody|tr|th|td"
)
"""What our pages are made of."""
_FRAGMENTS = (
    STRANGE,
    "'; DROP TABLE timings; --",
    "' OR 1=1 --",
    "' UNION SELECT * FROM read_csv('/etc/passwd') --",
    "$device",
    "$problem",
    "{{7*7}}",
    "{% include 'base.html' %}",
    '"><svg onload=alert(1)>',
    "</script><b>",
    "<!--",
    "javascript:alert(1)",
    "//evil.example/",
    "../../../etc/passwd",
    "%00",
    "\x00",
    "\x1b[31m",
    "\r\nSet-Cookie: a=b",
    "\u202e",
    "\ufeff",
    "😀",
    "x" * 501,
    "x" * 3900,
    "0",
    "-1",
    "1e9",
    "00012",
    "٣",
    "2147483648",
    "2147483649",
    "9" * 400,
    "NaN",
    "NULL",
    "none",
    "(unknown)",
    "",
    " ",
    "+",
)
_WORKED_OUT = 4
_SUFFIXES = ("csv", "json", "parquet", "CSV", "exe", "csv.gz", "")
_ANY_TEXT = st.text(max_size=30) | st.sampled_from(_FRAGMENTS)


@dataclass(frozen=True)
class Answered:
    """An answer."""

    status: int
    kind: str
    body: bytes


@dataclass(frozen=True)
class Usual:
    """What addresses say when nobody is up to anything."""

    values: dict[tuple[str, str], list[str]]
    """Page and parameter → what it may be."""
    files: dict[str, list[str]]
    """Page → the names of its files."""


@dataclass(frozen=True)
class Asker:
    """The site in this process."""

    site: Guard
    runner: asyncio.Runner

    def ask(self, address: str) -> Answered:
        """Return what the site answers, as a server would have it asked; whatever it raises comes out."""
        path, _, query = address.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": ("127.0.0.1", 8321),
            "client": ("127.0.0.1", 50000),
            "scheme": "http",
            "method": "GET",
            "root_path": "",
            "path": unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "headers": [(b"host", b"127.0.0.1:8321")],
            "state": {},
        }
        said: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            said.append(message)

        self.runner.run(self.site(scope, receive, send))
        headers = dict(said[0]["headers"])
        body = b"".join(message.get("body", b"") for message in said[1:])
        return Answered(said[0]["status"], headers.get(b"content-type", b"").decode(), body)


class _AtOnce(Background):
    """Works out the first few tasks at once; of the others some stay under way, and some have failed."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        self._found: dict[Task[Any], Progress[Any]] = {}

    def look(self, task: Task[T]) -> Progress[T]:
        """Return how far a task is."""
        if task not in self._found:
            self._found[task] = self._begun(task)
        return self._found[task]

    def _begun(self, task: Task[T]) -> Progress[T]:
        if len(self._found) >= _WORKED_OUT:
            return Progress(is_under_way=True, share=0.5) if len(self._found) % 2 else Progress(error="it failed")
        try:
            return Progress(task.work(self._database, lambda _share: None))
        except DiodeError as error:
            return Progress(error=first_line(error))


@pytest.fixture(scope="module")
def asker(_template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """Return the site over some problems, in two environments and on two devices, with decisions about them."""
    folder = tmp_path_factory.mktemp("any")
    database = shutil.copy(_template_database, folder / "warehouse.db")
    with Store.open(str(database)) as store:
        known = bundled(40)
        store.write([*known, *beyond(known), *strange_records()])
    (folder / "spool").mkdir()
    with Feed(str(database), every_s=3600) as feed, asyncio.Runner() as runner:
        site = make_site(
            feed,
            spools=(folder / "spool",),
            background=_AtOnce(str(database)),
            hosts=frozenset({"127.0.0.1:8321"}),
        )
        yield Asker(site, runner)


@pytest.fixture(scope="module")
def usual(asker: Asker) -> Usual:
    """Return what the site's own pages ask for."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    files: dict[str, list[str]] = {}
    for name, page in PAGES.items():
        first = asker.ask(f"/{name}").body.decode()
        own = re.search(rf'href="(/{name}\?[^"]*)"', first)
        text = first + (asker.ask(html.unescape(own[1])).body.decode() if own else "")
        files[name] = sorted(set(re.findall(rf'href="/{name}/([\w-]+)\.csv', text)))
        for parameter in page.parameters:
            values[name, parameter.name].update(_listed(parameter.options))
        for field, options in re.findall(r'<select name="(\w+)">(.*?)</select>', text, re.DOTALL):
            values[name, field].update(map(html.unescape, re.findall(r'<option value="([^"]+)"', options)))
        for address in re.findall(r'href="(/[^"]*\?[^"]*)"', text)[:200]:
            parts = urlsplit(html.unescape(address))
            for field, value in parse_qsl(parts.query):
                values[parts.path.split("/")[1], field].add(value)
    return Usual({each: sorted(found) for each, found in values.items()}, files)


def _listed(options: object) -> tuple[str, ...]:
    return options if isinstance(options, tuple) else ()


class _Read(HTMLParser):
    """Notes what a page has that none of ours may have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.strange: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element or attribute that no template has."""
        values = dict(attrs)
        if not _ELEMENTS.fullmatch(tag):
            self.strange.append(f"<{tag}>")
        if tag == "script" and "src" not in values and values.get("type") != "application/json":
            self.strange.append("a script")
        for name in ("href", "src", "action"):
            if not re.match(r"/(?!/)|#|data:,$|$", values.get(name) or ""):
                self.strange.append(f"{name}={values[name]}")
        self.strange += [name for name in values if name.startswith("on") or name == "style"]

    def handle_comment(self, data: str) -> None:
        """Note a comment: our pages have none."""
        self.strange.append(f"<!--{data}-->")


def _percent(value: bytes) -> str:
    return "".join(f"%{byte:02x}" for byte in value)


_ENCODED = st.one_of(
    _ANY_TEXT.map(partial(quote, safe="")),
    _ANY_TEXT.map(quote_plus),
    _ANY_TEXT.map(lambda text: _percent(text.encode())),
    st.binary(max_size=20).map(_percent),
    st.text("%&=;+$'\"<>0aF?#/", max_size=12).map(partial(quote, safe="%&=;+$'?/")),
)
"""Text as addresses may have it, and what is no text."""
_MOSTLY = st.sampled_from([True] * 6 + [False])


@st.composite
def _addresses(draw: DrawFn, name: str, usual: Usual) -> str:
    """Return an address of a page or of a file of it, or nearly."""
    path = f"/{name}"
    if not draw(_MOSTLY):
        path += f"/{draw(st.sampled_from(usual.files[name]) | _ENCODED)}.{draw(st.sampled_from(_SUFFIXES))}"
    pairs = []
    first, *others = PAGES[name].parameters
    drawn = draw(st.lists(st.sampled_from(others), max_size=5, unique=draw(_MOSTLY)))
    # What a page is about comes first: most of the others need it.
    for parameter in [first, *drawn] if draw(_MOSTLY) else drawn:
        values = st.sampled_from(usual.values[name, parameter.name] or ["64"]).map(quote)
        pairs.append(f"{parameter.name}={draw(values if draw(_MOSTLY) else _ENCODED)}")
    if not draw(_MOSTLY):
        pairs.append(f"{draw(_ENCODED)}={draw(_ENCODED)}")
    return f"{path}?{'&'.join(pairs)}"


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", NAMES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_page_answers_whatever_is_asked(
    asker: Asker, usual: Usual, caplog: pytest.LogCaptureFixture, name: str, data: st.DataObject
) -> None:
    """Or says why not: no failure, no traceback in the log, nothing of the address as HTML."""
    address = data.draw(_addresses(name, usual))
    answered = asker.ask(address)
    event(f"status {answered.status}")
    _check(answered)
    assert [record.levelname for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []
    caplog.clear()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["/", "..", ".", "%2e", "%2f", "static", "live", "overview", "csv"]) | _ENCODED))
def test_a_path_answers_whatever_it_is(asker: Asker, steps: list[str]) -> None:
    """Also what is no page."""
    _check(asker.ask("/" + "".join(steps)))


def _check(answered: Answered) -> None:
    assert answered.status in _STATUSES, answered
    if answered.kind.startswith("text/html"):
        text = answered.body.decode()
        assert (_Read(text).strange, "Traceback" in text) == ([], False)
