"""Write records to a spool from a thread, for programs that must not wait for a disk.

Programs put records into a bounded queue. A record that does not fit or cannot be written is dropped and reported.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from diode_store.errors import SpoolFullError
from diode_store.values.safely import in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_collectors.spool.writer import SpoolWriter
    from diode_store.wire.codec import Record

DEFAULT_QUEUE_RECORDS = 1000
DEFAULT_SEAL_EVERY_S = 60.0
_BATCH_RECORDS = 100

_Item = TypeVar("_Item")


class Losses(Protocol):
    """Receives reports of losses and trouble. Called from any thread; must not raise."""

    def drop(self, reason: str) -> None:
        """Count a lost record."""

    def say_once(self, message: str) -> None:
        """Report trouble that has lost nothing so far."""


class BackgroundWriter(Generic[_Item]):
    """Spools the items of its queue from ``start`` to ``stop``, which are called once each.

    ``record_of`` turns an item into a record in the writer's thread.
    """

    def __init__(
        self,
        spool: SpoolWriter,
        record_of: Callable[[_Item], Record],
        losses: Losses,
        *,
        name: str,
        queue_records: int = DEFAULT_QUEUE_RECORDS,
        seal_every_s: float = DEFAULT_SEAL_EVERY_S,
    ) -> None:
        """Prepare to write.

        Args:
            spool: the writing end of a spool; closed at the end.
            record_of: makes a record; an exception loses that record.
            losses: receives reports of losses and trouble.
            name: name of the thread.
            queue_records: most items that may wait for the writer.
            seal_every_s: longest time until records are handed over to ``diode-ingest``.
        """
        self.spool = spool
        self._record_of = record_of
        self._losses = losses
        self._seal_every_s = seal_every_s
        self._queue: queue.Queue[_Item | None] = queue.Queue(queue_records)
        self.thread = threading.Thread(target=self._write_all, name=name, daemon=True)
        self._stopping = threading.Event()
        self.gate = threading.Lock()
        """Guards the queue against new items while the writer stops; never held for long."""

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Write the waiting items, hand them over and end the thread; report the rest as lost."""
        with self.gate:
            self._stopping.set()
        with contextlib.suppress(queue.Full):  # wakes the writer
            self._queue.put_nowait(None)
        self.thread.join()
        self._drop_what_is_left()

    def put(self, item: _Item) -> None:
        """Queue ``item`` for the writer, or report it as lost; never wait for long."""
        reason = self._queue_or_refuse(item)
        if reason:
            self._losses.drop(reason)

    def _queue_or_refuse(self, item: _Item) -> str | None:
        """Queue an item, or return the reason why not."""
        with self.gate:
            if self._stopping.is_set():  # a compile may still report after the stop
                return "the writer was stopped"
            try:
                self._queue.put_nowait(item)
            except queue.Full:
                return f"more than {self._queue.maxsize} records wait to be written"
        return None

    def _drop_what_is_left(self) -> None:
        """Report the items that a writer left in the queue when it ended early."""
        with contextlib.suppress(queue.Empty):
            while True:
                if self._queue.get_nowait() is not None:
                    self._losses.drop("the writer ended early")

    def _write_all(self) -> None:
        """Write queued items until stopped; runs in the writer's thread."""
        sealed_at = time.monotonic()
        while not (self._stopping.is_set() and self._queue.empty()):
            for item in self._next_batch():
                self._append(item)
            if time.monotonic() - sealed_at < self._seal_every_s:
                self._survive(self.spool.sync)
            else:
                self._survive(self.spool.seal)
                sealed_at = time.monotonic()
        self._survive(self.spool.close)
        for _ in range(self.spool.pending_records):
            self._losses.drop("the spool could not be written to the end")

    def _next_batch(self) -> list[_Item]:
        """Wait a while for an item and return it with those behind it. A None only ends the wait."""
        batch: list[_Item | None] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self._queue.get(timeout=self._seal_every_s))
            while len(batch) < _BATCH_RECORDS:
                batch.append(self._queue.get_nowait())
        return [item for item in batch if item is not None]

    def _append(self, item: _Item) -> None:
        try:
            self.spool.append(self._record_of(item))
        except SpoolFullError as error:
            self._losses.drop(str(error))
        except Exception as error:  # noqa: BLE001 - the next record may do better
            self._losses.drop(in_words(error))

    def _survive(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the records stay with the writer, which tries again
            self._losses.say_once(f"could not write the spool: {in_words(error)}")
