"""Takes pictures of every page of diode serve, over the bundled data and some more, into a folder: `make screenshots`.

Each in both schemes, as wide as a desk's and as a phone's, down to where most is seen: NAME-SCHEME-SIZE.png.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from browsing import DARK, DESKTOP, LIGHT, PHONE, Visitor, launched
from PIL import Image
from playwright.sync_api import sync_playwright
from telling import NAMES, telling

from diode_store.warehouse import database, migrate
from filled import filled
from served import ended, started

_SIZES = {"desktop": DESKTOP, "phone": PHONE}
_MOST_HEIGHT = 1400
_COLOURS = 128
"""Of a picture; more than a page has, but for the edges of its letters."""


def main(folder: Path) -> None:
    """Take all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        empty = Path(temporary) / "empty.db"
        engine = database.make_engine(str(empty))
        migrate.upgrade(engine)
        engine.dispose()
        warehouse = filled(empty, Path(temporary), is_strange=False)
        site = started(warehouse.database, **warehouse.settings)
        try:
            with sync_playwright() as playwright:
                browser = launched(playwright)
                for scheme in (LIGHT, DARK):
                    for kind, size in _SIZES.items():
                        visitor = Visitor.of(browser, site.address, size=size, scheme=scheme)
                        for name in NAMES:
                            path = folder / f"{name}-{scheme}-{kind}.png"
                            _take(visitor.open(telling(site, name)), path)
                        visitor.context.close()
                browser.close()
        finally:
            ended(site)


def _take(visitor: Visitor, path: Path) -> None:
    """Write what a window shows, and below it."""
    width, height = visitor.page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    area = {"x": 0, "y": 0, "width": width, "height": min(height, _MOST_HEIGHT)}
    visitor.page.screenshot(path=path, full_page=True, clip=area)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
