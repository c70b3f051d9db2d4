"""Statistics of a data set: by hardware and op, how many problems and timings, what failed, which templates win.

Measurements are read one by one and dropped; what is kept grows with the problems and the distinct configs, not
with the timings.
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
    """What was measured of one op on one device model."""

    hardware: str
    arch: str
    op: str
    problems: int
    measurements: int
    """Autotuning events; more than problems where some were measured again."""
    configs: int
    """Distinct ones."""
    timings: int
    """Everything that was tried, failures and estimates included."""
    failures: Mapping[str, int]
    """Outcome other than ok → how many timings."""
    estimates: int
    flagged: Mapping[str, int]
    """Flag → how many measurements carry it."""
    flagged_measurements: int
    replays: int
    """Measurements whose timings came back from a cache."""
    fastest_templates: Mapping[str, int]
    """Template → of how many problems it is the fastest, most frequent first; only what can be trusted counts."""

    @property
    def failed(self) -> int:
        """How many timings failed."""
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
        """Return a row an op for a table with ``COLUMNS``."""
        return [
            (
                *(op.hardware, op.op, op.problems, op.measurements, op.configs, op.timings),
                *(op.failed, op.estimates, op.flagged_measurements),
            )
            for op in self.ops
        ]

    def lines(self) -> Iterator[str]:
        """Yield what a table has no room for, a line each: failures, flags, and which templates win."""
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
    """Problem → its best trusted time so far and the template that took it."""
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
    """Count what ``measurements`` hold; one that occurs twice counts once."""
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
    """Print statistics on stdout: as JSON, or as a table and a line for what it has no room for."""
    import typer

    from diode_store.console import print_json, print_rows

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
