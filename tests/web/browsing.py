"""A browser that notes whatever is wrong with what it shows."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from diode_explorer.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request, Response

    MakeVisitor = Callable[..., "Visitor"]

DESKTOP, PHONE = (1280, 900), (390, 844)
LIGHT, DARK = "light", "dark"
_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
    "--disable-features=SpareRendererForSitePerProcess",
    "--host-resolver-rules=MAP evil.example 127.0.0.1",  # as a page of that name could have it
)
_PATIENCE_MS = 20_000
_LONG_PATIENCE_MS = 300_000
_GIVEN_UP = "net::ERR_ABORTED"
"""Of a request whose page was left meanwhile, and of a navigation that became a download."""
_INK = """canvas => {
  const copied = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
  copied.drawImage(canvas, 0, 0);
  const {width, height} = canvas;
  const pixels = (...area) => [...new Uint32Array(copied.getImageData(...area).data.buffer)];
  const edges = {left: pixels(0, 0, 1, height), right: pixels(width - 1, 0, 1, height), top: pixels(0, 0, width, 1)};
  const background = pixels(0, 0, 1, 1)[0];
  return {
    name: canvas.closest("figure").dataset.name,
    colours: new Set(pixels(0, 0, width, height)).size,
    cut: Object.keys(edges).filter((edge) => edges[edge].some((pixel) => pixel !== background)),
  };
}"""


_AXE = files("axe_playwright_python").joinpath("axe.min.js")


def chromium() -> str:
    """Return the path of a browser.

    Raises:
        FileNotFoundError: there is none; the message says what to install.
    """
    named = os.environ.get("CHROMIUM")
    found = shutil.which(named or "chromium")
    if found is None:
        missing = f"CHROMIUM names {named!r}, which is no program" if named else "there is no chromium"
        raise FileNotFoundError(f"{missing}; apt-get install chromium, or let CHROMIUM name a Chrome or Chromium")
    return found


def launched(playwright: Playwright) -> Browser:
    """Start a browser.

    Raises:
        FileNotFoundError: there is none.
    """
    return playwright.chromium.launch(executable_path=chromium(), args=_OPTIONS)


@dataclass
class Visitor:
    """A window of a browser that looks at one site."""

    context: BrowserContext
    page: Page
    site: str
    """The address of the site, without a slash at the end."""
    asked: list[str] = field(default_factory=list)
    """Every address that was asked for."""
    wrong: list[str] = field(default_factory=list)
    """Whatever went wrong: errors and warnings of the console, exceptions, requests that failed."""
    is_spent: bool = False
    """Whether nobody else may have it, since something of it stays changed."""

    @classmethod
    def of(
        cls, browser: Browser, site: str, *, size: tuple[int, int] = DESKTOP, scheme: str = LIGHT, pixels: int = 1
    ) -> Visitor:
        """Open a window.

        Args:
            browser: where.
            site: the address of the site.
            size: of the window.
            scheme: of colours, light or dark.
            pixels: of the device to one of the page, along a side.
        """
        width, height = size
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == DARK else "light",
            device_scale_factor=pixels,
        )
        context.set_default_timeout(_PATIENCE_MS)
        visitor = cls(context, context.new_page(), site)
        visitor.page.on("console", visitor._said)
        visitor.page.on("pageerror", lambda error: visitor.wrong.append(f"exception: {error}"))
        context.on("request", lambda request: visitor.asked.append(request.url))
        context.on("requestfailed", visitor._failed)
        context.on("response", visitor._answered)
        return visitor

    def open(self, path: str) -> Visitor:
        """Go to a page of the site, and wait until it shows what it is to show."""
        self.page.goto(self.site + path)
        page = PAGES.get(urlsplit(path).path.strip("/"))
        if page is not None and not page.is_live:
            # Something is being worked out, and the page renews itself until it is.
            self.page.locator("[data-generation='']").wait_for(state="detached", timeout=_LONG_PATIENCE_MS)
        return self.settled()

    def arrived(self, path: str) -> Visitor:
        """Go to a page of the site, and wait for its text and scripts alone."""
        self.page.goto(self.site + path, wait_until="domcontentloaded")
        return self

    def settled(self) -> Visitor:
        """Wait until the pictures of the page are drawn."""
        self.page.wait_for_load_state("load")
        self.page.locator("figure.picture:not([data-drawn])").first.wait_for(state="detached")
        return self

    def left(self) -> None:
        """Leave the page, and forget what was noted."""
        self.page.goto("about:blank")
        self.asked.clear()
        self.wrong.clear()

    @property
    def path(self) -> str:
        """Return the address of the page, as the site's own."""
        return self.page.url.removeprefix(self.site)

    def text(self) -> str:
        """Return what the page says."""
        return self.page.locator("main").inner_text()

    def ink(self) -> list[dict[str, Any]]:
        """Return of each picture how many colours it has, and at which edges something of it may be cut off."""
        return [canvas.evaluate(_INK) for canvas in self.page.locator("figure.picture canvas").all()]

    def unfolded(self) -> None:
        """Unfold everything on the page."""
        self.page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")

    def faults(self) -> list[dict[str, Any]]:
        """Return what axe-core finds wrong with the page for people who see or steer otherwise than most.

        Takes most rows of tables away: they are alike, and two thousand of them keep it busy for a minute.
        """
        self.page.eval_on_selector_all("tbody tr:nth-child(n+13)", "all => all.forEach(each => each.remove())")
        self.page.evaluate(_AXE.read_text())
        found = self.page.evaluate("axe.run()")
        assert len(found["passes"]) > 10
        return [
            {"rule": each["id"], "impact": each["impact"], "at": [node["html"][:200] for node in each["nodes"][:3]]}
            for each in found["violations"]
        ]

    def elsewhere(self) -> list[str]:
        """Return what was asked of anybody but the site."""
        return [url for url in self.asked if not url.startswith((f"{self.site}/", "data:", "about:"))]

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.wrong.append(f"console: {message.type}: {message.text}")

    def _failed(self, request: Request) -> None:
        if request.failure != _GIVEN_UP:
            self.wrong.append(f"failed: {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if not (response.ok or response.status in {302, 303, 304, 307}):
            self.wrong.append(f"{response.status}: {response.url}")
