"""What holds for every page of diode serve in a browser."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pyarrow.csv
import pyarrow.parquet
import pytest
from browsing import DARK, DESKTOP, LIGHT, PHONE
from playwright.sync_api import expect
from telling import NAMES, addresses, telling

from diode_explorer.pages import PAGES
from diode_store.query import analytics
from diode_store.query.results import run_query

if TYPE_CHECKING:
    from browsing import MakeVisitor, Visitor
    from playwright.sync_api import Locator

    from served import Site

pytestmark = pytest.mark.web
# All tests of a page ask the same server: some pages are worked out for half a minute, once.
_EVERY = {each: pytest.param(each, marks=pytest.mark.xdist_group(each)) for each in NAMES}
every_page = pytest.mark.parametrize("name", _EVERY.values())
every_page_with_a_choice = pytest.mark.parametrize("name", [_EVERY[each] for each in NAMES if each != "sql"])
"""The page of SQL has a box for text, and nothing to choose from."""

_MOST_LINKS, _MOST_CHOICES = 120, 4
_TYPED = "form.controls input:not([type=hidden])"
_A_STEP = "document.activeElement.matches('body') ? null : document.activeElement.outerHTML.slice(0, 200)"


@every_page
@pytest.mark.parametrize("scheme", [LIGHT, DARK])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_page_is_drawn(visitor_of: MakeVisitor, site: Site, name: str, scheme: str, size: tuple[int, int]) -> None:
    """With ink in every picture and none at its edge, nothing wider than the window, no fault that axe-core finds."""
    visitor = visitor_of(scheme=scheme, size=size)
    for path in addresses(site, name):
        visitor.open(path)
        assert visitor.page.locator("h1").inner_text() == PAGES[name].title
        visitor.unfolded()
        assert [ink for ink in visitor.ink() if ink["colours"] < 3 or ink["cut"]] == [], path
        assert visitor.page.evaluate("document.documentElement.scrollWidth") == size[0], path
        seen = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert seen == {LIGHT: "rgb(255, 255, 255)", DARK: "rgb(20, 24, 28)"}[scheme]
        assert visitor.faults() == [], path


@every_page
def test_a_page_has_its_pictures(visitor: Visitor, site: Site, name: str) -> None:
    """As many as its parts say."""
    visitor.open(telling(site, name))
    pictures = visitor.page.locator("figure.picture").count()
    assert (pictures >= 1, len(visitor.ink())) == (name != "sql", pictures)


@every_page
def test_links_lead_where_they_say(visitor: Visitor, site: Site, name: str) -> None:
    """To a page of that name, to a part of this one, or to a file that can be read."""
    found: dict[tuple[str, ...], str] = {}
    for path in addresses(site, name):
        visitor.open(path)
        for address in visitor.page.eval_on_selector_all("a[href]", "all => all.map(each => each.href)"):
            # One link stands for all of the same page and parameters.
            found.setdefault(_kind(address), address)
    assert len(found) <= _MOST_LINKS
    answers = {address: _what_is_at(visitor, address) for address in found.values()}
    assert [address for address, is_right in answers.items() if not is_right] == []
    assert len([kind for kind in found if kind[0] == f"/{name}"]) >= 1


def _kind(address: str) -> tuple[str, ...]:
    parts = urlsplit(address)
    return (parts.path, *parse_qs(parts.query), *([parts.fragment] if parts.fragment else []))


def _what_is_at(visitor: Visitor, address: str) -> bool:
    """Return whether an address has what it says."""
    parts = urlsplit(address)
    answer = visitor.context.request.get(address)
    if answer.status != 200:
        return False
    body, suffix = answer.body(), parts.path.rpartition(".")[2]
    if suffix == "csv":
        return pyarrow.csv.read_csv(io.BytesIO(body)).num_columns > 0
    if suffix == "json":
        return all(isinstance(row, dict) for row in json.loads(body))
    if suffix == "parquet":
        return pyarrow.parquet.read_table(io.BytesIO(body)).num_columns > 0
    text = body.decode()
    is_there = not parts.fragment or f'id="{parts.fragment}"' in text
    return is_there and f"<h1>{PAGES[parts.path.strip('/')].title}</h1>" in text


def test_the_menu_leads_everywhere(visitor: Visitor) -> None:
    """A click leads to each page in turn, and the menu says where one is."""
    visitor.open("/")
    for name in NAMES:
        visitor.page.locator("nav").get_by_role("link", name=PAGES[name].title, exact=True).click()
        visitor.page.wait_for_url(f"**/{name}")
        assert visitor.settled().page.locator("nav [aria-current=page]").inner_text() == PAGES[name].title


@every_page
def test_a_choice_is_in_the_address(visitor: Visitor, name: str) -> None:
    """Each choice shows at once; of the first few."""
    selects = visitor.arrived(f"/{name}").page.locator("form.controls select")
    for number in range(min(selects.count(), _MOST_CHOICES)):
        select = visitor.arrived(f"/{name}").page.locator("form.controls select").nth(number)
        parameter, value = select.get_attribute("name"), _another(select)
        if value is None:
            continue
        _choose(visitor, select, value)
        assert parse_qs(urlsplit(visitor.page.url).query)[parameter] == [value]
        assert visitor.page.locator(f"select[name={parameter}]").input_value() == value


@every_page_with_a_choice
def test_back_shows_what_was_there(visitor: Visitor, name: str) -> None:
    """After a choice and one more; and forward shows what was chosen."""
    visitor.open(f"/{name}")
    shown = [(visitor.path, _said(visitor, name))]
    for number in (0, 1):
        select, value = _choices(visitor)[number]
        _choose(visitor, select, value)
        _at_rest(visitor)
        shown.append((visitor.path, _said(visitor, name)))
    assert len({path for path, _ in shown}) == 3
    for wanted, move in ((shown[1], "go_back"), (shown[0], "go_back"), (shown[1], "go_forward")):
        getattr(visitor.page, move)()
        _at_rest(visitor)
        assert (visitor.path, _said(visitor, name)) == wanted


@pytest.mark.xdist_group("sql")
def test_back_shows_the_query_that_was_there(visitor: Visitor) -> None:
    """With its rows; and forward shows those of the one that was typed, which stays in the box."""
    page = visitor.open("/sql").page
    assert page.locator("form.controls select").count() == 0
    box = page.locator("form.controls textarea")
    shown = [(page.url, visitor.text())]
    box.fill("SELECT 41 + 1 AS answer")
    with page.expect_navigation(wait_until="domcontentloaded"):
        page.locator("form.controls button").press("Enter")
    visitor.settled()
    shown.append((page.url, visitor.text()))
    assert "42" in shown[1][1]
    for wanted, move in ((shown[0], "go_back"), (shown[1], "go_forward")):
        getattr(page, move)()
        visitor.settled()
        assert (page.url, visitor.text()) == wanted
        assert box.input_value() == "SELECT 41 + 1 AS answer"


def _at_rest(visitor: Visitor) -> None:
    """Wait until a page that is being worked out has its results, and the pictures of the page are drawn."""
    visitor.settled()
    visitor.page.get_by_text("will appear here").first.wait_for(state="detached", timeout=120_000)
    visitor.settled()


def _choose(visitor: Visitor, select: Locator, value: str) -> None:
    """Choose an option as with a mouse or a finger, which shows it at once."""
    with visitor.page.expect_navigation(wait_until="domcontentloaded"):
        select.dispatch_event("pointerdown")
        select.select_option(value)


def _said(visitor: Visitor, name: str) -> str:
    """Return what a page says; of one that tells of more than the cache without its numbers and ages, which move."""
    said = visitor.text()
    return re.sub(r"[\d.,]+( (s|min|h|d)\b( \d+ (s|min|h|d)\b)?)?", "#", said) if PAGES[name].is_live else said


def _choices(visitor: Visitor) -> list[tuple[Locator, str]]:
    """Return what there is to choose, each with an option that is not chosen."""
    selects = visitor.page.locator("form.controls select").all()
    return [(select, value) for select in selects if (value := _another(select)) is not None]


def _another(select: Locator) -> str | None:
    """Return an option that is not chosen, None if there is none."""
    values = select.locator("option").evaluate_all("all => all.map(each => each.value)")
    chosen = select.input_value()
    return next((value for value in values if value not in {"", chosen}), None)


@every_page
def test_everything_can_be_reached_by_keys(visitor: Visitor, site: Site, name: str) -> None:
    """Tab leads first to what skips the menu, then to every control, link, button, table and fold, in their order."""
    visitor.open(telling(site, name))
    page = visitor.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    wanted = page.evaluate(
        """() => [...document.querySelectorAll(
            "main :is(a[href], select, textarea, input:not([type=hidden]), button, summary, [tabindex='0'])"
        )].filter(each => each.checkVisibility()).slice(0, 80).map(each => each.outerHTML.slice(0, 200))"""
    )
    reached = []
    for _ in wanted:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(_A_STEP))
    assert reached == wanted
    assert "<summary" in " ".join(wanted)


@every_page_with_a_choice
def test_keys_go_through_a_choice(visitor: Visitor, name: str) -> None:
    """Without showing each step; the button shows what was stepped to."""
    page = visitor.arrived(f"/{name}").page
    select, _ = _choices(visitor)[0]
    before, parameter = select.input_value(), select.get_attribute("name")
    select.focus()
    select.press("ArrowDown")
    value = select.input_value()
    assert value != before
    assert visitor.path == f"/{name}"
    with page.expect_navigation(wait_until="domcontentloaded"):
        page.locator("form.controls button").press("Enter")
    assert parse_qs(urlsplit(page.url).query)[parameter] == [value]


@every_page
def test_what_is_typed_waits_for_enter(visitor: Visitor, name: str) -> None:
    """A field asks for nothing while one types in it; Enter submits it with what is chosen."""
    count = visitor.arrived(f"/{name}").page.locator(_TYPED).count()
    for number in range(min(count, 2)):
        field = visitor.arrived(f"/{name}").page.locator(_TYPED).nth(number)
        parameter = field.get_attribute("name")
        field.press_sequentially("64")
        assert visitor.path == f"/{name}"
        with visitor.page.expect_navigation(wait_until="domcontentloaded"):
            field.press("Enter")
        assert parse_qs(urlsplit(visitor.page.url).query) == {parameter: ["64"]}


@every_page
def test_the_sql_that_is_copied(visitor: Visitor, site: Site, name: str) -> None:
    """Is what `diode query` accepts, and finds what the table shows."""
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.address)
    visitor.open(telling(site, name)).unfolded()
    sections = visitor.page.locator("section:has(details button.copy)")
    assert (sections.count() > 0) == (name != "model")  # what a model says is not in the warehouse
    with analytics.connect(site.database) as connection:
        for section in sections.all():
            section.locator("details button.copy").click()
            expect(section.locator("details [role=status]")).to_have_text("Copied.")
            copied = visitor.page.evaluate("navigator.clipboard.readText()")
            found = list(run_query(connection, copied))
            shown, is_cut = section.locator("tbody tr").count(), section.get_by_text("rows; a download has all").count()
            assert len(found) >= shown if is_cut or not shown else len(found) == shown
