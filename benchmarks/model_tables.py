"""Print the results of ``bench_models_gpu.py`` as Markdown tables. Needs Python alone."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from model_cases import CASES, PLAIN, STOCK, WAYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18)
"""Student's t at 97.5% for 1, 2, ... degrees of freedom."""
_BOUND = 1.005
"""Ratios to plain's call above this count as slower."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of call times with its 95% interval, for normally distributed logarithms of paired rounds."""

    log: float
    error: float
    """Standard error of ``log``."""
    t: float
    """Student's t for the interval."""

    @classmethod
    def of_rounds(cls, mine_ms: Sequence[float], base_ms: Sequence[float]) -> Ratio:
        """Return the geometric mean of the rounds' ratios."""
        logs = [math.log(mine / base) for mine, base in zip(mine_ms, base_ms, strict=True)]
        degrees = len(logs) - 1
        if degrees < 1:
            return cls(logs[0], math.inf, 1.0)
        t = _T_95[degrees - 1] if degrees <= len(_T_95) else 1.96 + 2.4 / degrees
        return cls(statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs)), t)

    @classmethod
    def mean_of(cls, ratios: Sequence[Ratio]) -> Ratio:
        """Return the geometric mean over models; its interval covers the rounds, not the choice of models."""
        error = math.sqrt(sum(ratio.error**2 for ratio in ratios)) / len(ratios)
        return cls(statistics.fmean(ratio.log for ratio in ratios), error, 1.96)

    @property
    def value(self) -> float:
        """The ratio."""
        return math.exp(self.log)

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound."""
        return math.exp(self.log - self.t * self.error), math.exp(self.log + self.t * self.error)

    def __str__(self) -> str:
        """Return the ratio and its interval."""
        low, high = self.interval
        return f"{self.value:.3f} ({low:.3f} to {high:.3f})" if math.isfinite(self.error) else f"{self.value:.3f}"


def report(results: Iterable[dict[str, Any]]) -> str:
    """Return the tables of each device; totals use the first result of each model."""
    devices: dict[tuple[str, str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        devices[result["device"], result["torch"], result["triton"], result["driver"]].append(result)
    return "\n\n".join(_of_device(where, found) for where, found in devices.items()) or "no results"


def _of_device(where: tuple[str, str, str, str], results: list[dict[str, Any]]) -> str:
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in sorted(results, key=lambda result: (result["repeat"], result["date"])):
        runs[result["model"]].append(result)
    models = sorted(runs, key=list(CASES).index)
    first = {model: runs[model][0]["ways"] for model in models}
    ways = [way for way in WAYS if way != PLAIN and any(way in found for found in first.values())]
    dates = sorted({result["date"] for result in results})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    device, torch, triton, driver = where
    parts = [f"{device}, torch {torch}, triton {triton}, driver {driver}, {days}; models: {len(models)}"]
    parts += [_totals(first, ways), _models(first, ways), *_slower(first, ways), *_notes(first)]
    again = [model for model in models if len(runs[model]) > 1]
    if again:
        parts += [f"Measured again: {', '.join(again)}", _repeats({model: runs[model] for model in again}, ways)]
    return "\n\n".join(parts)


def _totals(first: dict[str, dict[str, Any]], ways: list[str]) -> str:
    """Return the sums and geometric means of each way over the models that it ran."""
    rows = [
        (
            "",
            "seconds beyond plain's first calls (below zero counts as zero)",
            "of stock's",
            "first calls, s",
            "a call, of plain's, geometric mean",
            "largest",
            "kernels benchmarked",
        )
    ]
    for way in [PLAIN, *ways]:
        ran = {model: found for model, found in first.items() if _ran(found, way)}
        kernels = str(sum(found[way]["kernels_benchmarked"] for found in ran.values()))
        ratios = {model: _ratio(found, way) for model, found in ran.items()}
        mean, largest = "1", ""
        if way != PLAIN and ratios:
            mean, model = str(Ratio.mean_of(list(ratios.values()))), max(ratios, key=lambda name: ratios[name].log)
            largest = f"{ratios[model]}: {model}"
        title = WAYS[way] + (f" ({len(ran)} models)" if len(ran) < len(first) else "")
        rows.append((title, *_seconds(ran, way), mean, largest, kernels))
    return _table(rows)


def _seconds(ran: dict[str, dict[str, Any]], way: str) -> tuple[str, str, str]:
    """Return the seconds beyond plain's, their share of stock's for the same models, and the total seconds."""
    if way == "eager":
        return "", "", ""
    total = f"{sum(found[way]['first_call_s'] for found in ran.values()):.0f}"
    if way == PLAIN:
        return "", "", total
    beyond = sum(_beyond_s(found, way) for found in ran.values())
    both = [found for found in ran.values() if _ran(found, STOCK)]
    of_stock = sum(_beyond_s(found, STOCK) for found in both)
    share = f"{sum(_beyond_s(found, way) for found in both) / of_stock:.3f}" if of_stock and way != STOCK else ""
    return f"{beyond:.1f}", share, total


def _models(first: dict[str, dict[str, Any]], ways: list[str]) -> str:
    rows = [("", "plain: s; ms", *(f"{WAYS[way]}: s beyond; call of plain's; benchmarked" for way in ways))]
    for model, found in first.items():
        plain = f"{found[PLAIN]['first_call_s']:.1f}; {found[PLAIN]['call_ms']:.3f}"
        rows.append((CASES[model].title, plain, *(_cell(found, way) for way in ways)))
    return _table(rows)


def _cell(found: dict[str, Any], way: str) -> str:
    """Return seconds beyond plain's, the ratio to plain's call, and the number of kernels benchmarked."""
    if not _ran(found, way):
        return "failed" if way in found else ""
    if way == "eager":
        return str(_ratio(found, way))
    seconds = found[way]["first_call_s"] - found[PLAIN]["first_call_s"]
    return f"{seconds:+.1f}; {_ratio(found, way)}; {found[way]['kernels_benchmarked']}"


def _slower(first: dict[str, dict[str, Any]], ways: list[str]) -> list[str]:
    """Return a list of the ways that are slower than plain by more than the bound."""
    lines = []
    for way in (way for way in ways if way not in {STOCK, "eager"}):
        ratios = {model: _ratio(found, way) for model, found in first.items() if _ran(found, way)}
        over = [f"{model} {ratio}" for model, ratio in ratios.items() if ratio.value > _BOUND]
        lines.append(f"- {WAYS[way]}, calls above {_BOUND} of plain's: {', '.join(over) or 'none'}")
    return ["\n".join(lines)] if lines else []


def _notes(first: dict[str, dict[str, Any]]) -> list[str]:
    """Return notes on single runs: failures, benchmarks in zero mode, and graphs that were not captured."""
    lines = []
    for model, found in first.items():
        for way, seen in found.items():
            if "failed" in seen:
                lines.append(f"- {model}, {way}, failed: {seen['failed']}")
            elif seen.get("cudagraph_skips"):
                lines.append(f"- {model}, {way}: not all of the model ran as CUDA graphs")
            if way.endswith("zero") and seen.get("kernels_benchmarked"):
                lines.append(f"- {model}, {way}, benchmarked: {seen['benchmarked']}")
    ran = [
        (seen["max_relative_error"], model, way)
        for model in first
        for way, seen in first[model].items()
        if "failed" not in seen
    ]
    error, model, way = max(ran)
    lines.append(f"- largest difference from eager, of the largest value: {error:.0e} ({model}, {way})")
    return ["\n".join(lines)]


def _repeats(runs: dict[str, list[dict[str, Any]]], ways: list[str]) -> str:
    rows = [("", "run", "plain: s; ms", *(f"{WAYS[way]}: s beyond; call of plain's; benchmarked" for way in ways))]
    for model, results in runs.items():
        for number, result in enumerate(results, 1):
            found = result["ways"]
            plain = f"{found[PLAIN]['first_call_s']:.1f}; {found[PLAIN]['call_ms']:.3f}"
            rows.append((CASES[model].title, str(number), plain, *(_cell(found, way) for way in ways)))
    return _table(rows)


def _ran(found: dict[str, Any], way: str) -> bool:
    return "call_ms" in found.get(way, {})


def _ratio(found: dict[str, Any], way: str) -> Ratio:
    return Ratio.of_rounds(found[way]["rounds_ms"], found[PLAIN]["rounds_ms"])


def _beyond_s(found: dict[str, Any], way: str) -> float:
    """Return the seconds of a first call beyond plain's, at least zero."""
    return max(float(found[way]["first_call_s"] - found[PLAIN]["first_call_s"]), 0.0)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; the first row is the head."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
