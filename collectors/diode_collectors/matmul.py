"""Collect the timings of your own compiles, into a data set in memory or into the daemon's spool.

``MatmulDatasetCollector`` makes a data set to look at, save and pass on in upstream's files, which hold Triton kernels
only. ``collect_to_spool`` keeps everything and outlives the process.
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
from diode_store.exchange.foreign.torch_diode import DatasetBuilder
from diode_store.exchange.foreign.torch_diode_files import read_file, write_file
from diode_store.exchange.foreign.torch_diode_types import Dataset, Table

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from diode_collectors.feedback.coverage import Coverage
    from diode_store.exchange.not_held import NotHeld
    from diode_store.records import Measurement

__all__ = ["DETECTED", "FeedbackStats", "MatmulDatasetCollector", "collect_to_spool"]

log = logging.getLogger(__name__)

DETECTED = "unknown"
"""Hardware name that stands for each timing's own device, as its driver reports it."""


class MatmulDatasetCollector:
    """Collects the matrix products that Inductor autotunes in this process into a data set.

    Use it as a context manager, or call ``start_collection`` and ``stop_collection``, as often as you like. A compile
    only hands over its record; the thread that asks for the data set builds it. All methods are thread-safe.
    """

    def __init__(self, hardware_name: str = DETECTED) -> None:
        """Prepare to collect.

        Args:
            hardware_name: name of the device in the data set; by default the one that its driver reports.
        """
        self._hardware_name = None if hardware_name == DETECTED else hardware_name
        self._heard: deque[Measurement] = deque()
        self._builder = DatasetBuilder()
        self._lock = threading.RLock()  # a compile never takes it
        self._listener = AutotuningListener(self._hear, hears_fused=False)

    @property
    def stats(self) -> FeedbackStats:
        """Counts of the autotuning events so far."""
        return self._listener.stats

    @property
    def not_held(self) -> NotHeld:
        """Counts of the collected timings that a data set cannot hold."""
        with self._lock:
            self._catch_up()
            return deepcopy(self._builder.not_held)

    def coverage(self) -> Coverage:
        """Counts of the matrix products compiled so far, by what became of them."""
        return self._listener.coverage()

    def start_collection(self) -> None:
        """Start to collect; do nothing if it collects already."""
        with self._lock:
            self._listener.start()

    def stop_collection(self) -> None:
        """Stop collecting; do nothing if it does not collect. Other feedback savers stay."""
        with self._lock:
            self._listener.stop()

    def __enter__(self) -> Self:
        """Start to collect."""
        self.start_collection()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop collecting."""
        self.stop_collection()

    def get_dataset(self) -> Dataset:
        """Return a copy of everything collected and loaded so far."""
        with self._lock:
            self._catch_up()
            return self._builder.dataset.copy()

    def to_table(self) -> Table:
        """Return each problem's configs, the fastest first."""
        return self.get_dataset().to_table()

    def save_to_file(self, file_path: Path | str) -> None:
        """Write the data set to a file, replacing an old one. Log what the file cannot hold, or why it is empty.

        Args:
            file_path: .json or .msgpack.

        Raises:
            ExportError: another suffix, or the file cannot be written; then no file is left.
        """
        with self._lock:
            dataset, left_out = self.get_dataset(), self._builder.not_held.left_out_lines()
        write_file(file_path, dataset)
        if not dataset.problems:
            log.warning("%s: nothing was recorded; %s", file_path, self.coverage())
        if left_out:
            log.warning("%s: %s; collect_to_spool keeps them", file_path, "; ".join(left_out))

    def load_from_file(self, file_path: Path | str) -> None:
        """Replace the collected data by a file's data set; after an error nothing has changed.

        Args:
            file_path: .json or .msgpack.

        Raises:
            ImportFileError: the file is no readable data set; the message names file, place and remedy.
        """
        dataset = read_file(file_path, Dataset)
        with self._lock:
            self._heard.clear()
            self._builder = DatasetBuilder(dataset)

    def save_table_to_file(self, file_path: Path | str) -> None:
        """Write the table to a file, replacing an old one.

        Args:
            file_path: .json or .msgpack.

        Raises:
            ExportError: another suffix, or the file cannot be written; then no file is left.
        """
        write_file(file_path, self.to_table())

    def _hear(self, measurement: Measurement) -> None:
        """Keep a record. Runs in the compiling thread, where an append never waits."""
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
    """Return a collector that streams into a spool from a thread of its own, while it is entered or started.

    It keeps everything: every kernel, failures, strides, environment. If the writer is too slow or the spool is full,
    records are dropped and counted in ``stats``.

    Args:
        directory: the spool that ``diode-ingest`` reads; made if missing.
        queue_records: most records that may wait for the writer.
        max_bytes: size limit of the spool.
        seal_every_s: longest time until records are handed over to ``diode-ingest``.

    Raises:
        SettingsError: one of the numbers is invalid.
        SpoolError: the folder cannot be made.
    """
    return FeedbackCollector(directory, queue_records=queue_records, max_bytes=max_bytes, seal_every_s=seal_every_s)
