"""Listen to Inductor's autotuner and spool its measurements in the background."""

from __future__ import annotations

import atexit
from numbers import Integral
from typing import TYPE_CHECKING

from diode_collectors.feedback.listening import AutotuningListener, FeedbackStats
from diode_collectors.spool.background import DEFAULT_QUEUE_RECORDS, DEFAULT_SEAL_EVERY_S, BackgroundWriter
from diode_collectors.spool.writer import DEFAULT_SPOOL_BYTES, SpoolWriter
from diode_store.errors import SettingsError, SpoolError
from diode_store.values.checks import shown

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import Measurement

__all__ = ["FeedbackCollector", "FeedbackStats"]

_LEAST_SEAL_EVERY_S = 0.01
_MOST_SEAL_EVERY_S = 365 * 24 * 60 * 60


class FeedbackCollector(AutotuningListener):
    """Spools every matrix product that Inductor autotunes in this process while the collector runs.

    Use it as a context manager, or call ``start`` and ``stop`` once each.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        queue_records: int = DEFAULT_QUEUE_RECORDS,
        max_bytes: int = DEFAULT_SPOOL_BYTES,
        seal_every_s: float = DEFAULT_SEAL_EVERY_S,
    ) -> None:
        """Prepare to collect.

        Args:
            directory: the spool.
            queue_records: most records that may wait for the writer.
            max_bytes: size limit of the spool.
            seal_every_s: longest time until records are handed over. ``diode-ingest`` does not touch the open segment
                of a living process.

        Raises:
            SettingsError: one of the numbers is invalid.
            SpoolError: the folder cannot be made.
        """
        _check_count("queue_records", queue_records, DEFAULT_QUEUE_RECORDS)
        _check_count("max_bytes", max_bytes, DEFAULT_SPOOL_BYTES)
        _check_seal_every_s(seal_every_s)
        super().__init__()
        self._background: BackgroundWriter[Measurement] = BackgroundWriter(
            SpoolWriter(directory, max_bytes=max_bytes),
            lambda measurement: measurement,
            self,
            name="diode-feedback",
            queue_records=queue_records,
            seal_every_s=seal_every_s,
        )

    def start(self) -> None:
        """Start to collect; do nothing if the collector runs already.

        Raises:
            SpoolError: the collector was stopped before, or started before this process was forked.
        """
        if self._background.thread.is_alive():
            return
        if self._background.thread.ident is not None:
            raise SpoolError(
                "this collector was stopped, or started before a fork, and cannot start again; make another with "
                "collect_to_spool"
            )
        self._background.start()
        atexit.register(self.stop)
        super().start()

    def finish(self) -> None:
        """Write what was collected to the disk and hand it over."""
        self._background.stop()
        atexit.unregister(self.stop)

    def take(self, measurement: Measurement) -> None:
        """Queue a record for the writer."""
        self._background.put(measurement)


def _check_count(name: str, value: object, default: int) -> None:
    if not isinstance(value, Integral) or value < 1:
        raise SettingsError(f"{name} must be a whole number from 1, not {shown(value)}; leave it out for {default:,}")


def _check_seal_every_s(value: object) -> None:
    if not isinstance(value, int | float) or not _LEAST_SEAL_EVERY_S <= value <= _MOST_SEAL_EVERY_S:
        raise SettingsError(
            f"seal_every_s must be seconds from {_LEAST_SEAL_EVERY_S} to {_MOST_SEAL_EVERY_S:,}, not {shown(value)}; "
            f"leave it out for {DEFAULT_SEAL_EVERY_S:g}"
        )
