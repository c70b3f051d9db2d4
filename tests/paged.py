"""What a page of diode serve shows, without a server."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jsonschema

from diode_explorer.rendering import shown
from diode_explorer.visit import Visit

if TYPE_CHECKING:
    from diode_explorer.feed import Feed
    from diode_explorer.pages.page import Page
    from diode_trainer.report.html import Shown
    from diode_trainer.report.questions import Value


def parts(feed: Feed, page: Page, **filters: Value) -> dict[str, Shown]:
    """Return its parts by name."""
    visit = Visit(feed.state, filters)
    return {each.part.name: each for each in shown(page.parts(visit), visit)}


def rows(part: Shown) -> list[dict[str, Any]]:
    """Return the rows of a table or picture."""
    assert part.answer is not None
    return part.answer.dicts()


def layer(part: Shown, number: int) -> list[dict[str, Any]]:
    """Return the data of a layer of a picture."""
    return list(part.spec["layer"][number]["data"]["values"])


def faults(part: Shown) -> list[str]:
    """Return why a picture is not Vega-Lite."""
    text = files("altair.vegalite.v6.schema").joinpath("vega-lite-schema.json").read_text(encoding="utf-8")
    return [error.message for error in jsonschema.Draft7Validator(json.loads(text)).iter_errors(part.spec)]


def facts(part: Shown) -> dict[str, str]:
    """Return what is said of something: label → value."""
    return {fact.label: fact.value for fact in part.part.facts}  # type: ignore[union-attr]
