"""Batches of measurements on their way from a spool into the warehouse."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from diode_store.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path

    from diode_collectors.segment import Frame
    from diode_store.records import Measurement
    from diode_store.store import Store

BATCH_TIMINGS = 50_000
"""A batch is committed when it has so many: each commit waits for the disk, 4 to 100 ms."""
BATCH_S = 1.0
"""Or when its first measurement has waited so long."""


class Pending(NamedTuple):
    """A decoded measurement that waits for its batch, and where it came from."""

    measurement: Measurement
    segment: Path
    frame: Frame


class Batch:
    """Measurements that will be committed together, and the segments that are done with once they are."""

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
        self._timings += len(pending.measurement.timings)

    def is_full(self) -> bool:
        """Tell whether it is time to commit."""
        old = bool(self.pending) and time.monotonic() - self._since >= BATCH_S
        return old or self._timings >= BATCH_TIMINGS

    def write(self, store: Store) -> tuple[Counter[str], list[tuple[Pending, str]]]:
        """Commit the batch; if the database refuses a value in it, find out whose and commit the others.

        Returns:
            The counts of what was written, and what was refused, with the reasons.
        """
        if not self.pending:
            return Counter(), []
        try:
            return Counter(asdict(store.write(pending.measurement for pending in self.pending))), []
        except RecordError:
            return self._write_one_by_one(store)

    def _write_one_by_one(self, store: Store) -> tuple[Counter[str], list[tuple[Pending, str]]]:
        written: Counter[str] = Counter()
        refused = []
        for pending in self.pending:
            try:
                written.update(asdict(store.write([pending.measurement])))
            except RecordError as error:
                refused.append((pending, str(error)))
        return written, refused
