"""Write decisions into the spool of ``diode-ingest``. The hook imports this module only if it has a spool.

The compiling thread puts a decision into a bounded queue. A thread of its own makes the record and writes it, so that
no compile waits for a disk. Decisions that cannot be kept are dropped and counted.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import socket
import threading
import uuid
import weakref
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.inductor.device import detect_environment
from diode_collectors.spool.background import DEFAULT_QUEUE_RECORDS, BackgroundWriter
from diode_collectors.spool.writer import DEFAULT_SPOOL_BYTES, SpoolWriter
from diode_store.decisions import DecisionRecord, KeptConfig
from diode_store.errors import RecordError, SpoolError
from diode_store.values.checks import MAX_MICROSECONDS

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from diode_integration.decide.decision import Decision
    from diode_integration.record.log import Stats

log = logging.getLogger("diode_integration")

_MOST_WORDS = 2_000
"""Number of characters to keep of a reason or a failure; compilers print whole programs."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class Chooser(NamedTuple):
    """Facts that all decisions of a handler share."""

    policy: str
    mode: str
    model_sha256: str | None
    hook_version: int


class _Waiting(NamedTuple):
    decision: Decision
    decided_at: datetime


class Recorder:
    """Writes the decisions of one handler to a spool; any thread may use it, and so may a forked child."""

    def __init__(
        self,
        directory: Path | str,
        chooser: Chooser,
        stats: Stats,
        *,
        queue_records: int = DEFAULT_QUEUE_RECORDS,
        max_bytes: int = DEFAULT_SPOOL_BYTES,
    ) -> None:
        """Prepare to write; nothing runs before the first decision.

        Args:
            directory: the spool.
            chooser: the handler's facts.
            stats: counts recorded and dropped decisions.
            queue_records: number of decisions that may wait to be written.
            max_bytes: size to which the spool may grow.

        Raises:
            SpoolError: the folder cannot be made.
        """
        self._directory = directory
        self._chooser = chooser
        self._stats = stats
        self._queue_records = queue_records
        self._max_bytes = max_bytes
        self._environment = detect_environment()
        self._spool = SpoolWriter(directory, max_bytes=max_bytes)
        self._start_over()
        _recorders.add(self)
        _watch_forks()

    def _start_over(self) -> None:
        self._lock = threading.Lock()  # never held during a write
        self._background: BackgroundWriter[_Waiting] | None = None

    def take(self, decision: Decision, decided_at: datetime) -> None:
        """Have a decision written, unless no record can hold it; runs in the compiling thread."""
        if decision.problem is None or decision.device is None:
            self._stats.count("decisions_unrecorded")
            return
        self._stats.count("decisions_recorded")
        with self._lock:  # or ``close`` could stop the writer in between
            self._running().put(_Waiting(decision, decided_at))

    def close(self) -> None:
        """Write the waiting decisions and hand them to ``diode-ingest``; a later decision begins a segment."""
        if self._background is None:
            return
        try:
            spool = SpoolWriter(self._directory, max_bytes=self._max_bytes)
        except SpoolError as error:  # the folder is gone, and cannot be made again
            self.say_once(f"decisions cannot be spooled any more: {error}")
            spool = self._spool
        with self._lock:
            background, self._background = self._background, None
            if background is None:
                return
            self._spool = spool
        atexit.unregister(self.close)
        background.stop()

    def drop(self, reason: str) -> None:
        """Count a lost decision, and log the reason once."""
        self._stats.count("decisions_dropped")
        self.say_once(f"decisions are dropped: {reason}")

    def say_once(self, message: str) -> None:
        """Log a warning, unless one with the same text up to the first colon was logged."""
        self._stats.once.log(message.partition(":")[0], message)

    def _running(self) -> BackgroundWriter[_Waiting]:
        """Return this process's writer, under the lock; start it if it does not run."""
        if self._background is None:
            background = BackgroundWriter(
                self._spool, self._record, self, name="diode-decisions", queue_records=self._queue_records
            )
            background.start()
            atexit.register(self.close)
            self._background = background
        return self._background

    def _record(self, waiting: _Waiting) -> DecisionRecord:
        """Return a decision as a record; runs in the writer's thread."""
        decision, decided_at = waiting
        if decision.problem is None or decision.device is None:
            raise RecordError("a decision needs a problem and a device")
        picked = decision.picks_sha256
        # A picks file holds measurements, not predictions, and no model had a part in it.
        chooser = self._chooser._replace(policy=f"picks/{picked}", model_sha256=None) if picked else self._chooser
        if decision.policy is not None:
            chooser = chooser._replace(policy=decision.policy.key, mode=str(decision.policy.mode))
        if decision.model_sha256 is not None:
            chooser = chooser._replace(model_sha256=decision.model_sha256)
        return DecisionRecord(
            uid=uuid.uuid4().bytes,
            hardware=decision.device,
            environment=self._environment,
            problem=decision.problem,
            decided_by=str(decision.decided_by),
            reason=_words(decision.reason),
            decided_at=decided_at,
            candidates=decision.candidates,
            kept=tuple(
                KeptConfig(each.config, None if picked else _time(each.predicted_us)) for each in decision.chosen
            ),
            predicted_vendor_us=_time(decision.vendor_us),
            p_within_2pct=None if decision.p_within_2pct is None else float(decision.p_within_2pct),
            similar_to=decision.similar_to,
            seconds=decision.seconds,
            observed=decision.observed,
            failure=None if decision.failure is None else _words(decision.failure),
            host=socket.gethostname(),
            **chooser._asdict(),
        )


def _words(text: str) -> str:
    """Return ``text`` as a record can hold it."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)[:_MOST_WORDS]


def _time(us: float | None) -> float | None:
    """Return a prediction as a record can hold it: None for a kernel that cannot run."""
    return float(us) if us is not None and math.isfinite(us) and 0 < us < MAX_MICROSECONDS else None


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_start_over_in_child)


def _start_over_in_child() -> None:
    """Leave waiting decisions to the parent: the threads are its own, and a lock may have been held."""
    for recorder in _recorders:
        recorder._start_over()  # noqa: SLF001 - the module's own class
