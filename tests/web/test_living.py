"""Pages that stay open: what is new appears on them, and leaves alone what somebody does with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from browsing import DARK
from playwright.sync_api import expect
from telling import NAMES, telling

from diode_explorer.pages import PAGES
from diode_store.warehouse.store import Store
from filled import new_record

if TYPE_CHECKING:
    from browsing import MakeVisitor, Visitor

    from served import Site

# The first writes what the others would see appear.
pytestmark = [pytest.mark.web, pytest.mark.xdist_group("living")]
_A_WHILE_MS = 90_000
SHOWN = {"overview": "new-9", "intake": "new-9"}
"""Page → what it then says, in its telling state."""


def test_new_measurements_appear(visitor_of: MakeVisitor, site: Site) -> None:
    """On every page that is open, without it being loaded again; pictures are drawn with them."""
    # A model is judged for half a minute; another test waits for that.
    paths = {name: telling(site, name) for name in NAMES if name != "model"}
    visitors = {name: visitor_of().open(path) for name, path in paths.items()}
    for visitor in visitors.values():
        visitor.page.evaluate("window.isTheSame = true")
    before = json.loads(site.get("/live").body)["generation"]
    with Store.open(site.database) as store:
        store.write([new_record(9)])
    for name, visitor in visitors.items():
        if not PAGES[name].is_live:
            old = visitor.page.locator(f"main [data-generation='{before}']")
            expect(old).to_have_count(0, timeout=_A_WHILE_MS)
        if name in SHOWN:
            expect(visitor.page.locator("main")).to_contain_text(SHOWN[name], timeout=_A_WHILE_MS)
        assert visitor.settled().page.evaluate("window.isTheSame") is True
        assert [ink for ink in visitor.ink() if ink["colours"] < 3] == []


def test_what_is_new_disturbs_nobody(visitor: Visitor, site: Site) -> None:
    """What is unfolded stays so, and the focus where it is, also in a table that has grown."""
    page = visitor.open("/overview").page
    machines = page.locator("section[aria-labelledby=machines]")
    machines.locator("summary").click()
    machines.locator("td a").first.focus()
    devices = page.locator("section[aria-labelledby=devices] h2").element_handle()
    with Store.open(site.database) as store:
        store.write([new_record(10)])
    expect(machines).to_contain_text("new-10", timeout=_A_WHILE_MS)
    assert machines.locator("details").evaluate("each => each.open") is True
    assert page.evaluate("document.activeElement.closest('section').getAttribute('aria-labelledby')") == "machines"
    assert page.evaluate("document.activeElement.tagName") == "A"
    assert devices.evaluate("each => each.isConnected") is False  # that table has new counts


def test_what_is_as_it_was_stays(visitor: Visitor, site: Site) -> None:
    """A page is made anew part by part."""
    page = visitor.open(telling(site, "problem")).page
    picture = page.locator("figure.picture canvas").first.element_handle()
    before = json.loads(site.get("/live").body)["generation"]
    with Store.open(site.database) as store:
        store.write([new_record(11)])
    expect(page.locator(f"main [data-generation='{before}']")).to_have_count(0, timeout=_A_WHILE_MS)
    assert picture.evaluate("each => each.isConnected") is True


def test_a_command_is_copied(visitor: Visitor, site: Site) -> None:
    """As it stands there."""
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.address)
    section = visitor.open(telling(site, "problem")).page.locator("section:has(.command)")
    section.get_by_role("button").click()
    expect(section.get_by_role("status")).to_have_text("Copied.")
    copied = visitor.page.evaluate("navigator.clipboard.readText()")
    assert copied == section.locator("pre code").inner_text()
    assert copied.startswith("diode-collect --shape")


def test_without_a_clipboard(visitor: Visitor) -> None:
    """As over plain HTTP from another machine, the text is selected, and the page says what to do."""
    visitor.is_spent = True
    visitor.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    visitor.open("/overview").unfolded()
    section = visitor.page.locator("section").first
    section.locator("button.copy").click()
    expect(section.get_by_role("status")).to_have_text("Selected; copy it with Ctrl-C.")
    assert visitor.page.evaluate("getSelection().toString()").startswith("WITH cases AS (\n")


def test_pictures_follow_the_scheme(visitor: Visitor, site: Site) -> None:
    """When the system turns dark, so do the page and what is drawn on it, once."""
    visitor.open(telling(site, "problem"))
    shot = visitor.page.locator("figure.picture canvas").first
    light = shot.evaluate("each => [...each.getContext('2d').getImageData(1, 1, 1, 1).data]")
    visitor.page.emulate_media(color_scheme=DARK)
    expect(visitor.page.locator("figure.picture").first.locator("canvas")).to_have_count(1)
    visitor.page.wait_for_timeout(500)
    dark = shot.evaluate("each => [...each.getContext('2d').getImageData(1, 1, 1, 1).data]")
    assert (light, dark) == ([255, 255, 255, 255], [20, 24, 28, 255])
    visitor.is_spent = True
