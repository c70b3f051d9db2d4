"""Pictures of a report in a browser, whose fonts are not those that they were laid out with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from diode_trainer.report.drawing import as_vector
from diode_trainer.report.evaluation.pictures import regret_by_ranking
from diode_trainer.report.evaluation.rows import RankingLoss
from diode_trainer.report.theme import DARK, LIGHT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from diode_trainer.report.theme import Palette

pytestmark = pytest.mark.web

_OUTSIDE = """() => {
  const whole = document.querySelector("svg").getBoundingClientRect();
  const labels = [...document.querySelectorAll("svg text")].filter((text) => text.textContent);
  const places = labels.map((text) => [text.textContent, text.getBoundingClientRect()]);
  const outside = places.filter(([, {left, right}]) => left < whole.left || right > whole.right);
  return [labels.length, ...outside.map(([name]) => name)];
}"""


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_a_vector_has_room_for_its_labels(browser: Browser, palette: Palette) -> None:
    """Names of rankings are whole in the browser's font, also one that is as long as there is room for."""
    longest = "a model that has a name of so many words that"
    names = ("v4_model", "ranking of other folds", "nvMatmulHeuristics", longest)
    rows = [RankingLoss(name, k, 10.0 / k, 1 + 0.1 / k, 1.2, 2.0, 50) for name in names for k in (1, 5)]
    untitled = {name: value for name, value in regret_by_ranking(rows).items() if name not in {"title", "autosize"}}
    page = browser.new_page()
    page.set_content(as_vector(untitled, palette).decode())
    found, *outside = page.evaluate(_OUTSIDE)
    page.close()
    assert found > len(names)
    assert outside == []
