"""Statistics of a data set by hardware and op: numbers of problems and timings, failures, and winning templates.

Measurements are read one by one and dropped. Memory grows with the problems and the distinct configs, not with the
timings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diode_store.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from diode_store.records import Hardware, KernelConfig, Measurement

COLUMNS = ("hardware", "op", "problems", "measurements", "configs", "timings", "failures", "estimates", "flagged")
"""Columns of ``DatasetStatistics.rows``."""


@dataclass(frozen=True)
class OpStatistics:
    """Counts for one op on one device model."""

    hardware: str
    arch: str
    op: str
    problems: int
    measurements: int
    """Autotuning events; more than problems if some were measured again."""
    configs: int
    """Distinct configs."""
    timings: int
    """Choices that were tried, including failures and estimates."""
    failures: Mapping[str, int]
    """Number of timings by outcome other than ok."""
    estimates: int
    flagged: Mapping[str, int]
    """Number of measurements by flag."""
    flagged_measurements: int
    replays: int
    """Measurements with timings from a cache."""
    fastest_templates: Mapping[str, int]
    """Number of problems by fastest template, most frequent first; only trusted measurements count."""

    @property
    def failed(self) -> int:
        """Number of timings that failed."""
        return sum(self.failures.values())


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of a data set; ``ops`` is sorted by hardware and op."""

    ops: tuple[OpStatistics, ...]
    problems: int
    """Distinct (hardware, problem)."""
    measurements: int
    timings: int
    failures: int
    estimates: int
    flagged_measurements: int
    duplicates: int
    """Measurements that came twice and were counted once."""

    def rows(self) -> list[tuple[object, ...]]:
        """Return one row for each op, for a table with ``COLUMNS``."""
        return [
            (
                *(op.hardware, op.op, op.problems, op.measurements, op.configs, op.timings),
                *(op.failed, op.estimates, op.flagged_measurements),
            )
            for op in self.ops
        ]

    def lines(self) -> Iterator[str]:
        """Yield lines for what a table has no room for: failures, flags, and winning templates."""
        for op in self.ops:
            what = f"{op.hardware} {op.op}"
            if op.failures:
                yield f"{what} failures: {_counts(op.failures)}"
            if op.flagged:
                yield f"{what} flags: {_counts(op.flagged)}"
            if op.fastest_templates:
                total = sum(op.fastest_templates.values())
                shares = (f"{name} {count / total:.0%} ({count:,})" for name, count in op.fastest_templates.items())
                yield f"{what} fastest: {', '.join(shares)}"


@dataclass
class _Op:
    """Counts of one op on one device model while they grow."""

    problems: dict[bytes, tuple[float, str] | None] = field(default_factory=dict)
    """Best trusted time of each problem so far, and its template."""
    configs: set[KernelConfig] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)

    def add(self, measurement: Measurement) -> None:
        """Count one measurement."""
        counts = self.counts
        counts["measurements"] += 1
        counts["timings"] += len(measurement.timings)
        counts["flagged"] += bool(measurement.flags)
        counts["replays"] += measurement.is_replay
        self.flags.update(measurement.flags)
        is_trusted = not (measurement.flags or measurement.is_replay or measurement.superseded_by)
        key = measurement.problem.key
        best = self.problems.get(key)
        for config, runtime_us, outcome, is_estimate, *_ in measurement.timings:
            self.configs.add(config)
            if outcome is not Outcome.OK or runtime_us is None:
                self.failures[outcome.value] += 1
            elif is_estimate:
                counts["estimates"] += 1
            elif is_trusted and (best is None or (runtime_us, config.template) < best):
                best = (runtime_us, config.template)
        self.problems[key] = best

    def done(self, hardware: Hardware, op: str) -> OpStatistics:
        """Return the counts."""
        winners = Counter(best[1] for best in self.problems.values() if best is not None)
        return OpStatistics(
            hardware=hardware.name,
            arch=hardware.arch,
            op=op,
            problems=len(self.problems),
            measurements=self.counts["measurements"],
            configs=len({config.key for config in self.configs}),
            timings=self.counts["timings"],
            failures=_most_first(self.failures),
            estimates=self.counts["estimates"],
            flagged=_most_first(self.flags),
            flagged_measurements=self.counts["flagged"],
            replays=self.counts["replays"],
            fastest_templates=_most_first(winners),
        )


def statistics_of(measurements: Iterable[Measurement]) -> DatasetStatistics:
    """Count ``measurements``; one that occurs twice counts once."""
    ops: dict[tuple[bytes, str], _Op] = {}
    devices: dict[bytes, Hardware] = {}
    seen: set[bytes] = set()
    duplicates = 0
    for measurement in measurements:
        if measurement.uid in seen:
            duplicates += 1
            continue
        seen.add(measurement.uid)
        device = measurement.hardware.key
        devices.setdefault(device, measurement.hardware)
        ops.setdefault((device, measurement.problem.op), _Op()).add(measurement)
    found = [counts.done(devices[device], op) for (device, op), counts in ops.items()]
    found.sort(key=lambda op: (op.hardware, op.arch, op.op))
    return DatasetStatistics(
        ops=tuple(found),
        problems=sum(op.problems for op in found),
        measurements=sum(op.measurements for op in found),
        timings=sum(op.timings for op in found),
        failures=sum(op.failed for op in found),
        estimates=sum(op.estimates for op in found),
        flagged_measurements=sum(op.flagged_measurements for op in found),
        duplicates=duplicates,
    )


def print_statistics(statistics: DatasetStatistics, *, as_json: bool = False) -> None:
    """Print statistics on stdout: as JSON, or as a table with a line for the rest."""
    import typer

    from diode_store.command_line.console import print_json, print_rows

    if as_json:
        print_json(statistics)
        return
    print_rows(COLUMNS, statistics.rows())
    for line in statistics.lines():
        typer.echo(line)


def _most_first(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
