"""Define the interface through which logs, health, metrics and systemd follow the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_collectors.ingest.report import IngestProgress, IngestReport
    from diode_store.errors import DiodeError


class Observer:
    """A listener to the daemon's events, called in the daemon's thread. Each method here does nothing."""

    def started(self, spools: Sequence[Path]) -> None:
        """The daemon has locked the spools and starts."""

    def beat(self) -> None:
        """The loop is alive. Called several times a second, unless the loop waits for the database or the disk."""

    def connected(self) -> None:
        """The warehouse was opened."""

    def progressed(self, spool: Path, progress: IngestProgress) -> None:
        """A pass has made progress."""

    def passed(self, spool: Path, report: IngestReport, seconds: float) -> None:
        """A pass ended after ``seconds``."""

    def failed(self, spool: Path, error: DiodeError, retry_s: float) -> None:
        """A pass or a probe of the database failed, and will be retried."""

    def guarded(self, problems: Sequence[str], *, holds: bool) -> None:
        """The guard's problems have changed; ``holds`` is True if they pause ingesting."""

    def trimmed(self, spool: Path, files: int) -> None:
        """The guard removed damaged files from a quarantine above its limit."""

    def reloading(self) -> None:
        """The settings are about to be read again."""

    def reloaded(self, changes: Sequence[str], kept: Sequence[str]) -> None:
        """The settings ``changes`` have changed; the settings ``kept`` need a restart to change."""

    def not_reloaded(self, error: DiodeError) -> None:
        """The new settings cannot be used; the old ones stay."""

    def stopped(self) -> None:
        """The daemon was stopped and ends."""
