"""Fixtures of the tests in a browser: a real server over a filled warehouse, a real browser, and its windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from browsing import Visitor, chromium, launched
from filled import filled

from served import ended, started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from browsing import MakeVisitor
    from playwright.sync_api import Browser

    from served import Site


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a browser; without one every test fails, and says what to install."""
    from playwright.sync_api import sync_playwright

    try:
        chromium()
    except FileNotFoundError as error:
        pytest.fail(str(error), pytrace=False)
    with sync_playwright() as playwright:
        found = launched(playwright)
        yield found
        found.close()


@pytest.fixture(scope="session")
def site(_template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a server over a warehouse with something for every page."""
    folder = tmp_path_factory.mktemp("site")
    warehouse = filled(_template_database, folder, is_strange=True)
    found = started(warehouse.database, **warehouse.settings)
    yield found
    ended(found)


@pytest.fixture
def visitor_of(browser: Browser, site: Site) -> Iterator[MakeVisitor]:
    """Return a maker of windows on the site; at the end nothing may have been wrong in them, or asked of others."""
    visitors: list[Visitor] = []

    def make(**options: Any) -> Visitor:
        visitors.append(Visitor.of(browser, site.address, **options))
        return visitors[-1]

    yield make
    found = [(visitor.wrong, visitor.elsewhere()) for visitor in visitors]
    for visitor in visitors:
        visitor.context.close()
    assert found == [([], [])] * len(visitors)


@pytest.fixture
def visitor(visitor_of: MakeVisitor) -> Visitor:
    """Return one window."""
    return visitor_of()
