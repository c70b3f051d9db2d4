"""Fixtures of the tests in a browser: a real server over a filled warehouse, a real browser, and its windows."""

from __future__ import annotations

from collections import defaultdict
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


@pytest.fixture(scope="session")
def _windows(browser: Browser) -> dict[tuple[tuple[str, Any], ...], list[Visitor]]:
    """Return windows that were used and can be used again, by their options: to open one takes longer than a page."""
    return defaultdict(list)


@pytest.fixture
def visitor_of(
    browser: Browser, site: Site, _windows: dict[tuple[tuple[str, Any], ...], list[Visitor]]
) -> Iterator[MakeVisitor]:
    """Return a maker of windows on the site; at the end nothing may have been wrong in them, or asked of others."""
    visitors: list[tuple[tuple[tuple[str, Any], ...], Visitor]] = []

    def make(**options: Any) -> Visitor:
        key = tuple(sorted(options.items()))
        visitor = _windows[key].pop() if _windows[key] else Visitor.of(browser, site.address, **options)
        visitors.append((key, visitor))
        return visitor

    yield make
    found = [(visitor.wrong.copy(), visitor.elsewhere()) for _, visitor in visitors]
    for key, visitor in visitors:
        if visitor.is_spent:
            visitor.context.close()
        else:
            visitor.left()
            _windows[key].append(visitor)
    assert found == [([], [])] * len(visitors)


@pytest.fixture
def visitor(visitor_of: MakeVisitor) -> Visitor:
    """Return one window."""
    return visitor_of()
