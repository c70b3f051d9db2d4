"""The daemon's log."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from diode_collectors.ingest.monitoring.logs import LOGGER_NAME, log
from diode_collectors.ingest.monitoring.observer import Observer
from diode_collectors.ingest.report import DOUBTS_SHOWN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_collectors.ingest.report import IngestReport
    from diode_store.errors import DiodeError

_logger = logging.getLogger(f"{LOGGER_NAME}.ingest")


class LogObserver(Observer):
    """Writes events to the log. A pass without events leaves no line."""

    def __init__(self) -> None:
        self._unreadable: dict[Path, tuple[str, ...]] = {}

    def started(self, spools: Sequence[Path]) -> None:
        """Log each spool."""
        for spool in spools:
            log(_logger, logging.INFO, "started", spool=spool, pid=os.getpid())

    def connected(self) -> None:
        """Log the connection, at the start and when the database is back."""
        log(_logger, logging.INFO, "connected")

    def passed(self, spool: Path, report: IngestReport, seconds: float) -> None:
        """Log the counts, each rejection, and any change of what cannot be read."""
        if report.segments or report.measurements or report.decisions or report.rejected:
            counts = {
                name: getattr(report, name)
                for name in ("segments", "measurements", "duplicates", "timings", "decisions", "rejected")
            }
            log(_logger, logging.INFO, "ingested", **counts, seconds=seconds, spool=spool)
        for rejection in report.rejections:
            log(_logger, logging.WARNING, "rejected", **rejection._asdict(), spool=spool)
        for doubt in report.doubts[:DOUBTS_SHOWN]:
            log(_logger, logging.WARNING, "implausible", problem=doubt, of=report.doubtful, spool=spool)
        for op, number in report.unknown_ops.items():
            log(_logger, logging.WARNING, "unknown_op", op=op, measurements=number, spool=spool)
        if report.torn_bytes:
            log(_logger, logging.INFO, "cut_torn_tail", bytes=report.torn_bytes, spool=spool)
        if report.unreadable != self._unreadable.get(spool, ()):
            for problem in report.unreadable:
                log(_logger, logging.WARNING, "unreadable", problem=problem, spool=spool)
            self._unreadable[spool] = report.unreadable

    def failed(self, spool: Path, error: DiodeError, retry_s: float) -> None:
        """Log the error."""
        log(_logger, logging.ERROR, "failed", error=error, retry_s=retry_s, spool=spool)

    def guarded(self, problems: Sequence[str], *, holds: bool) -> None:
        """Log each problem, or that none is left."""
        for problem in problems:
            log(_logger, logging.WARNING, "holding" if holds else "low_space", problem=problem)
        if not problems:
            log(_logger, logging.INFO, "resumed")

    def trimmed(self, spool: Path, files: int) -> None:
        """Log the number of removed files."""
        log(_logger, logging.WARNING, "quarantine_trimmed", files=files, spool=spool)

    def reloaded(self, changes: Sequence[str], kept: Sequence[str]) -> None:
        """Log the names of the changed settings, never their values, which may be secret."""
        log(_logger, logging.INFO, "reloaded", changed=",".join(changes))
        if kept:
            log(_logger, logging.WARNING, "needs_restart", kept=",".join(kept))

    def not_reloaded(self, error: DiodeError) -> None:
        """Log why the old settings stay."""
        log(_logger, logging.ERROR, "not_reloaded", error=error)

    def stopped(self) -> None:
        """Log the end."""
        log(_logger, logging.INFO, "stopped")
