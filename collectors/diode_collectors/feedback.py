"""Keeps what Inductor's autotuner measures: a feedback saver and the thread that spools what it is told.

A saver runs inside somebody's compile, where an exception would abort it and a wait would slow it down. This one
does neither: it turns the event into a record, puts that into a bounded queue, and counts whatever goes wrong.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from diode_collectors.inductor_records import ReplayDetector, measurement_from_feedback
from diode_collectors.writer import DEFAULT_SPOOL_BYTES, SpoolWriter
from diode_store.errors import SpoolFullError
from diode_store.records import MATMUL_OPERANDS, Measurement, Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

log = logging.getLogger(__name__)

DEFAULT_QUEUE_RECORDS = 1000
DEFAULT_SEAL_EVERY_S = 60.0
_BATCH_RECORDS = 100
_FULL_RETRY_S = 0.5


@dataclass(frozen=True)
class FeedbackStats:
    """What became of the events so far."""

    events: int = 0
    """Autotuning events that Inductor reported."""
    recorded: int = 0
    """Events made into records; those not dropped are in the spool or on their way."""
    timings: int = 0
    """Timings in these records."""
    replays: int = 0
    """Records whose timings came back from Inductor's cache."""
    unsupported: int = 0
    """Events of other ops than matrix products."""
    failed: int = 0
    """Events that could not be made into a record."""
    dropped: int = 0
    """Records lost because the queue or the spool was full or could not be written."""


class FeedbackCollector:
    """Spools every matrix product that Inductor autotunes in this process, while it is started.

    Use it as a context manager, or call ``start`` and ``stop``.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        source: Source = Source.FEEDBACK,
        sweep_id: str | None = None,
        sample_seed: int | None = None,
        wait_when_full: bool = False,
        queue_records: int = DEFAULT_QUEUE_RECORDS,
        max_bytes: int = DEFAULT_SPOOL_BYTES,
        seal_every_s: float = DEFAULT_SEAL_EVERY_S,
    ) -> None:
        """Prepare to collect.

        Args:
            directory: the spool.
            source: who starts the compiles.
            sweep_id: which sweep does.
            sample_seed: seed of that sweep's problems.
            wait_when_full: wait for room in the spool, as a sweep should, rather than drop the newest record.
            queue_records: how many records may wait for the writer.
            max_bytes: how large the spool may grow.
            seal_every_s: after how many seconds at most records are handed over to ``diode-ingest``, which leaves
                the segment of a living process alone until then.
        """
        self._writer = SpoolWriter(directory, max_bytes=max_bytes)
        self._context: dict[str, Any] = {"source": source, "sweep_id": sweep_id, "sample_seed": sample_seed}
        self._wait_when_full = wait_when_full
        self._seal_every_s = seal_every_s
        self._queue: queue.Queue[Measurement | None] = queue.Queue(queue_records)
        self._thread = threading.Thread(target=self._write_all, name="diode-feedback", daemon=True)
        self._saver = self._on_feedback  # one bound method: removing goes by identity
        self._replays: ReplayDetector | None = None
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._stats = FeedbackStats()
        self._stats_lock = threading.Lock()
        self._said: set[str] = set()

    @property
    def stats(self) -> FeedbackStats:
        """What became of the events so far."""
        return self._stats

    def start(self) -> None:
        """Begin to collect. A collector is started once."""
        from torch._inductor.select_algorithm import add_feedback_saver

        self._replays = ReplayDetector()
        self._thread.start()
        atexit.register(self.stop)
        add_feedback_saver(self._saver)

    def stop(self) -> None:
        """Stop collecting, put what was collected on the disk and hand it over. Stopping twice is harmless."""
        from torch._inductor.select_algorithm import get_algorithm_selector_cache

        if self._stopping.is_set() or self._replays is None:
            return
        cache = get_algorithm_selector_cache()
        # A new list: a saver may be running over the old one, and others' savers are none of our business.
        cache.feedback_saver_fns = [saver for saver in cache.feedback_saver_fns if saver is not self._saver]
        self._stopping.set()
        self._queue.put(None)
        self._thread.join()
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def _on_feedback(
        self, timings: Any = None, name: Any = None, input_nodes: Any = (), choices: Any = (), *_: Any, **__: Any
    ) -> None:
        """Take one event; torch passes more arguments in some versions than in others."""
        if os.getpid() != self._pid:  # a forked child has no writer thread
            return
        try:
            self._count(events=1)
            if name not in MATMUL_OPERANDS:
                self._count(unsupported=1)
                return
            self._take(timings, name, input_nodes, choices)
        except Exception as error:  # noqa: BLE001 - an exception here would abort the user's compile
            self._count(failed=1)
            self._say_once(f"could not record an autotuning event of {name!r}: {type(error).__name__}: {error}")

    def _take(self, timings: Any, name: str, input_nodes: Any, choices: Any) -> None:
        is_replay = self._replays is not None and self._replays.is_replay()
        measurement = measurement_from_feedback(
            timings, name, input_nodes, choices, is_replay=is_replay, **self._context
        )
        self._count(recorded=1, timings=len(measurement.timings), replays=int(is_replay))
        try:
            self._queue.put(measurement, block=self._wait_when_full)
        except queue.Full:
            self._drop(f"more than {self._queue.maxsize} records wait to be written")

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
        while True:
            try:
                self._writer.append(measurement)
            except SpoolFullError as error:
                if not self._wait_when_full or self._stopping.wait(_FULL_RETRY_S):
                    self._drop(str(error))
                    return
                self._say_once(f"waiting for room: {error}")
            except Exception as error:  # noqa: BLE001 - the next record may do better
                self._drop(f"{type(error).__name__}: {error}")
                return
            else:
                return

    def _survive(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the records stay with the writer, which tries again
            self._say_once(f"could not write the spool: {error}")

    def _drop(self, reason: str) -> None:
        self._count(dropped=1)
        self._say_once(f"autotuning records are dropped: {reason}")

    def _count(self, **steps: int) -> None:
        with self._stats_lock:
            self._stats = replace(self._stats, **{name: getattr(self._stats, name) + n for name, n in steps.items()})

    def _say_once(self, message: str) -> None:
        kind = message.partition(":")[0]
        if kind not in self._said:
            self._said.add(kind)
            log.warning("%s (said once)", message)
