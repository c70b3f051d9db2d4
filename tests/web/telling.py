"""Which states of each page tell most of it: what tests look at, and screenshots show."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from diode_explorer.pages import PAGES

if TYPE_CHECKING:
    from served import Site

NAMES = tuple(PAGES)
SELECT = """\
SELECT op, dtype, m, n, k, best_us, vendor_us
FROM best_times
WHERE triton_us < vendor_us / 2
ORDER BY best_us DESC
LIMIT 10"""


def telling(site: Site, name: str) -> str:
    """Return the address of a page in the state that shows most of it."""
    if name in {"problem", "model"}:  # the problem with most configs; the model that the hook asks first
        return _first_link(site, f"/{name}", f"/{name}?")
    if name == "sql":
        return f"/sql?{urlencode({'q': SELECT})}"
    return f"/{name}"


def addresses(site: Site, name: str) -> list[str]:
    """Return the addresses under which a page is looked at: as it is at first, and in its telling state."""
    return list(dict.fromkeys([f"/{name}", telling(site, name)]))


def _first_link(site: Site, path: str, prefix: str) -> str:
    """Return the first address in a page's tables that begins so."""
    text = site.get(path).text
    found = re.search(rf'<td[^>]*><a href="({re.escape(prefix)}[^"]*)"', text)
    assert found, f"no link to {prefix} on {path}"
    return html.unescape(found[1])
