"""Queries of the change page: problems that were timed on both sides, and the ratios of their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_explorer.pages import cases
from diode_trainer.report.questions import Question, where

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_explorer.pages.change.sides import Sides
    from diode_trainer.report.questions import Value

SLOWER, FASTER = VERDICTS = ("slower", "faster")
WINNERS = ("vendor", "Triton", "other")
SIZES = ("under 1 GFLOP", "1 to 10 GFLOP", "10 to 100 GFLOP", "100 GFLOP to 1 TFLOP", "from 1 TFLOP")
_FLOP = (1e9, 1e10, 1e11, 1e12)
TIMES = ("under 10 us", "10 to 30 us", "30 to 100 us", "100 us to 1 ms", "from 1 ms")
_US = (10, 30, 100, 1000)
_CONFIDENCE = 1.96
"""Half-width of a 95% confidence interval, in standard errors."""


def _class_of(value: str, below: Sequence[float], names: Sequence[str]) -> str:
    """Return SQL for the name of a value's class."""
    cases_of = " ".join(f"WHEN {value} < {end:g} THEN '{name}'" for end, name in zip(below, names, strict=False))
    return f"CASE {cases_of} ELSE '{names[-1]}' END"


_SIDE = f"""\
    SELECT *, {cases.PROBLEM_TEXT} AS problem, {cases.ARITHMETIC} AS arithmetic, {cases.REGIME} AS regime_name
    FROM best_times
    {{where}}"""  # noqa: S608 - our own text; values are parameters
_PAIRS = f"""\
WITH before AS (
{{before}}),
after AS (
{{after}}),
pairs AS (
    SELECT
        b.problem_key,
        b.problem,
        b.op,
        b.arithmetic AS dtype,
        b.layout,
        b.family,
        b.regime_name AS regime,
        b.hardware AS device,
        a.hardware AS device_after,
        b.environment_key AS environment,
        a.environment_key AS environment_after,
        b.template AS template_before,
        a.template AS template_after,
        b.best_us AS before_us,
        a.best_us AS after_us,
        after_us / before_us AS ratio,
        a.vendor_us / b.vendor_us AS vendor_ratio,
        a.triton_us / b.triton_us AS triton_ratio,
        greatest(b.sigma, a.sigma) AS noise,
        (greatest(before_us, after_us) / least(before_us, after_us) - 1) / noise AS sigmas,
        CASE
            WHEN after_us > noise_limit(before_us, noise) THEN '{SLOWER}'
            WHEN before_us > noise_limit(after_us, noise) THEN '{FASTER}'
        END AS verdict,
        a.first_measured_at,
        2e0 * b.b * b.m * b.n * b.k AS flops,
        {_class_of("flops", _FLOP, SIZES)} AS size,
        {_class_of("before_us", _US, TIMES)} AS time,
        CASE
            WHEN b.template LIKE 'aten::%' THEN 'vendor' WHEN b.template LIKE 'triton::%' THEN 'Triton' ELSE 'other'
        END AS winner
    FROM before AS b
    JOIN after AS a ON {{joined}}
)
"""  # noqa: S608 - as above

SLICES = ("op", "dtype", "layout", "device", "regime", "family", "size", "time", "winner")
"""Columns of a pair that slices are made by. Each is also a parameter that narrows the comparison."""
_CONDITIONS = {name: name for name in (*SLICES, "environment")}
_ORDER = {"size": "min(flops)", "time": "min(before_us)"}
"""Slices with their own order; others begin with the slice of most problems."""


@dataclass(frozen=True)
class Pairs:
    """Problems that were timed on both sides."""

    sides: Sides
    filters: Mapping[str, Value]

    def slices(self, name: str | None) -> Question:
        """Return the question for each slice's changes; without a name, for all problems together.

        Ratios are geometric means of after / before, with 95% confidence intervals and quartiles. ``noise_pct`` is the
        change of one problem that noise alone explains.
        """
        order = f"{_ORDER.get(name or '', 'problems DESC')}, slice"
        error = f"{_CONFIDENCE} * stddev_samp(ln(ratio)) / sqrt(count(*))"
        return self._ask(f"""\
SELECT
    {name or "'all'"} AS slice,
    count(*) AS problems,
    count(*) FILTER (verdict = '{SLOWER}') AS slower,
    count(*) FILTER (verdict = '{FASTER}') AS faster,
    exp(avg(ln(ratio))) AS mean_ratio,
    exp(avg(ln(ratio)) - {error}) AS mean_from,
    exp(avg(ln(ratio)) + {error}) AS mean_to,
    quantile_cont(ratio, 0.25) AS quarter_from,
    quantile_cont(ratio, 0.75) AS quarter_to,
    exp(avg(ln(vendor_ratio))) AS vendor_ratio,
    exp(avg(ln(triton_ratio))) AS triton_ratio,
    100 * (noise_limit(1, median(noise)) - 1) AS noise_pct,
    count(DISTINCT device) AS devices
FROM pairs
{where(_CONDITIONS, self.filters)}GROUP BY slice
ORDER BY {order}""")  # noqa: S608 - our own text; values are parameters

    def problems(self, verdict: str, order: str) -> Question:
        """Return the question for the problems with a verdict, in an order."""
        return self._ask(
            f"""\
SELECT
    problem,
    device,
    regime,
    before_us,
    after_us,
    ratio,
    sigmas,
    template_before,
    template_after,
    first_measured_at,
    problem_key,
    environment,
    device_after,
    environment_after
FROM pairs
{where(_CONDITIONS, self.filters, "verdict = $verdict")}ORDER BY {order}, problem, device, regime""",  # noqa: S608 - as above
            verdict=verdict,
        )

    def _ask(self, sql: str, **more: Value) -> Question:
        pairs = _PAIRS.format(
            before=_SIDE.format(where=self.sides.condition("before")),
            after=_SIDE.format(where=self.sides.condition("after")),
            joined=" AND ".join(
                (*self.sides.joined, "a.problem_id = b.problem_id", "a.regime IS NOT DISTINCT FROM b.regime")
            ),
        )
        return Question(pairs + sql, {**self.filters, **self.sides.values, **more})
