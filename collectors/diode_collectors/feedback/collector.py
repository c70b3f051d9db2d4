"""Keeps what Inductor's autotuner measures: a listener and the thread that spools what it hears.

The compiling thread only puts the record into a bounded queue; what does not fit is dropped and counted.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from numbers import Integral
from typing import TYPE_CHECKING

from diode_collectors.feedback.listening import AutotuningListener, FeedbackStats
from diode_collectors.spool.writer import DEFAULT_SPOOL_BYTES, SpoolWriter
from diode_store.checks import shown
from diode_store.errors import SettingsError, SpoolError, SpoolFullError
from diode_store.safely import in_words

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from diode_store.records import Measurement

__all__ = ["FeedbackCollector", "FeedbackStats"]

DEFAULT_QUEUE_RECORDS = 1000
DEFAULT_SEAL_EVERY_S = 60.0
_BATCH_RECORDS = 100
_LEAST_SEAL_EVERY_S = 0.01
_MOST_SEAL_EVERY_S = 365 * 24 * 60 * 60


class FeedbackCollector(AutotuningListener):
    """Spools every matrix product that Inductor autotunes in this process, while it is started.

    Use it as a context manager, or call ``start`` and ``stop``, each once.
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
            queue_records: how many records may wait for the writer.
            max_bytes: how large the spool may grow.
            seal_every_s: after how many seconds at most records are handed over to ``diode-ingest``, which leaves
                the segment of a living process alone until then.

        Raises:
            SettingsError: one of the numbers is invalid.
            SpoolError: the folder cannot be made.
        """
        _check_count("queue_records", queue_records, DEFAULT_QUEUE_RECORDS)
        _check_count("max_bytes", max_bytes, DEFAULT_SPOOL_BYTES)
        _check_seal_every_s(seal_every_s)
        super().__init__()
        self._writer = SpoolWriter(directory, max_bytes=max_bytes)
        self._seal_every_s = seal_every_s
        self._queue: queue.Queue[Measurement | None] = queue.Queue(queue_records)
        self._thread = threading.Thread(target=self._write_all, name="diode-feedback", daemon=True)
        self._stopping = threading.Event()
        self._gate = threading.Lock()  # nothing comes into the queue once it is stopping; never held for long

    def start(self) -> None:
        """Begin to collect; harmless when it already does.

        Raises:
            SpoolError: it was stopped before, or started by the process that this one was forked from.
        """
        if self._thread.is_alive():
            return
        if self._thread.ident is not None:
            raise SpoolError(
                "this collector was stopped, or started before a fork, and cannot start again; make another with "
                "collect_to_spool"
            )
        self._thread.start()
        atexit.register(self.stop)
        super().start()

    def finish(self) -> None:
        """Put what was collected on the disk and hand it over."""
        with self._gate:
            self._stopping.set()
        with contextlib.suppress(queue.Full):  # wakes the writer
            self._queue.put_nowait(None)
        self._thread.join()
        self._drop_what_is_left()
        atexit.unregister(self.stop)

    def take(self, measurement: Measurement) -> None:
        """Queue a record for the writer."""
        reason = self._queue_or_refuse(measurement)
        if reason:
            self.drop(reason)

    def _queue_or_refuse(self, measurement: Measurement) -> str | None:
        """Queue a record, or return why it was not queued."""
        with self._gate:
            if self._stopping.is_set():  # a compile that was under way when this stopped still reports
                return "the collector was stopped"
            try:
                self._queue.put_nowait(measurement)
            except queue.Full:
                return f"more than {self._queue.maxsize} records wait to be written"
        return None

    def _drop_what_is_left(self) -> None:
        """Count what a writer that ended early left in the queue."""
        with contextlib.suppress(queue.Empty):
            while True:
                if self._queue.get_nowait() is not None:
                    self.drop("the writer ended early")

    def _write_all(self) -> None:
        """Write queued records until stopped; runs in a thread of its own."""
        sealed_at = time.monotonic()
        while not (self._stopping.is_set() and self._queue.empty()):
            for record in self._next_batch():
                self._append(record)
            if time.monotonic() - sealed_at < self._seal_every_s:
                self._survive(self._writer.sync)
            else:
                self._survive(self._writer.seal)
                sealed_at = time.monotonic()
        self._survive(self._writer.close)

    def _next_batch(self) -> list[Measurement]:
        """Wait a while for a record and return it with those that wait behind it; a None only ends the wait."""
        batch: list[Measurement | None] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self._queue.get(timeout=self._seal_every_s))
            while len(batch) < _BATCH_RECORDS:
                batch.append(self._queue.get_nowait())
        return [record for record in batch if record is not None]

    def _append(self, measurement: Measurement) -> None:
        try:
            self._writer.append(measurement)
        except SpoolFullError as error:
            self.drop(str(error))
        except Exception as error:  # noqa: BLE001 - the next record may do better
            self.drop(in_words(error))

    def _survive(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the records stay with the writer, which tries again
            self.say_once(f"could not write the spool: {in_words(error)}")


def _check_count(name: str, value: object, default: int) -> None:
    if not isinstance(value, Integral) or value < 1:
        raise SettingsError(f"{name} must be a whole number from 1, not {shown(value)}; leave it out for {default:,}")


def _check_seal_every_s(value: object) -> None:
    if not isinstance(value, int | float) or not _LEAST_SEAL_EVERY_S <= value <= _MOST_SEAL_EVERY_S:
        raise SettingsError(
            f"seal_every_s must be seconds from {_LEAST_SEAL_EVERY_S} to {_MOST_SEAL_EVERY_S:,}, not {shown(value)}; "
            f"leave it out for {DEFAULT_SEAL_EVERY_S:g}"
        )
