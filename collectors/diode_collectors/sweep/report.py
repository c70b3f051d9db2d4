"""Output of a sweep: its progress, its result, and its dry run."""

from __future__ import annotations

import math
import shlex
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from diode_collectors.problems.choices import (
    CPP_CHOICES,
    CPU_SECONDS_PER_CPP_PROBLEM,
    count_choices,
    seconds_estimate,
    slowness_of,
)
from diode_store.command_line.console import print_error, print_note, print_pairs, print_rows
from diode_store.command_line.render import counted
from diode_store.devices.known import describe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.search_space import SearchSpace
    from diode_collectors.sweep.devices import SweepDevice
    from diode_collectors.sweep.plan import ProblemResult, SweepReport
    from diode_collectors.sweep.statistics import DatasetStatistics
    from diode_store.records import Environment, Hardware

_NOTE_EVERY_S = 60.0
_MINUTE_S, _HOUR_S = 60, 3600
_NOT_MEASURED = {False: "nothing was spooled", True: "nothing was written"}
"""Remarks on a failed sweep, by whether it writes to a file."""


class Estimate:
    """Number of choices of problems on given devices, the time they take, and whether they fit."""

    def __init__(
        self,
        devices: Sequence[SweepDevice],
        space: SearchSpace,
        *,
        include_tma: bool,
        cores: int,
        shares_kernels: bool = False,
    ) -> None:
        """Estimate for the first of ``devices``; those of a host are alike."""
        self.devices = tuple(device.name for device in devices)
        self.cores = cores
        self._device, self._space = devices[0], space
        self._shares_kernels = shares_kernels
        self._include_tma = include_tma and devices[0].has_tma

    def choices(self, problem: SweepProblem) -> int:
        """Return the number of a problem's choices to time."""
        if self._device.is_cpu:
            return CPP_CHOICES
        return count_choices(problem, self._space, **self._limits())

    def weight(self, problem: SweepProblem) -> float:
        """Return a problem's time relative to other problems."""
        compiles = not self._device.is_cpu and not self._space.is_vendor
        return self.choices(problem) * (slowness_of(problem.shape) if compiles else 1)

    def seconds(self, problems: Sequence[SweepProblem]) -> float:
        """Return the seconds for all problems."""
        if self._device.is_cpu:
            return len(problems) * CPU_SECONDS_PER_CPP_PROBLEM
        return seconds_estimate(
            problems,
            self._space,
            cores=self.cores,
            devices=len(self.devices),
            shares_kernels=self._shares_kernels,
            **self._limits(),
        )

    def fits(self, problem: SweepProblem) -> bool:
        """Return whether the device has enough memory for a problem, or unknown memory."""
        return self._device.fits(problem)

    @property
    def hardware(self) -> Hardware:
        """Device model of the estimate."""
        return self._device.hardware

    def _limits(self) -> dict[str, Any]:
        shared_memory_bytes = self._device.hardware.shared_memory_per_block_bytes
        return {"shared_memory_bytes": shared_memory_bytes, "include_tma": self._include_tma}


class SweepProgress:
    """Display of a sweep's progress: a bar with choices per second and the time left, or a line per minute in a log."""

    def __init__(self, problems: Sequence[SweepProblem], estimate: Estimate, time_limit_s: float | None = None) -> None:
        """Expect ``problems``, as far as there is time. Skipped ones are subtracted when their number is known.

        Args:
            problems: Problems to time.
            estimate: Estimate for the devices.
            time_limit_s: Seconds after which the sweep begins no more problems.
        """
        self._estimate = estimate
        self._time_limit_s = math.inf if time_limit_s is None else time_limit_s
        self._total = len(problems)
        self._weight = self._weight_of_all = sum(map(estimate.weight, problems))
        self._is_begun = False
        self._done = self._timings = 0
        self._done_weight = 0.0
        self._began = self._noted = time.monotonic()
        self._bar: Any = None
        self._told: set[bytes] = set()

    def __enter__(self) -> Self:
        """Show the bar, if stderr is a terminal."""
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("Timing problems", total=self._total, rate="", left="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def on_device(self, device: str, hardware: Hardware, environment: Environment) -> None:  # noqa: ARG002 - protocol
        """Print the device, once for each model."""
        if hardware.key not in self._told:
            self._told.add(hardware.key)
            print_note(f"timing on {describe([hardware])}")

    def on_begin(self, total: int, skipped: int) -> None:
        """Expect the problems that are not measured. Every model of hardware measures all of them."""
        if skipped:
            print_note(f"{counted(skipped, 'problem')} measured already, {total:,} to go")
        if not self._is_begun:
            self._began = self._noted = time.monotonic()
            self._total, self._weight, self._is_begun = 0, 0.0, True
        self._total += total
        self._weight += self._weight_of_all * total / max(total + skipped, 1)
        if self._bar is not None:
            self._bar.update(self._task, total=self._total)

    def on_result(self, result: ProblemResult) -> None:
        """Count a problem that is done."""
        self._done += 1
        self._timings += result.timings
        self._done_weight += self._estimate.weight(result.problem)
        if result.error is not None:
            print_error(f"{result.problem}: {result.error}")
        if self._bar is not None:
            self._bar.update(self._task, advance=1, rate=self._rate(), left=self._left())
        elif time.monotonic() - self._noted > _NOTE_EVERY_S:
            self._noted = time.monotonic()
            print_note(f"{self._done:,} of {counted(self._total, 'problem')}, {self._rate()}, {self._left()}")

    def on_note(self, message: str) -> None:
        """Print the note."""
        print_note(message)

    def _rate(self) -> str:
        return f"{self._timings / max(time.monotonic() - self._began, 1e-9):.1f} choices/s"

    def _left(self) -> str:
        seconds = time.monotonic() - self._began
        left = seconds * max(self._weight - self._done_weight, 0.0) / max(self._done_weight, 1e-9)
        return f"{duration(min(left, max(self._time_limit_s - seconds, 0.0)))} left"


def duration(seconds: float) -> str:
    """Return ``45 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE_S:.0f} min" if seconds < 2 * _HOUR_S else f"{seconds / _HOUR_S:.1f} h"


def print_dry_run(problems: Sequence[SweepProblem], skipped: int | None, estimate: Estimate, *, as_json: bool) -> None:
    """List the problems to time, with choices and estimated times, and the problems that do not fit the device.

    Args:
        problems: Problems to time.
        skipped: Number of measured problems; None if unknown, on a device elsewhere.
        estimate: Estimate for the device.
        as_json: Print JSON.
    """
    columns = ("op", "dtype", "layout", "b", "m", "n", "k", "choices", "from")
    fitting = [problem for problem in problems if estimate.fits(problem)]
    too_large = [str(problem) for problem in problems if not estimate.fits(problem)]
    rows = [(p.op, p.short_dtype, p.layout, p.b, p.m, p.n, p.k, estimate.choices(p), p.name) for p in fitting]
    choices, seconds = sum(row[7] for row in rows), estimate.seconds(fitting)
    name = estimate.hardware.name
    if as_json:
        listed = [dict(zip(columns, row, strict=True)) for row in rows]
        totals = {"choices": choices, "estimate_s": seconds, "skipped": skipped, "too_large": too_large}
        where = {"devices": estimate.devices, "hardware": name, "cores": estimate.cores}
        print_pairs({"problems": listed, **totals, **where}, as_json=True)
        return
    print_rows(columns, rows, title=f"{counted(len(rows), 'problem')}")
    if too_large:
        print_note(f"{counted(len(too_large), 'problem')} left out, too large for {name}: {', '.join(too_large)}")
    count = len(estimate.devices)
    print_note(
        f"{counted(len(rows), 'problem')}, about {counted(choices, 'choice')}, about {duration(seconds)} on "
        f"{f'{count} x ' if count > 1 else ''}{name} with {counted(estimate.cores, 'core')}"
        + ("" if skipped is None else f"; {counted(skipped, 'problem')} measured already")
    )


def print_report(
    report: SweepReport, statistics: DatasetStatistics, where: Path, *, is_file: bool, as_json: bool
) -> None:
    """Print the report of a sweep and the statistics of its data set."""
    gone = _ingested_already(report, statistics, is_file=is_file)
    if as_json:
        rate = {"choices_per_s": report.choices_per_s}
        place = {"output" if is_file else "spool": str(where)}
        print_pairs({**vars(report), **rate, **place, "dataset": asdict(statistics)}, as_json=True)
        if gone:
            print_note(gone)
        return
    print_note(
        f"{report.measured:,} of {counted(report.problems, 'problem')} measured, {report.timings:,} timings in "
        f"{report.seconds:.1f} s, {report.choices_per_s:.1f} choices/s ({what_went_wrong(report)}); "
        f"{_what_next(report, where, is_file=is_file)}"
    )
    if gone:
        print_note(gone)
    if statistics.problems:
        from diode_collectors.sweep.statistics import print_statistics

        print_statistics(statistics)


def _ingested_already(report: SweepReport, statistics: DatasetStatistics, *, is_file: bool) -> str | None:
    """Return a remark if ``diode-ingest`` has fetched problems that the statistics should count, else None."""
    expected = report.measured + (report.skipped if is_file else 0)  # a file also has the problems measured before
    if statistics.problems >= expected:
        return None
    counting = "the table counts the others" if statistics.problems else "none is left to count"
    return f"{expected - statistics.problems:,} of {counted(expected, 'problem')} ingested already; {counting}"


def what_went_wrong(report: SweepReport) -> str:
    """Return the number of problems that were not measured, with reasons."""
    skipped = f"{report.skipped:,} measured already, " if report.skipped else ""
    left = f", {report.not_begun:,} not begun" if report.not_begun else ""
    return f"{skipped}{report.silent:,} left nothing to time, {report.failed:,} failed{left}"


def _what_next(report: SweepReport, where: Path, *, is_file: bool) -> str:
    ended = "interrupted; run it again for the rest; " if report.interrupted else ""
    if not ended and report.ended_by:
        ended = f"ended by {report.ended_by}; run it again for the rest; "
    if not report.measured and not (is_file and where.exists()):
        return f"{ended}{_NOT_MEASURED[is_file]}"
    if is_file:
        return f"{ended}written to {where}"
    # The database is always named: the settings file, which only diode-ingest reads, may name another.
    return f"{ended}next: diode-ingest --once --spool {shlex.quote(str(where))}"


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    told = (TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[left]}"))
    return Bar(*columns, *told, console=Console(stderr=True), transient=True)
