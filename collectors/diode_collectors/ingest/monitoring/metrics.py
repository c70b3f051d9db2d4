"""Keep the daemon's Prometheus metrics in one registry, filled by an observer."""

from __future__ import annotations

import time
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from diode_collectors.ingest.guard import free_bytes
from diode_collectors.ingest.monitoring.observer import Observer
from diode_collectors.spool.backlog import Backlog, Waiting
from diode_store.errors import DatabaseError
from diode_store.wire.segments import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from diode_collectors.ingest.monitoring.health import Health
    from diode_collectors.ingest.report import IngestProgress, IngestReport
    from diode_store.errors import DiodeError

PREFIX = "diode_ingest_"
_BATCH_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TABLES = ("measurements", "timings", "decisions")
"""Tables whose new rows are counted, under the names of the report's fields."""
_WAITING = {
    "spool_bytes": ("Bytes of the segments in the spool, those being written included.", "bytes"),
    "segments_waiting": ("Sealed segments waiting to be ingested, and strange files with such a name.", "segments"),
    "segments_open": ("Unsealed segments, of running or dead writers.", "open_segments"),
    "oldest_unacked_seconds": ("Age of the oldest waiting segment; 0 when none waits.", "oldest_s"),
    "quarantine_files": ("Files in quarantine, without their reasons.", "quarantine_files"),
    "quarantine_bytes": ("Bytes of the quarantine.", "quarantine_bytes"),
}


class _Reached(NamedTuple):
    """Progress of a pass at its last report."""

    report: IngestReport
    at_s: float


class Metrics(Observer):
    """Counts events. ``registry`` also holds the metrics that are looked up at each scrape."""

    def __init__(self, health: Health, clock: Callable[[], float] = time.monotonic) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # the counters need no times of creation
        self.registry = CollectorRegistry()
        self._clock = clock
        self._reached: dict[Path, _Reached] = {}
        self._health = health
        self._make_counters()
        self._make_gauges(health)
        ProcessCollector(registry=self.registry)

    def _make_counters(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, ("spool", *labels), registry=self.registry)

        self._rows = counter("rows_ingested", "New rows committed to the warehouse.", "table")
        self._duplicates = counter("duplicates", "Records that were already in the warehouse.")
        self._rejected = counter("rejected", "Frames and damaged stretches put into quarantine.", "reason")
        self._segments = counter("segments_ingested", "Segments read to their end and removed.")
        self._torn = counter("torn_bytes", "Bytes of unfinished writes cut off segments whose writer died.")
        self._failures = counter("failures", "Passes and probes that failed and are retried.", "part")
        self._trimmed = counter("quarantine_trimmed", "Damaged files removed from a quarantine above its limit.")

    def _make_gauges(self, health: Health) -> None:
        def gauge(name: str, text: str, ask: Callable[[], float] | None = None) -> Gauge:
            made = Gauge(PREFIX + name, text, registry=self.registry)
            if ask:
                made.set_function(ask)
            return made

        self._batch = Histogram(
            f"{PREFIX}batch_seconds",
            "Seconds from one commit of a pass to the next: reading, decoding and committing a batch.",
            ("spool",),
            buckets=_BATCH_BUCKETS_S,
            registry=self.registry,
        )
        self._last_success = Gauge(
            f"{PREFIX}last_success_timestamp_seconds",
            "When a pass last succeeded, in seconds since 1970.",
            ("spool",),
            registry=self.registry,
        )
        self._unreadable = Gauge(
            f"{PREFIX}unreadable_segments",
            "Segments that cannot be read (permissions?) and need an operator.",
            ("spool",),
            registry=self.registry,
        )
        gauge(
            "database_up",
            "1 while the warehouse answers, else 0.",
            lambda: float(health.database_is_up()),
        )
        gauge("ready", "1 while /readyz answers 200, else 0.", lambda: float(not health.problems()))
        gauge("heartbeat_age_seconds", "Seconds since the loop last showed a sign of life.", health.seconds_since_beat)
        self._holding = gauge("holding", "1 while ingesting is paused because a disk or a quarantine is full, else 0.")
        Info(PREFIX + "build", "The version of torch-diode.", registry=self.registry).info(
            {"version": version("torch-diode")}
        )

    def watch(self, spools: Sequence[Path], database_file: Path | None) -> None:
        """Start to report the contents of ``spools`` and the free space of the disks."""
        self.registry.register(_Disks(spools, database_file))

    def started(self, spools: Sequence[Path]) -> None:
        """Start every count at 0, so that its rate is right from the first event."""
        for path in spools:
            spool = str(path)
            self._unreadable.labels(spool).set_function(partial(self._health.unreadable, path))
            for table in _TABLES:
                self._rows.labels(spool, table)
            for counted in (self._duplicates, self._segments, self._torn, self._trimmed, self._batch):
                counted.labels(spool)
            for reason in Reason:  # else an alert on an increase would miss the first rejection for a reason
                self._rejected.labels(spool, reason.value)
            for part in ("database", "spool"):
                self._failures.labels(spool, part)

    def progressed(self, spool: Path, progress: IngestProgress) -> None:
        """Count everything since the pass's last report."""
        self._count(spool, progress.report)

    def passed(self, spool: Path, report: IngestReport, seconds: float) -> None:
        """Count the rest of the pass."""
        del seconds
        self._count(spool, report)
        self._reached.pop(spool, None)
        self._torn.labels(str(spool)).inc(report.torn_bytes)
        self._last_success.labels(str(spool)).set_to_current_time()

    def failed(self, spool: Path, error: DiodeError, retry_s: float) -> None:
        """Count the failure; the next pass starts from zero."""
        del retry_s
        self._reached.pop(spool, None)
        part = "database" if isinstance(error, DatabaseError) else "spool"
        self._failures.labels(str(spool), part).inc()

    def guarded(self, problems: Sequence[str], *, holds: bool) -> None:
        """Show whether ingesting is paused."""
        del problems
        self._holding.set(holds)

    def trimmed(self, spool: Path, files: int) -> None:
        """Count the removed files."""
        self._trimmed.labels(str(spool)).inc(files)

    def _count(self, spool: Path, report: IngestReport) -> None:
        """Add the difference between ``report`` and the last report of the same pass."""
        now = self._clock()
        if spool not in self._reached:
            self._reached[spool] = _Reached(type(report)(), now)
        last, since_s = self._reached[spool]
        label = str(spool)
        for table in _TABLES:
            self._rows.labels(label, table).inc(getattr(report, table) - getattr(last, table))
        self._duplicates.labels(label).inc(report.duplicates - last.duplicates)
        self._segments.labels(label).inc(report.segments - last.segments)
        for reason, number in report.rejected_by_reason.items():
            self._rejected.labels(label, reason).inc(number - last.rejected_by_reason.get(reason, 0))
        committed = (report.measurements, report.decisions) != (last.measurements, last.decisions)
        if committed:
            self._batch.labels(label).observe(now - since_s)
        self._reached[spool] = _Reached(report, now if committed else since_s)


class _Disks(Collector):
    """Looks up the contents of the spools and the free space of the disks at each scrape."""

    def __init__(self, spools: Sequence[Path], database_file: Path | None) -> None:
        self._backlogs = {spool: Backlog(spool) for spool in spools}
        self._places = [*spools, *([database_file] if database_file else [])]

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name the metrics without looking."""
        return self._families({})

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Look, and return the metrics."""
        families = self._families({str(spool): backlog.look() for spool, backlog in self._backlogs.items()})
        free = GaugeMetricFamily(f"{PREFIX}free_bytes", "Free on the file system of a spool or file.", labels=["path"])
        for place in self._places:
            if (found := free_bytes(place)) is not None:
                free.add_metric([str(place)], found)
        return [*families, free]

    @staticmethod
    def _families(found: dict[str, Waiting]) -> list[GaugeMetricFamily]:
        families = []
        for name, (text, field) in _WAITING.items():
            family = GaugeMetricFamily(PREFIX + name, text, labels=["spool"])
            for spool, waiting in found.items():
                family.add_metric([spool], getattr(waiting, field))
            families.append(family)
        return families
