"""How one model does on a device: the figures and pictures of a report, with links to the problems."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from diode_explorer.pages import cases
from diode_explorer.pages.model.tables import WORST, parts_table, problems_table, rankings_table
from diode_explorer.pages.parts import Fact, Facts, Note, Picture
from diode_explorer.pages.questions import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from diode_explorer.judging.verdict import Judged, Verdict
    from diode_explorer.pages.page import Asked
    from diode_explorer.pages.parts import Part
    from diode_trainer.report.content import Block, Section
    from diode_trainer.report.content import Picture as Drawn

Row = dict[str, Any]


def report_parts(asked: Asked, verdict: Verdict, by: str) -> Iterator[Part]:
    """Yield what is shown of a model.

    Args:
        asked: what the page is made from.
        verdict: how it did.
        by: what the problems are cut by.
    """
    sections = {section.name: section for section in verdict.content.sections}
    tiles = (Fact(tile.label, tile.value, tile.note) for tile in verdict.content.tiles)
    yield Facts("figures", "Figures", tuple(tiles))
    ranking, ecdf = _pictures(sections["rankings"])
    yield picture_part(ranking)
    yield rankings_table(verdict.reports, {verdict.model})
    yield from left_out(verdict)
    yield from (Note(f"{line}.") for line in verdict.notes)
    yield picture_part(ecdf)
    yield from _blocks(sections["problems"], _linked_picks(asked, verdict.judged))
    yield from _blocks(sections["calibration"])
    yield from _part_by_part(verdict, by)
    yield from _blocks(sections["worst"], _linked_worst(asked, verdict.judged))
    yield problems_table(verdict.judged)
    yield from _blocks(sections["learning"])


def left_out(verdict: Verdict) -> Iterator[Note]:
    """Yield what rankings were not judged, or not by all problems."""
    if verdict.left_out:
        text = ". ".join(verdict.left_out).replace("left out", "Left out")
        yield Note(f"{text}.")


def picture_part(drawn: Drawn, text: str = "", link: Callable[[Row], str | None] = lambda _row: None) -> Picture:
    """Return a picture of a report as a part.

    Args:
        drawn: the picture.
        text: what is said before which direction is good.
        link: where a click on what a row shows leads.
    """
    spec = {name: value for name, value in copy.deepcopy(drawn.spec).items() if name != "title"}
    for rows in _data(spec):
        for row in rows:
            if address := link(row):
                row["address"] = address
    shown = max(_data(spec), key=lambda rows: (len(rows[0]) if rows else 0, len(rows)))
    names = tuple(dict.fromkeys(name for row in shown for name in row if name != "address"))
    answer = Answer(names, tuple(tuple(row.get(name) for name in names) for row in shown))
    return Picture(
        drawn.name.replace("_", "-"), drawn.title, f"{text} {drawn.direction}.".strip(), answer, lambda _rows: spec
    )


def case_address(asked: Asked, judged: Judged) -> str | None:
    """Return the address of the problem that a model was judged by."""
    values = {name: getattr(judged, column) for name, column in cases.TO_PROBLEM.values.items()}
    return asked.address(str(cases.TO_PROBLEM.page), values)


def _data(spec: Mapping[str, Any]) -> list[list[Row]]:
    """Return all data of a specification."""
    layers = [spec, *spec.get("layer", ())]
    return [layer["data"]["values"] for layer in layers if layer.get("data", {}).get("values")] or [[]]


def _pictures(section: Section) -> list[Drawn]:
    return [block.picture for block in section.blocks if block.picture is not None]


def _blocks(section: Section, link: Callable[[Row], str | None] = lambda _row: None) -> Iterator[Part]:
    for block in section.blocks:
        yield from _block(block, link)


def _block(block: Block, link: Callable[[Row], str | None]) -> Iterator[Part]:
    if block.picture is not None:
        yield picture_part(block.picture, block.text, link)
    elif block.text:
        yield Note(block.text)


def _part_by_part(verdict: Verdict, by: str) -> Iterator[Part]:
    parts = verdict.parts[by]
    drawn = next((each for each in verdict.content.pictures if each.name == f"regret_by_{by}"), None)
    if drawn is None:
        yield Note(f"All problems are alike in {by}: {', '.join(parts)}.")
        return
    yield picture_part(drawn)
    yield parts_table(by, parts)


def _linked_picks(asked: Asked, judged: tuple[Judged, ...]) -> Callable[[Row], str | None]:
    """Return what finds the problem of a point by its name and its time, to the digits that a picture has."""
    found = {(one.problem, f"{one.picked_us:.4g}"): one for one in judged}

    def link(row: Row) -> str | None:
        one = found.get((row["problem"], f"{row['measured_us']:.4g}")) if "problem" in row else None
        return None if one is None else case_address(asked, one)

    return link


def _linked_worst(asked: Asked, judged: tuple[Judged, ...]) -> Callable[[Row], str | None]:
    """Return what finds the problem of a row by its name."""
    found = {f"{number}. {one.problem}": one for number, one in enumerate(judged[:WORST], 1)}

    def link(row: Row) -> str | None:
        one = found.get(row["problem"])
        return None if one is None else case_address(asked, one)

    return link
