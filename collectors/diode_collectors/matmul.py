"""Collects what a process's own compiles measure: into a data set in memory, or into the daemon's spool.

``MatmulDatasetCollector`` is for a data set to look at, to save and to pass on in upstream's files, which hold
Triton kernels only. ``collect_to_spool`` keeps everything, and outlives the process.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from copy import deepcopy
from typing import TYPE_CHECKING, Self

from diode_collectors.feedback.collector import FeedbackCollector
from diode_collectors.feedback.listening import AutotuningListener, FeedbackStats
from diode_collectors.spool.background import DEFAULT_QUEUE_RECORDS, DEFAULT_SEAL_EVERY_S
from diode_collectors.spool.writer import DEFAULT_SPOOL_BYTES
from diode_store.exchange.torch_diode import DatasetBuilder, NotHeld
from diode_store.exchange.torch_diode_files import read_file, write_file
from diode_store.exchange.torch_diode_types import Dataset, Table

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from diode_collectors.feedback.coverage import Coverage
    from diode_store.records import Measurement

__all__ = ["DETECTED", "FeedbackStats", "MatmulDatasetCollector", "collect_to_spool"]

log = logging.getLogger(__name__)

DETECTED = "unknown"
"""The hardware name that means each timing's own device, as its driver reports it."""


class MatmulDatasetCollector:
    """Collects the matrix products that Inductor autotunes in this process into a data set.

    Use it as a context manager, or call ``start_collection`` and ``stop_collection``, as often as you like. A compile
    only hands over its record; the data set is built in the thread that asks for it. Any method may be called
    from any thread.
    """

    def __init__(self, hardware_name: str = DETECTED) -> None:
        """Prepare to collect.

        Args:
            hardware_name: what the data set calls the device; the name that its driver reports unless given.
        """
        self._hardware_name = None if hardware_name == DETECTED else hardware_name
        self._heard: deque[Measurement] = deque()
        self._builder = DatasetBuilder()
        self._lock = threading.RLock()  # a compile never takes it
        self._listener = AutotuningListener(self._hear)

    @property
    def stats(self) -> FeedbackStats:
        """What became of the autotuning events so far."""
        return self._listener.stats

    @property
    def not_held(self) -> NotHeld:
        """What the data set cannot hold of what was collected."""
        with self._lock:
            self._catch_up()
            return deepcopy(self._builder.not_held)

    def coverage(self) -> Coverage:
        """Return how many matrix products of the compiles so far were observed, and what became of the others."""
        return self._listener.coverage()

    def start_collection(self) -> None:
        """Begin to collect; harmless when it already does."""
        with self._lock:
            self._listener.start()

    def stop_collection(self) -> None:
        """Stop collecting, and leave other savers alone; harmless when it does not collect."""
        with self._lock:
            self._listener.stop()

    def __enter__(self) -> Self:
        """Begin to collect."""
        self.start_collection()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop collecting."""
        self.stop_collection()

    def get_dataset(self) -> Dataset:
        """Return a copy of what was collected and loaded so far."""
        with self._lock:
            self._catch_up()
            return self._builder.dataset.copy()

    def to_table(self) -> Table:
        """Return each problem's configs, the fastest first."""
        return self.get_dataset().to_table()

    def save_to_file(self, file_path: Path | str) -> None:
        """Write the data set to a file, replacing what is there; log what the file cannot hold.

        Args:
            file_path: .json or .msgpack.

        Raises:
            ExportError: another suffix, or the file cannot be written, in which case none is left.
        """
        with self._lock:
            dataset, left_out = self.get_dataset(), self._builder.not_held.left_out_lines()
        write_file(file_path, dataset)
        if left_out:
            log.warning("%s: %s; collect_to_spool keeps them", file_path, "; ".join(left_out))

    def load_from_file(self, file_path: Path | str) -> None:
        """Replace what was collected so far by a file's data set; after an error nothing has changed.

        Args:
            file_path: .json or .msgpack.

        Raises:
            ImportFileError: it cannot be read or holds something else; the message says file, place and remedy.
        """
        dataset = read_file(file_path, Dataset)
        with self._lock:
            self._heard.clear()
            self._builder = DatasetBuilder(dataset)

    def save_table_to_file(self, file_path: Path | str) -> None:
        """Write the table to a file, replacing what is there.

        Args:
            file_path: .json or .msgpack.

        Raises:
            ExportError: another suffix, or the file cannot be written, in which case none is left.
        """
        write_file(file_path, self.to_table())

    def _hear(self, measurement: Measurement) -> None:
        """Keep a record; runs in the compiling thread, where an append never waits."""
        self._heard.append(measurement)

    def _catch_up(self) -> None:
        """Add the queued records to the data set; the caller holds the lock."""
        while self._heard:
            self._builder.add(self._heard.popleft(), hardware_name=self._hardware_name)


def collect_to_spool(
    directory: Path | str,
    *,
    queue_records: int = DEFAULT_QUEUE_RECORDS,
    max_bytes: int = DEFAULT_SPOOL_BYTES,
    seal_every_s: float = DEFAULT_SEAL_EVERY_S,
) -> FeedbackCollector:
    """Return a collector that streams into a spool, from a thread of its own, while it is entered or started.

    Everything is kept: every kernel, failures, strides, environment. Records that the writer cannot keep
    up with, or that the spool has no room for, are dropped and counted in ``stats``.

    Args:
        directory: the spool that ``diode-ingest`` reads; made if it is not there.
        queue_records: how many records may wait for the writer.
        max_bytes: how large the spool may grow.
        seal_every_s: after how many seconds at most records are handed over to ``diode-ingest``.

    Raises:
        SettingsError: one of the numbers is invalid.
        SpoolError: the folder cannot be made.
    """
    return FeedbackCollector(directory, queue_records=queue_records, max_bytes=max_bytes, seal_every_s=seal_every_s)
