"""Evaluation of one model on a device: the sections of a report, with links to the problems."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from diode_explorer.judging.verdict import JudgedProblem
from diode_explorer.pages import cases
from diode_trainer.report.evaluation.content import WORST
from diode_trainer.report.parts import NUMBER, Column, Note, Picture, Section, Table, with_addresses
from diode_trainer.report.questions import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from diode_explorer.judging.verdict import Verdict
    from diode_explorer.pages.page import Asked
    from diode_trainer.report.parts import Part, Row


def report_parts(asked: Asked, verdict: Verdict, by: str) -> Iterator[Part]:
    """Yield the parts of a model's page.

    Args:
        asked: the request.
        verdict: the model's results.
        by: property by which the problems are divided into parts.
    """
    yield verdict.content.figures
    yield from (Note(f"{line}.") for line in verdict.notes)
    for section in verdict.content.sections:
        if section.name == "each-problem":
            yield _with_links(section, _linked_picks(asked, verdict.judged))
        elif section.name == "worst":
            (picture, *_) = _with_links(section, _linked_worst(asked, verdict.judged)).parts
            yield replace(section, parts=(picture, problems_table(verdict.judged)))
        elif section.name == "parts":
            yield _part_by_part(section, by, verdict)
        elif section.name != "origin":
            yield section


def case_address(asked: Asked, judged: JudgedProblem) -> str | None:
    """Return the address of an evaluated problem."""
    values = {name: getattr(judged, column) for name, column in cases.TO_PROBLEM.values.items()}
    return asked.address(str(cases.TO_PROBLEM.page), values)


def problems_table(judged: Iterable[JudgedProblem]) -> Table:
    """Return the costliest problems; a download has all."""
    return Table(
        "problems",
        f"The {WORST} worst problems",
        "First picks that lost most against the best measured config.",
        (
            Column("problem", "problem", link=cases.TO_PROBLEM),
            Column("regime_name", "regime"),
            Column("regret", "regret@1", NUMBER, 3),
            Column("regret_5", "regret@5", NUMBER, 3),
            Column("picked", "first pick"),
            Column("picked_us", "pick, us", NUMBER, 2),
            Column("predicted_us", "predicted, us", NUMBER, 2),
            Column("best", "best"),
            cases.BEST_US,
            cases.VENDOR_US,
            cases.CONFIGS,
        ),
        Answer(JudgedProblem._fields, tuple(judged)),
        most=WORST,
    )


def _with_links(section: Section, link: Callable[[Row], str | None]) -> Section:
    parts = tuple(with_addresses(part, link) if isinstance(part, Picture) else part for part in section.parts)
    return replace(section, parts=parts)


def _part_by_part(section: Section, by: str, verdict: Verdict) -> Section:
    parts = tuple(part for part in section.parts if part.name.endswith(f"-by-{by}"))
    text = "" if parts else f"All problems are alike in {by}: {', '.join(verdict.parts[by])}."
    return replace(section, title=f"By {by}", parts=parts, text=text)


def _linked_picks(asked: Asked, judged: tuple[JudgedProblem, ...]) -> Callable[[Row], str | None]:
    """Return a function that finds a point's problem by its name and its time, to the digits of the picture."""
    found = {(one.problem, f"{one.picked_us:.4g}"): one for one in judged}

    def link(row: Row) -> str | None:
        one = found.get((row["problem"], f"{row['measured_us']:.4g}")) if "problem" in row else None
        return None if one is None else case_address(asked, one)

    return link


def _linked_worst(asked: Asked, judged: tuple[JudgedProblem, ...]) -> Callable[[Row], str | None]:
    """Return a function that finds a row's problem by its name."""
    found = {f"{number}. {one.problem}": one for number, one in enumerate(judged[:WORST], 1)}

    def link(row: Row) -> str | None:
        one = found.get(row["problem"])
        return None if one is None else case_address(asked, one)

    return link
