"""Keeps what Inductor's autotuner measures: a listener and the thread that spools what it hears.

The compiling thread only puts the record into a bounded queue; what does not fit is dropped and counted.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING

from diode_collectors.listening import AutotuningListener, FeedbackStats
from diode_collectors.writer import DEFAULT_SPOOL_BYTES, SpoolWriter
from diode_store.errors import SpoolFullError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from diode_store.records import Measurement

__all__ = ["FeedbackCollector", "FeedbackStats"]

DEFAULT_QUEUE_RECORDS = 1000
DEFAULT_SEAL_EVERY_S = 60.0
_BATCH_RECORDS = 100


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
        """
        super().__init__()
        self._writer = SpoolWriter(directory, max_bytes=max_bytes)
        self._seal_every_s = seal_every_s
        self._queue: queue.Queue[Measurement | None] = queue.Queue(queue_records)
        self._thread = threading.Thread(target=self._write_all, name="diode-feedback", daemon=True)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to collect. A collector is started once."""
        self._thread.start()
        atexit.register(self.stop)
        super().start()

    def finish(self) -> None:
        """Put what was collected on the disk and hand it over."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join()
        atexit.unregister(self.stop)

    def take(self, measurement: Measurement) -> None:
        """Queue a record for the writer."""
        try:
            self._queue.put_nowait(measurement)
        except queue.Full:
            self.drop(f"more than {self._queue.maxsize} records wait to be written")

    def _write_all(self) -> None:
        """Write what comes until told to stop; runs in a thread of its own."""
        sealed_at = time.monotonic()
        stopped = False
        while not stopped:
            batch = self._next_batch()
            stopped = None in batch
            for record in batch:
                if record is not None:
                    self._append(record)
            if time.monotonic() - sealed_at < self._seal_every_s:
                self._survive(self._writer.sync)
            else:
                self._survive(self._writer.seal)
                sealed_at = time.monotonic()
        self._survive(self._writer.close)

    def _next_batch(self) -> list[Measurement | None]:
        """Wait a while for a record and return it with those that wait behind it; None at the end means stop."""
        batch: list[Measurement | None] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self._queue.get(timeout=self._seal_every_s))
            while batch[-1] is not None and len(batch) < _BATCH_RECORDS:
                batch.append(self._queue.get_nowait())
        return batch

    def _append(self, measurement: Measurement) -> None:
        try:
            self._writer.append(measurement)
        except SpoolFullError as error:
            self.drop(str(error))
        except Exception as error:  # noqa: BLE001 - the next record may do better
            self.drop(f"{type(error).__name__}: {error}")

    def _survive(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the records stay with the writer, which tries again
            self.say_once(f"could not write the spool: {error}")
