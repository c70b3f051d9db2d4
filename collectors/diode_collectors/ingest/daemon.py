"""Run the daemon: move spooled records into the warehouse until stopped.

This is a small loop around ``ingest_once``. Logs, health and metrics are ``Observer`` objects that it calls.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.ingest.guard import Guard, Verdict
from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.ingest.monitoring.observer import Observer
from diode_collectors.ingest.probe import PROBE_INTERVAL_S, probe
from diode_collectors.spool.files import changed_ns
from diode_collectors.spool.spool import Spool
from diode_store.errors import DatabaseError, SchemaError, SettingsError, SpoolError
from diode_store.system.urls import sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from diode_collectors.ingest.report import IngestProgress
    from diode_collectors.ingest.settings import DaemonSettings
    from diode_store.errors import DiodeError
    from diode_store.warehouse.store import Store

__all__ = ["Observer", "Reload", "Reloaded", "backoff_s", "run_daemon"]

LOOK_S = 0.1
"""Seconds between two looks at a spool's folder; a look is one system call."""
TURN_S = 2.0
"""Longest turn of a spool in seconds while others wait."""
_GUARD_S = 1.0


class Reloaded(NamedTuple):
    """Settings after a reload."""

    settings: DaemonSettings
    open_store: Callable[[], Store] | None = None
    """Opens the warehouse if its address has changed."""
    changes: tuple[str, ...] = ()
    """Names of the settings that changed."""
    kept: tuple[str, ...] = ()
    """Names of the settings whose new values need a restart."""


@dataclass(frozen=True)
class Reload:
    """A request to read the settings again, and the function that reads them."""

    read: Callable[[], Reloaded]
    """Reads the settings; raises ``SettingsError`` if they cannot be used."""
    asked: threading.Event = field(default_factory=threading.Event)
    """Set by another thread to ask for a reload."""


def run_daemon(
    settings: DaemonSettings,
    open_store: Callable[[], Store],
    stop: threading.Event,
    *,
    observers: Sequence[Observer] = (),
    reload: Reload | None = None,
) -> None:
    """Ingest from the settings' spools until ``stop`` is set, then finish the batch and return.

    After a failure of the database or a spool, the daemon retries with back-off. Nothing is lost meanwhile.

    Args:
        settings: settings of the daemon. Missing spools are created.
        open_store: opens the warehouse; called again after a failure.
        stop: set by another thread to end the daemon.
        observers: called at each event.
        reload: changes the settings of a running daemon.

    Raises:
        SpoolError: a spool is in use by another process, cannot be made, or was deleted.
        SchemaError: at the start, there is no database or it has another schema revision.
        DatabaseError: at the start, the file is no database.
    """
    with contextlib.ExitStack() as locks:
        works = [_Work(spool, locks.enter_context(Spool(spool).lock())) for spool in settings.spool]
        _Daemon(works, open_store, stop, settings, observers, reload).run()


@dataclass
class _Work:
    """A spool, and the time of its next pass."""

    spool: Path
    is_deleted: Callable[[], bool]
    """Returns True if the locked folder was deleted."""
    due_at: float = float("-inf")
    failures: int = 0
    changed_ns: int | None = None
    """Time of the folder's last change before the last pass."""


class _Daemon:
    def __init__(
        self,
        works: Sequence[_Work],
        open_store: Callable[[], Store],
        stop: threading.Event,
        settings: DaemonSettings,
        observers: Sequence[Observer],
        reload: Reload | None,
    ) -> None:
        self._works = works
        self._open_store = open_store
        self._stop = stop
        self._observers = observers
        self._reload = reload
        self._store: Store | None = None
        self._was_open = False
        self._database_failures = 0
        self._probed_at = float("-inf")
        self._verdict = Verdict()
        self._turn_began: float | None = None
        self._use(settings)

    def _use(self, settings: DaemonSettings) -> None:
        self._settings = settings
        self._guard = Guard(
            [work.spool for work in self._works],
            sqlite_path(settings.database),
            min_free_bytes=settings.min_free_bytes,
            quarantine_bytes=settings.quarantine_bytes,
        )
        self._guarded_at = float("-inf")

    def _tell(self, event: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            event(observer)

    def run(self) -> None:
        self._tell(lambda o: o.started([work.spool for work in self._works]))
        try:
            while not self._stop.is_set():
                self._tell(lambda o: o.beat())
                self._reload_if_asked()
                self._look_at_disks()
                self._probe_database()
                for work in self._works:
                    if self._is_due(work):
                        self._pass(work)
                self._stop.wait(self._pause_s())
        finally:
            self._close()
        self._tell(lambda o: o.stopped())

    def _is_due(self, work: _Work) -> bool:
        """Return True if a spool's pass is due or its folder has changed."""
        if self._stop.is_set() or self._verdict.holds:
            return False
        if time.monotonic() >= work.due_at:
            return True
        failing = work.failures or self._database_failures
        return not failing and changed_ns(work.spool) != work.changed_ns

    def _pause_s(self) -> float:
        if self._verdict.holds:
            return LOOK_S
        until_due = min(work.due_at for work in self._works) - time.monotonic()
        return min(LOOK_S, max(0.0, until_due))

    def _pass(self, work: _Work) -> None:
        """Make one pass over a spool and set the time of the next."""
        if work.is_deleted():
            # Writers make a new folder, which another daemon may have locked by now.
            raise SpoolError(f"{work.spool} was deleted while the daemon worked on it; start the daemon again")
        begin = time.monotonic()
        self._turn_began = None
        # The time is read before the segments, so that a segment that arrives during the pass counts as a change.
        work.changed_ns = changed_ns(work.spool)
        try:
            store = self._opened()
            report = ingest_once(
                work.spool,
                store,
                should_stop=self._should_stop,
                on_progress=partial(self._progressed, work.spool),
            )
        except DatabaseError as error:
            # At the start this is the operator's mistake; later the database has gone away.
            if not self._was_open and (isinstance(error, SchemaError) or _is_no_database(error)):
                raise
            self._database_failed(work, error)
        except SpoolError as error:
            work.due_at = time.monotonic() + self._failed(work, error, work.failures)
            work.failures += 1
        else:
            self._database_failures = work.failures = 0
            work.due_at = time.monotonic() + (0.0 if report.stopped else self._settings.poll_interval_s)
            self._tell(lambda o: o.passed(work.spool, report, time.monotonic() - begin))

    def _opened(self) -> Store:
        if self._store is None:
            self._store = self._open_store()
            self._was_open, self._probed_at = True, time.monotonic()
            self._tell(lambda o: o.connected())
        return self._store

    def _probe_database(self) -> None:
        """Check now and then that the warehouse still answers, because a pass over an empty spool does not use it.

        After a failed probe, the next pass opens the warehouse again. While the guard holds passes back, this method
        opens the warehouse instead.
        """
        if self._store is None:
            if self._was_open and self._verdict.holds and time.monotonic() >= self._works[0].due_at:
                self._try(self._opened)
            return
        if time.monotonic() - self._probed_at < PROBE_INTERVAL_S:
            return
        self._try(partial(probe, self._store))
        self._probed_at = time.monotonic()

    def _try(self, use_database: Callable[[], object]) -> None:
        try:
            use_database()
        except DatabaseError as error:
            self._database_failed(self._works[0], error)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _should_stop(self) -> bool:
        return self._stop.is_set() or self._verdict.holds or self._is_others_turn()

    def _is_others_turn(self) -> bool:
        """Return True if other spools have waited long enough since the pass's first progress."""
        if len(self._works) == 1 or self._turn_began is None:
            return False
        return time.monotonic() - self._turn_began > TURN_S

    def _progressed(self, spool: Path, progress: IngestProgress) -> None:
        if self._turn_began is None:
            self._turn_began = time.monotonic()
        self._tell(lambda o: o.progressed(spool, progress))
        self._look_at_disks()

    def _database_failed(self, work: _Work, error: DiodeError) -> None:
        """Delay every spool, since all share the database."""
        self._close()
        due_at = time.monotonic() + self._failed(work, error, self._database_failures)
        self._database_failures += 1
        for each in self._works:
            # An idle spool need not wait for its next pass, which may be far off. A failing spool keeps a longer wait.
            each.due_at = max(each.due_at, due_at) if each.failures else due_at

    def _failed(self, work: _Work, error: DiodeError, failures: int) -> float:
        retry_s = backoff_s(failures, self._settings)
        self._tell(lambda o: o.failed(work.spool, error, retry_s))
        return retry_s

    def _look_at_disks(self) -> None:
        """Look at the disks at most once a second, as a look takes system calls; pause or resume as the guard says."""
        now = time.monotonic()
        if now - self._guarded_at < _GUARD_S:
            return
        self._guarded_at = now
        verdict = self._guard.look()
        for spool, files in self._guard.trimmed:
            self._tell(partial(_tell_trimmed, spool, files))
        self._guard.trimmed.clear()
        if verdict != self._verdict:
            self._verdict = verdict
            self._tell(lambda o: o.guarded(verdict.problems, holds=verdict.holds))

    def _reload_if_asked(self) -> None:
        if self._reload is None or not self._reload.asked.is_set():
            return
        self._reload.asked.clear()
        self._tell(lambda o: o.reloading())
        try:
            new = self._reload.read()
        except SettingsError as error:
            # Python unbinds an exception's name after its block, so the call binds the exception itself.
            self._tell(partial(_tell_not_reloaded, error))
            return
        self._use(new.settings)
        if new.open_store is not None:
            self._close()
            self._open_store = new.open_store
        for work in self._works:
            work.due_at = float("-inf")
        self._tell(lambda o: o.reloaded(new.changes, new.kept))


def _tell_trimmed(spool: Path, files: int, observer: Observer) -> None:
    observer.trimmed(spool, files)


def _tell_not_reloaded(error: DiodeError, observer: Observer) -> None:
    observer.not_reloaded(error)


def _is_no_database(error: DiodeError) -> bool:
    """Return True if the file is not an SQLite database, which no retry mends."""
    return getattr(error.__cause__ or error.__context__, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB


def backoff_s(failures: int, settings: DaemonSettings) -> float:
    """Return the seconds to wait after ``failures`` earlier failures in a row.

    The wait doubles up to a limit. A random part of up to half keeps daemons from coming back all at once.
    """
    longest = min(settings.backoff_most_s, settings.backoff_first_s * 2.0 ** min(failures, 60))
    return random.SystemRandom().uniform(longest / 2, longest)
