"""Commit records from a spool to the warehouse in batches.

On a database server one batch is committed while the next is read.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from diode_store.errors import RecordError
from diode_store.records import Measurement
from diode_store.values.checks import other_content
from diode_store.wire.segments import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from diode_store.warehouse.store import Store, WriteReport
    from diode_store.wire.codec import Record
    from diode_store.wire.segments import Frame

BATCH_TIMINGS = 50_000
"""Timings after which a batch is committed. Each commit waits for the disk."""
BATCH_S = 1.0
"""Seconds after which a batch is committed, counted from its first record."""


def rows_of(record: Record) -> int:
    """Return the rows that a record adds to its batch: its timings, or one for a decision."""
    return len(record.timings) if isinstance(record, Measurement) else 1


class Pending(NamedTuple):
    """A decoded record that waits for its batch, with its origin."""

    record: Record
    segment: Path
    frame: Frame


class Batch:
    """Records that are committed together, and the segments that this finishes."""

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        self.completes: list[Path] = []
        self._timings = 0
        self._since = 0.0

    def add(self, pending: Pending) -> None:
        """Add a record."""
        if not self.pending:
            self._since = time.monotonic()
        self.pending.append(pending)
        self._timings += rows_of(pending.record)

    def is_full(self) -> bool:
        """True when it is time to commit."""
        old = bool(self.pending) and time.monotonic() - self._since >= BATCH_S
        return old or self._timings >= BATCH_TIMINGS

    def write(self, store: Store) -> WrittenBatch:
        """Commit the batch; if the database refuses a value, find its record and commit the others."""
        written = WrittenBatch(self)
        if not self.pending:
            return written
        try:
            written.add(store.write(pending.record for pending in self.pending), self.pending)
        except RecordError:
            for pending in self.pending:
                try:
                    written.add(store.write([pending.record]), [pending])
                except RecordError as error:
                    written.refused.append((pending, Reason.BAD_RECORD, str(error)))
        return written


class WrittenBatch:
    """A written batch, with the records that the database refused."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.counts: Counter[str] = Counter()
        self.doubts: list[str] = []
        """A line for each value that cannot be true."""
        self.unknown_ops: Counter[str] = Counter()
        """Number of new measurements by op, for the ops that this version does not know."""
        self.refused: list[tuple[Pending, Reason, str]] = []
        """Refused records with the reasons."""

    def add(self, report: WriteReport, pending: Sequence[Pending]) -> None:
        """Add the store's report on ``pending``."""
        self.counts.update(
            measurements=report.measurements,
            duplicates=report.duplicates,
            timings=report.timings,
            decisions=report.decisions,
        )
        self.doubts += report.doubts
        self.unknown_ops.update(dict(report.unknown_ops))
        wrong = set(map(id, report.contradictions))
        others = [each for each in pending if id(each.record) in wrong]
        self.refused += ((each, Reason.OTHER_CONTENT, other_content(each.record.uid)) for each in others)


class Committing:
    """Writes one batch after another.

    With a database server, a thread writes while the next batch is read: it mostly waits for the server. SQLite works
    in the calling thread, where two threads would compete for the GIL.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._executor: ThreadPoolExecutor | None = None
        self._batch: Batch | None = None
        self._future: Future[WrittenBatch] | None = None

    @property
    def overlaps(self) -> bool:
        """True if reading the next batch before ``finish`` saves time."""
        return self._future is not None

    def start(self, batch: Batch) -> None:
        """Start to write a batch, or leave that to ``finish``; the batch before must be finished."""
        self._batch = batch
        if self._store.has_server and batch.pending:
            self._executor = self._executor or ThreadPoolExecutor(1, thread_name_prefix="diode-commit")
            self._future = self._executor.submit(batch.write, self._store)

    def finish(self) -> WrittenBatch | None:
        """Wait for the batch that was started and return its result; None if no batch was.

        Raises:
            DatabaseError: the database failed; nothing of the batch was written.
        """
        batch, future = self._batch, self._future
        self._batch = self._future = None
        if batch is None:
            return None
        return future.result() if future else batch.write(self._store)

    def close(self) -> None:
        """Wait for the batch that is being written, even if it fails."""
        if self._executor is not None:
            self._executor.shutdown()
