"""What strange addresses and pages of other sites get, in a browser."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from browsing import Visitor
from playwright.sync_api import expect

from filled import STRANGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from browsing import MakeVisitor
    from playwright.sync_api import Browser

    from served import Site

pytestmark = pytest.mark.web

_ASKED_BY_ANOTHER = "the request comes from another site; open this address yourself"
_ATTEMPTS = """async site => {
  const how = (promise) => promise.then((answer) => "got " + answer, (error) => "refused");
  const loaded = (name, property, path) => how(new Promise((got, refused) => {
    const element = document.createElement(name);
    element.onload = () => got(name);
    element.onerror = refused;
    if (name === "link") element.rel = "stylesheet";
    element[property] = site + path;
    document.body.append(element);
  }));
  return {
    fetch: await how(fetch(site + "/overview")),
    blind: await how(fetch(site + "/overview", {mode: "no-cors"})),
    kept: await how(fetch(site + "/live", {credentials: "include", cache: "force-cache"})),
    post: await how(fetch(site + "/overview", {method: "POST", mode: "no-cors", body: "a=1"})),
    remove: await how(fetch(site + "/overview", {method: "DELETE"})),
    beacon: await how(Promise.resolve(navigator.sendBeacon(site + "/overview", "a=1")).then(() => Promise.reject())),
    image: await loaded("img", "src", "/overview"),
    script: await loaded("script", "src", "/static/site.js"),
    style: await loaded("link", "href", "/theme.css"),
    events: await how(new Promise((got, refused) => {
      const source = new EventSource(site + "/live");
      source.onmessage = got;
      source.onerror = () => { source.close(); refused(); };
    })),
    socket: await how(new Promise((got, refused) => {
      const socket = new WebSocket(site.replace("http", "ws") + "/live");
      socket.onopen = got;
      socket.onerror = refused;
    })),
  };
}"""


@pytest.fixture(scope="module")
def other_port() -> Iterator[int]:
    """Return the port of another site."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>Another</title><body><p>Another site</p>")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest, browser: Browser, site: Site, other_port: int) -> Iterator[Visitor]:
    """Return a window on another site, of the name that the test is asked with."""
    visitor = Visitor.of(browser, site.address)
    visitor.page.goto(f"http://{getattr(request, 'param', 'evil.example')}:{other_port}/")
    yield visitor
    visitor.context.close()


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nope", 404, "there is no such page"),
        ("/overview?torch=a&torch=b", 400, "torch is given twice"),
        ("/overview?<script>alert(1)</script>=1", 400, f"unknown parameter '{STRANGE}'"),
        ("/problem?problem=0", 404, "no such problem was timed with these filters"),
        (f"/overview?device={'x' * 5000}", 414, "this address is too long"),
    ],
    ids=["page", "twice", "unknown", "problem", "long"],
)
def test_a_refusal_says_why(visitor_of: MakeVisitor, path: str, status: int, said: str) -> None:
    """On a page like any other, from which the menu leads on."""
    visitor = visitor_of()
    visitor.page.goto(visitor.site + path)
    assert visitor.page.locator("h1").inner_text() == str(status)
    assert said in visitor.text()
    assert visitor.faults() == []
    visitor.page.locator("nav a").first.click()
    visitor.page.wait_for_url("**/overview")
    assert {line.partition(":")[0] for line in visitor.wrong} == {str(status), "console"}
    visitor.wrong.clear()


def test_a_name_is_text(visitor: Visitor) -> None:
    """A host and a kernel that are called like a script are shown, and run nothing: no dialog, no element."""
    said: list[str] = []
    visitor.is_spent = True
    visitor.page.on("dialog", lambda dialog: said.append(dialog.message))
    visitor.open("/overview").page.get_by_role("link", name=STRANGE, exact=True).click()
    visitor.page.wait_for_url("**/overview?machine=**")
    assert visitor.settled().page.locator("select[name=machine]").input_value() == STRANGE
    visitor.open("/problem?m=65&n=256").page.locator("td a").first.click()
    visitor.page.wait_for_url("**/problem?problem=**")
    expect(visitor.settled().page.get_by_role("cell", name=STRANGE).first).to_be_visible()
    assert (said, visitor.page.locator("script:not([src]):not([type='application/json'])").count()) == ([], 0)


@pytest.mark.parametrize("elsewhere", ["localhost", "127.0.0.1", "evil.example"], indirect=True)
def test_another_site_gets_nothing(elsewhere: Visitor, site: Site) -> None:
    """Neither reads nor writes, nor an image, a script or a style, and what it tried is in the log.

    It has another name, or the same one and another port.
    """
    before = len(site.log)
    assert set(elsewhere.page.evaluate(_ATTEMPTS, site.address).values()) == {"refused"}
    logged = site.log[before:]
    assert logged.count(_ASKED_BY_ANOTHER) >= 8
    assert logged.count("this site is read-only") >= 2
    assert logged.count("Traceback") == 0


def test_another_site_frames_nothing(elsewhere: Visitor, site: Site) -> None:
    """The frame stays empty, whatever it is in."""
    before = len(site.log)
    for name in ("iframe", "embed", "object"):
        elsewhere.page.evaluate(
            """([name, address]) => {
              const frame = document.createElement(name);
              frame[name === "object" ? "data" : "src"] = address;
              document.body.append(frame);
            }""",
            [name, f"{site.address}/overview"],
        )
    elsewhere.page.wait_for_timeout(1000)
    assert [frame.locator("h1", has_text="Overview").count() for frame in elsewhere.page.frames] == [0] * len(
        elsewhere.page.frames
    )
    assert site.log[before:].count(_ASKED_BY_ANOTHER) == 3


def test_another_site_links_here(elsewhere: Visitor, site: Site) -> None:
    """A visitor who follows the link sees the page, and its opener nothing of it."""
    elsewhere.page.evaluate(
        """address => {
          const link = document.createElement("a");
          Object.assign(link, {href: address, target: "_blank", rel: "opener", textContent: "kernels"});
          document.body.append(link);
        }""",
        f"{site.address}/overview",
    )
    with elsewhere.context.expect_page() as opened:
        elsewhere.page.get_by_role("link", name="kernels").click()
    expect(opened.value.locator("h1")).to_have_text("Overview")
    assert opened.value.evaluate("window.opener") is None


def test_another_site_sends_a_form(elsewhere: Visitor, site: Site) -> None:
    """Who submits it sees why nothing came of it."""
    elsewhere.page.evaluate(
        """address => {
          const form = document.createElement("form");
          Object.assign(form, {action: address, method: "post"});
          document.body.append(form);
          form.submit();
        }""",
        f"{site.address}/overview",
    )
    expect(elsewhere.page.locator("h1")).to_have_text("405")
    expect(elsewhere.page.locator("main")).to_contain_text("this site is read-only")


def test_a_name_that_was_made_to_point_here(browser: Browser, site: Site) -> None:
    """Is not answered (DNS rebinding): its pages would be of the same origin as this site."""
    visitor = Visitor.of(browser, f"http://evil.example:{site.port}")
    visitor.page.goto(f"{visitor.site}/overview")
    assert visitor.page.locator("h1").inner_text() == "421"
    assert "this server answers to 127.0.0.1:" in visitor.text()
    visitor.context.close()
