"""Queries of the coverage page: problems of one device by octaves of two sizes, the cells of a map."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from diode_explorer.pages import cases
from diode_explorer.pages.coverage.rooflines import FIGURES, peaks
from diode_trainer.report.questions import Question, where

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_store.records import Hardware
    from diode_trainer.report.questions import Value

SIZES = ("m", "n", "k")
AXES = {"m-n": ("m", "n"), "n-k": ("n", "k"), "m-k": ("m", "k")}
"""Vertical and horizontal size by name."""


def octave(size: str) -> str:
    """Return SQL for the largest power of two up to a size."""
    return f"(2 ** floor(log2({size})))::BIGINT"


def octave_column(size: str) -> str:
    """Return the name of a size's octave in queries and addresses."""
    return f"{size}_from"


def octave_text(start: int) -> str:
    """Return the sizes of an octave as text: ``256 to 511``."""
    return "1" if start == 1 else f"{start:,} to {2 * start - 1:,}"


def octave_options(size: str) -> str:
    """Return the SELECT of a size's octaves with their labels."""
    return f"""\
SELECT start, CASE start WHEN 1 THEN '1' ELSE format('{{:,}} to {{:,}}', start, 2 * start - 1) END AS label
FROM (SELECT DISTINCT {octave(size)} AS start FROM best_times WHERE {cases.IS_KNOWN})
ORDER BY start"""  # noqa: S608 - our own text


def axes_of(filters: Mapping[str, Value]) -> tuple[str, str, str]:
    """Return the vertical, the horizontal and the remaining size."""
    up, right = AXES[str(filters.get("axes", next(iter(AXES))))]
    return up, right, next(size for size in SIZES if size not in (up, right))


def conditions(filters: Mapping[str, Value]) -> dict[str, str]:
    """Return the filters that a case must meet, as ``where`` takes them. Octaves filter only off the axes."""
    *_, third = axes_of(filters)
    return {**cases.CONDITIONS, octave_column(third): octave(third)}


@dataclass(frozen=True)
class Map:
    """A map of one device's measurements by two sizes."""

    filters: Mapping[str, Value]
    """Filters of the page, with a device."""
    devices: Mapping[int, Hardware]
    """Device models of that name, by id in the warehouse."""

    @property
    def axes(self) -> tuple[str, str]:
        """The vertical and the horizontal size."""
        return axes_of(self.filters)[:2]

    @property
    def third(self) -> str:
        """The remaining size."""
        return axes_of(self.filters)[2]

    @property
    def columns(self) -> tuple[str, str]:
        """Columns of both octaves."""
        up, right = self.axes
        return octave_column(up), octave_column(right)

    @property
    def chosen(self) -> dict[str, int]:
        """Chosen octaves of the map: column → start. Two choose a cell, one chooses a row or a column."""
        return {name: int(self.filters[name]) for name in self.columns if name in self.filters}

    @cached_property
    def _cases(self) -> str:
        """SQL for each problem once, as the problem page shows it."""
        return f"""\
WITH {peaks(self.devices)},
cases AS (
    SELECT DISTINCT ON (problem_id)
        *,
        {octave("m")} AS m_from,
        {octave("n")} AS n_from,
        {octave("k")} AS k_from,
{FIGURES},
        flops / best_us / 1e6 AS tflops,
        100 * roofline_us / best_us AS roofline_pct,
        vendor_us / triton_us AS speedup
    FROM best_times
    JOIN peaks USING (hardware_id)
    {where(conditions(self.filters), self.filters, cases.IS_KNOWN)}    ORDER BY problem_id, {cases.NEAREST_FIRST}
)
"""  # noqa: S608 - our own text; values are parameters

    def cells(self) -> Question:
        """Return the question for the cells of the map, with medians over their problems."""
        up, right = self.columns
        return self._ask(f"""\
SELECT
    {up},
    {right},
    count(*) AS problems,
    sum(configs)::BIGINT AS configs,
    median(best_us) AS best_us,
    median(tflops) AS tflops,
    median(roofline_pct) AS roofline_pct,
    median(speedup) AS speedup,
    100 * avg((speedup > 1)::INTEGER) AS triton_wins_pct,
    max(last_measured_at) AS last_measured_at
FROM cases
GROUP BY {up}, {right}
ORDER BY {up}, {right}""")  # noqa: S608 - as above

    def problems(self) -> Question:
        """Return the question for the problems of the choice."""
        chosen = where({name: name for name in self.chosen}, self.filters)
        return self._ask(f"""\
SELECT
    {cases.PROBLEM_TEXT} AS problem,
{cases.CASE_COLUMNS},
    torch,
    template,
    configs,
    best_us,
    tflops,
    roofline_pct,
    vendor_us,
    speedup,
    family,
    last_measured_at
FROM cases
{chosen}ORDER BY m, n, k, b, problem""")  # noqa: S608 - as above

    def kinds(self) -> Question:
        """Return the question for the measurements by op and arithmetic."""
        return self._ask(f"""\
SELECT
    op,
    {cases.ARITHMETIC} AS arithmetic,
    count(*) AS problems,
    sum(configs)::BIGINT AS configs,
    100 * avg((speedup > 1)::INTEGER) AS triton_wins_pct,
    median(roofline_pct) AS roofline_pct,
    max(last_measured_at) AS last_measured_at
FROM cases
GROUP BY ALL
ORDER BY problems DESC, op, arithmetic""")  # noqa: S608 - as above

    def usual_kind(self) -> Question:
        """Return the question for the most common op, dtype, layout, batch and dimensions."""
        return self._ask("""\
SELECT op, dtype, tf32, layout, b, dimensions
FROM cases
GROUP BY ALL
ORDER BY count(*) DESC, op, dtype, tf32, layout, b, dimensions
LIMIT 1""")

    def usual_sizes(self) -> Question:
        """Return the question for the most common sizes of each row and column, its own and the remaining size."""
        parts = "\nUNION ALL\n".join(
            f"""\
SELECT '{axis}' AS axis, '{size}' AS size, octave, max({{'problems': problems, 'value': value}}).value AS value
FROM (SELECT {octave_column(axis)} AS octave, {size} AS value, count(*) AS problems FROM cases GROUP BY ALL)
GROUP BY octave"""  # noqa: S608 - our own text
            for axis in self.axes
            for size in (axis, self.third)
        )
        return self._ask(parts)

    def _ask(self, sql: str) -> Question:
        return Question(self._cases + sql, self.filters)
