"""Whoever wants to know what the daemon does: its log, its health, its metrics, systemd."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_collectors.ingest.ingest import IngestProgress, IngestReport
    from diode_store.errors import DiodeError


class Observer:
    """Is told what the daemon does, in the daemon's thread; each method here does nothing."""

    def started(self, spools: Sequence[Path]) -> None:
        """Hear that it holds the spools and begins."""

    def beat(self) -> None:
        """Hear that it is alive; several times a second, unless it waits for the database or the disk."""

    def connected(self) -> None:
        """Hear that the warehouse was opened."""

    def progressed(self, spool: Path, progress: IngestProgress) -> None:
        """Hear how far a pass has come."""

    def passed(self, spool: Path, report: IngestReport, seconds: float) -> None:
        """Hear what a whole pass did, and how long it took."""

    def failed(self, spool: Path, error: DiodeError, retry_s: float) -> None:
        """Hear that a pass failed, and when it will be tried again."""

    def guarded(self, problems: Sequence[str], *, holds: bool) -> None:
        """Hear that what the guard complains of has changed, and whether ingesting is held because of it."""

    def trimmed(self, spool: Path, files: int) -> None:
        """Hear that so many damaged files left a quarantine that had grown too large."""

    def reloading(self) -> None:
        """Hear that the settings are read again."""

    def reloaded(self, changes: Sequence[str], kept: Sequence[str]) -> None:
        """Hear which settings have changed, and which would but need a restart."""

    def not_reloaded(self, error: DiodeError) -> None:
        """Hear that the new settings are no good; the old ones stay."""

    def stopped(self) -> None:
        """Hear that it ends as it was asked to."""
