"""Batches of records on their way from a spool into the warehouse.

On a database server one batch is committed while the next is read.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from diode_store.errors import RecordError
from diode_store.records import Measurement

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from diode_store.warehouse.store import Store
    from diode_store.wire.codec import Record
    from diode_store.wire.segments import Frame

BATCH_TIMINGS = 50_000
"""A batch is committed when it has so many: each commit waits for the disk, 4 to 100 ms."""
BATCH_S = 1.0
"""Or when its first record has waited so long."""


def rows_of(record: Record) -> int:
    """Return what a record weighs in its batch: the rows of its timings, or the one of a decision."""
    return len(record.timings) if isinstance(record, Measurement) else 1


class Pending(NamedTuple):
    """A decoded record that waits for its batch, and where it came from."""

    record: Record
    segment: Path
    frame: Frame


class Batch:
    """Records that will be committed together, and the segments that are finished by it."""

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        self.completes: list[Path] = []
        self._timings = 0
        self._since = 0.0

    def add(self, pending: Pending) -> None:
        """Take one more."""
        if not self.pending:
            self._since = time.monotonic()
        self.pending.append(pending)
        self._timings += rows_of(pending.record)

    def is_full(self) -> bool:
        """Whether it is time to commit."""
        old = bool(self.pending) and time.monotonic() - self._since >= BATCH_S
        return old or self._timings >= BATCH_TIMINGS

    def uids(self) -> set[bytes]:
        """Return the uids of its records."""
        return {pending.record.uid for pending in self.pending}

    def write(self, store: Store) -> tuple[Counter[str], list[tuple[Pending, str]]]:
        """Commit the batch; if the database refuses a value, find its record and commit the others.

        Returns:
            The counts of what was written, and what was refused, with the reasons.
        """
        if not self.pending:
            return Counter(), []
        try:
            return Counter(asdict(store.write(pending.record for pending in self.pending))), []
        except RecordError:
            return self._write_one_by_one(store)

    def _write_one_by_one(self, store: Store) -> tuple[Counter[str], list[tuple[Pending, str]]]:
        written: Counter[str] = Counter()
        refused = []
        for pending in self.pending:
            try:
                written.update(asdict(store.write([pending.record])))
            except RecordError as error:
                refused.append((pending, str(error)))
        return written, refused


class WrittenBatch(NamedTuple):
    """A batch after it was written, and what was refused."""

    batch: Batch
    counts: Counter[str]
    refused: list[tuple[Pending, str]]
    """What the database refused, with the reasons."""


class Committing:
    """Writes one batch after the other; with a database server in a thread of its own, so that the next is read.

    That thread mostly waits for the server: a third more timings a second on two cores. With SQLite, which works in
    the thread that asks, the two would compete for the GIL; together they were slower than one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._executor: ThreadPoolExecutor | None = None
        self._batch: Batch | None = None
        self._future: Future[tuple[Counter[str], list[tuple[Pending, str]]]] | None = None

    @property
    def overlaps(self) -> bool:
        """Whether reading on before ``finish`` saves time."""
        return self._future is not None

    def start(self, batch: Batch) -> None:
        """Begin to write a batch, or leave that to ``finish``; the one before must be finished."""
        self._batch = batch
        if self._store.has_server and batch.pending:
            self._executor = self._executor or ThreadPoolExecutor(1, thread_name_prefix="diode-commit")
            self._future = self._executor.submit(batch.write, self._store)

    def finish(self) -> WrittenBatch | None:
        """Wait for the batch that was started and return its result; None if there is none.

        Raises:
            DatabaseError: the database failed; nothing of the batch was written.
        """
        batch, future = self._batch, self._future
        self._batch = self._future = None
        if batch is None:
            return None
        return WrittenBatch(batch, *(future.result() if future else batch.write(self._store)))

    def close(self) -> None:
        """Wait for what is being written, whether or not it succeeds."""
        if self._executor is not None:
            self._executor.shutdown()
