"""`diode-ingest run`: empties a spool into the warehouse for as long as it is let.

A small loop around ``ingest_once``. Whoever wants to know what it does, as the log does, is an ``Observer``.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from diode_collectors.ingest import ingest_once
from diode_collectors.logs import LOGGER_NAME, log
from diode_collectors.spool import Spool
from diode_store.errors import DatabaseError, SchemaError, SpoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from diode_collectors.ingest import IngestReport, Progress
    from diode_store.errors import DiodeError
    from diode_store.store import Store

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_FIRST_LOOK_S, _LAST_LOOK_S = 0.01, 0.2

_Result = TypeVar("_Result")
_logger = logging.getLogger(f"{LOGGER_NAME}.ingest")


@dataclass(frozen=True)
class DaemonOptions:
    """How patient the daemon is. All in seconds."""

    poll_interval_s: float = 1.0
    """From one pass to the next."""
    backoff_first_s: float = 0.5
    """Longest wait after the first failure; it doubles with each further one."""
    backoff_most_s: float = 30.0


class Observer:
    """Is told what the daemon does, in the daemon's thread; each method here does nothing."""

    def started(self, spool_dir: Path) -> None:
        """Hear that it holds the spool and begins."""

    def progressed(self, progress: Progress) -> None:
        """Hear how far a pass has come."""

    def passed(self, report: IngestReport, seconds: float) -> None:
        """Hear what a whole pass did, and how long it took."""

    def failed(self, error: DiodeError, retry_s: float) -> None:
        """Hear that a pass failed, and when it will be tried again."""

    def stopped(self) -> None:
        """Hear that it ends as it was asked to."""


class LogObserver(Observer):
    """Writes what happens to the log; passes in which nothing happened leave no line."""

    def __init__(self) -> None:
        self._unreadable: tuple[str, ...] = ()

    def started(self, spool_dir: Path) -> None:
        """Log it."""
        log(_logger, logging.INFO, "started", spool=spool_dir, pid=os.getpid())

    def passed(self, report: IngestReport, seconds: float) -> None:
        """Log the counts, each rejection, and, when that changed, what could not be read."""
        if report.segments or report.measurements or report.rejected:
            counts = {
                name: getattr(report, name)
                for name in ("segments", "measurements", "duplicates", "timings", "rejected")
            }
            log(_logger, logging.INFO, "ingested", **counts, seconds=seconds)
        for rejection in report.rejections:
            log(_logger, logging.WARNING, "rejected", **rejection._asdict())
        if report.torn_bytes:
            log(_logger, logging.INFO, "cut_torn_tail", bytes=report.torn_bytes)
        if report.unreadable != self._unreadable:
            for problem in report.unreadable:
                log(_logger, logging.WARNING, "unreadable", problem=problem)
            self._unreadable = report.unreadable

    def failed(self, error: DiodeError, retry_s: float) -> None:
        """Log the error."""
        log(_logger, logging.ERROR, "failed", error=error, retry_s=retry_s)

    def stopped(self) -> None:
        """Log it."""
        log(_logger, logging.INFO, "stopped")


def run_daemon(
    spool_dir: Path,
    open_store: Callable[[], Store],
    stop: threading.Event,
    *,
    options: DaemonOptions | None = None,
    observers: Sequence[Observer] = (),
) -> None:
    """Ingest from ``spool_dir`` until ``stop`` is set, then finish the batch and return.

    When the database or the spool fails, the store is opened anew after a while; nothing is lost meanwhile.

    Args:
        spool_dir: the spool; made if it is not there.
        open_store: opens the warehouse; called again after a failure.
        stop: set it, from another thread, to end the daemon.
        options: how patient it is.
        observers: who is told what it does.

    Raises:
        SpoolError: another process works on this spool, or it cannot be made.
        SchemaError: when it starts, the database is absent or has another schema revision.
        DatabaseError: when it starts, the file is no database.
    """
    with Spool(spool_dir).lock():
        _Daemon(spool_dir, open_store, stop, options or DaemonOptions(), observers).run()


class _Daemon:
    def __init__(
        self,
        spool_dir: Path,
        open_store: Callable[[], Store],
        stop: threading.Event,
        options: DaemonOptions,
        observers: Sequence[Observer],
    ) -> None:
        self._spool_dir = spool_dir
        self._open_store = open_store
        self._stop = stop
        self._options = options
        self._observers = observers
        self._store: Store | None = None
        self._was_open = False
        self._failures = 0

    def run(self) -> None:
        for observer in self._observers:
            observer.started(self._spool_dir)
        try:
            while not self._stop.is_set():
                self._stop.wait(self._pass())
        finally:
            self._close()
        for observer in self._observers:
            observer.stopped()

    def _pass(self) -> float:
        """Make one pass; return how long to wait until the next, in seconds."""
        begin = time.monotonic()
        try:
            store = self._opened()
            report = ingest_once(self._spool_dir, store, should_stop=self._stop.is_set, on_progress=self._progressed)
        except (DatabaseError, SpoolError) as error:
            # At the start this is a mistake to be told at once; later it is a database that went away.
            if not self._was_open and (isinstance(error, SchemaError) or _is_no_database(error)):
                raise
            return self._failed(error)
        self._failures = 0
        for observer in self._observers:
            observer.passed(report, time.monotonic() - begin)
        return self._options.poll_interval_s

    def _opened(self) -> Store:
        if self._store is None:
            self._store = self._open_store()
            self._was_open = True
        return self._store

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _progressed(self, progress: Progress) -> None:
        for observer in self._observers:
            observer.progressed(progress)

    def _failed(self, error: DiodeError) -> float:
        self._close()
        retry_s = backoff_s(self._failures, self._options)
        self._failures += 1
        for observer in self._observers:
            observer.failed(error, retry_s)
        return retry_s


def _is_no_database(error: DiodeError) -> bool:
    """Tell whether SQLite found something else in the file, which waiting does not change."""
    return getattr(error.__cause__ or error.__context__, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB


def backoff_s(failures: int, options: DaemonOptions) -> float:
    """Return how long to wait after ``failures`` earlier failures in a row, in seconds.

    Doubles up to a limit; a random part, up to half, keeps daemons from coming back all at once.
    """
    longest = min(options.backoff_most_s, options.backoff_first_s * 2.0 ** min(failures, 60))
    return random.SystemRandom().uniform(longest / 2, longest)


def run_until_signalled(work: Callable[[threading.Event], _Result]) -> _Result:
    """Run ``work`` in a thread of its own; SIGTERM or SIGINT sets the event it is given.

    A second signal ends the process at once, with 128 + its number. The signals are waited for, not handled: a
    handler that sets an event can meet the same thread inside of that event and never return.

    Args:
        work: what to do; it returns soon after its event is set.
    """
    stop = threading.Event()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        with ThreadPoolExecutor(max_workers=1) as executor:
            future = executor.submit(work, stop)
            look_s = _FIRST_LOOK_S
            while not future.done():
                received = signal.sigtimedwait(STOP_SIGNALS, look_s)
                look_s = min(2 * look_s, _LAST_LOOK_S)
                if received is not None and stop.is_set():
                    os._exit(128 + received.si_signo)
                if received is not None:
                    stop.set()
            return future.result()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
