"""What other sites and strange requests get, in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from browsing import MakeVisitor

pytestmark = pytest.mark.web


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nope", 404, "there is no such page"),
        ("/overview?torch=a&torch=b", 400, "torch is given twice"),
        ("/problem?problem=0", 404, "no such problem was timed so"),
        (f"/overview?device={'x' * 5000}", 414, "this address is too long"),
    ],
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
