from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from diode_trainer.report.evaluation.content import Evidence, compose
from diode_trainer.report.evaluation.page import as_page

if TYPE_CHECKING:
    from diode_trainer.report.evaluation.content import Judged

HOSTILE = "<script>alert(1)</script>&\"'\u2028</style>"


class Reader(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what an element loads or runs."""
        known = dict(attributes)
        self.tags.append(tag)
        self.handlers += [name for name in known if name.startswith("on")]
        self.loads += [str(known[name]) for name in ("src", "href", "data", "action", "srcset") if name in known]
        if tag == "meta" and known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"] or ""
        if tag == "script":
            self.scripts.append((known, ""))

    def handle_data(self, data: str) -> None:
        """Note a script's text."""
        if self.lasttag == "script" and self.scripts and not self.scripts[-1][1]:
            self.scripts[-1] = (self.scripts[-1][0], data)


def read(page: str) -> Reader:
    """Return what a page does."""
    reader = Reader()
    reader.feed(page)
    return reader


def data_in(page: str) -> list[Any]:
    """Return the JSON of a page's script elements: of each picture, then the palettes."""
    scripts = read(page).scripts
    return [json.loads(text) for attributes, text in scripts if attributes.get("type") == "application/json"]


@pytest.fixture(scope="module")
def page(evidence: Evidence) -> str:
    """Return a whole page."""
    return as_page(compose(evidence))


def test_a_page_loads_nothing(page: str) -> None:
    """Every link leads to a place on the page itself, and style has no address."""
    assert {target for target in read(page).loads if not target.startswith("#")} == {"data:,"}  # the icon
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert re.findall(r"url\(|@import", style) == []


def test_a_browser_may_load_nothing(page: str) -> None:
    """The page's policy forbids what comes from elsewhere, and every script but its own by their hashes."""
    reader = read(page)
    assert reader.policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in reader.policy
    own = [text for attributes, text in reader.scripts if attributes.get("type") != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in own]
    assert re.findall(r"'sha256-([^']+)'", reader.policy) == hashes
    assert len(hashes) == 2


def test_a_page_holds_its_pictures(page: str, evidence: Evidence) -> None:
    """Each place for a picture has a specification in the page's JSON, and each theme a configuration."""
    *specs, palettes = data_in(page)
    places = re.findall(r'<figure class="picture" data-name="([a-z-]+)"', page)
    assert places == [picture.name for picture in compose(evidence).pictures]
    assert len(specs) == len(places)
    assert set(palettes) == {"light", "dark"}


def test_equal_evaluations_give_equal_pages(page: str, evidence: Evidence) -> None:
    """Nothing in a page depends on when or how often it was made."""
    assert as_page(compose(replace(evidence))) == page


def test_names_are_text(evidence: Evidence) -> None:
    """A model, a device, a family or a kernel may be called anything; a page shows it and runs nothing."""
    (first, *rest) = evidence.judged[0].judgements
    hostile = replace(first, family=HOSTILE, chosen=replace(first.chosen, template=HOSTILE))
    judged = replace(
        evidence.judged[0],
        title=HOSTILE,
        model=HOSTILE,
        reports={HOSTILE: evidence.judged[0].reports["quick"]},
        regrets={HOSTILE: evidence.judged[0].regrets["quick"]},
        judgements=(hostile, *rest),
        left_out=(HOSTILE,),
    )
    content = compose(
        replace(
            evidence,
            heading=HOSTILE,
            summary=HOSTILE,
            judged=(judged,),
            notes=(HOSTILE,),
            facts={HOSTILE: {HOSTILE: HOSTILE}},
        )
    )
    plain, reader = read(as_page(compose(evidence))), read(as_page(content))
    assert reader.tags.count("script") == plain.tags.count("script")
    assert reader.tags.count("style") == 1
    assert reader.handlers == []
    data = data_in(as_page(content))
    assert HOSTILE in json.dumps(data, ensure_ascii=False).replace('\\"', '"')


def test_figures_of_the_page(page: str, judged: Judged) -> None:
    """Headline figures, notes, facts and what was left out are in the page as text."""
    own = judged.reports["quick"]
    for text in (
        f"<dd>{own.regret[1].geomean:.4f}<",
        "It was made up.",
        "<dt>created</dt>\n<dd>2026-11-20</dd>",
        "Left out Inductor DEFAULT: the data holds none of it",
        "All problems are alike in op: mm; dtype: bfloat16; layout: nn;",
        "llama3-8b",
    ):
        assert text in page


def test_worst_problems_have_whole_configs(page: str, evidence: Evidence) -> None:
    """The table of the costliest picks has every known number of the pick and of the best, and the roofline."""
    worst = max(evidence.judged[0].judgements, key=lambda j: j.regret[1])
    rows = page.partition("Configs of the costliest picks</a>")[2].partition("<tbody>")[2].split("</tr>")
    pick = re.findall(r">([^<>]*)</td>", rows[0])
    best = re.findall(r">([^<>]*)</td>", rows[1])
    numbers = ("block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps")

    def shown(config: Any) -> list[str]:
        return [config.template, *("" if (n := getattr(config, name)) is None else str(n) for name in numbers)]

    assert pick[:3] == ["1", f"mm bf16 {worst.shape.m}x{worst.shape.n}x{worst.shape.k} nn", pick[2]]
    assert pick[3:11] == ["pick", *shown(worst.chosen)]
    assert best[:11] == ["", "", "", "best", *shown(worst.best)]
    assert f"{worst.roofline_us:,.2f}" in best
