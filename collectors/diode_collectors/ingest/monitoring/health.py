"""Track whether the daemon is alive and ready to store records."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from diode_collectors.ingest.monitoring.observer import Observer
from diode_store.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from diode_collectors.ingest.report import IngestProgress, IngestReport
    from diode_store.errors import DiodeError

_UNREADABLE_LISTED = 5


class Health(Observer):
    """Last known state of the daemon; any thread may read it."""

    def __init__(self, hang_after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start alive and not ready.

        Args:
            hang_after_s: seconds without a sign of life after which the daemon counts as hung.
            clock: a monotonic clock, in seconds.
        """
        self.hang_after_s = hang_after_s
        self._clock = clock
        self._lock = threading.Lock()
        self._beat_at = clock()
        self._database: str | None = "the warehouse is not open yet"
        self._spools: dict[Path, str] = {}
        self._unreadable: dict[Path, tuple[str, ...]] = {}
        self._guard: tuple[str, ...] = ()
        self._is_stopped = False

    def seconds_since_beat(self) -> float:
        """Return the seconds since the daemon's last sign of life."""
        return self._clock() - self._beat_at

    def hung(self) -> str | None:
        """Return one line if the daemon hangs, else None."""
        silent_s = self.seconds_since_beat()
        return f"no sign of life for {silent_s:.0f} s" if silent_s > self.hang_after_s else None

    def database_is_up(self) -> bool:
        """Return True if the warehouse answered when it was last used or probed."""
        return self._database is None

    def problems(self) -> list[str]:
        """Return a line for each reason why the daemon is not ready."""
        with self._lock:
            found = [self._database, *self._spools.values(), *self._unreadable_lines(), *self._guard, self.hung()]
            found.append("stopped" if self._is_stopped else None)
        return [problem for problem in found if problem]

    def unreadable(self, spool: Path) -> int:
        """Return the number of segments of ``spool`` that the last pass could not read."""
        with self._lock:
            return len(self._unreadable.get(spool, ()))

    def beat(self) -> None:
        """Note the time."""
        self._beat_at = self._clock()

    def connected(self) -> None:
        """Forget the warehouse's problem."""
        self._database = None

    def progressed(self, spool: Path, progress: IngestProgress) -> None:
        """Note the time."""
        del spool, progress
        self.beat()

    def passed(self, spool: Path, report: IngestReport, seconds: float) -> None:
        """Forget the spool's problem and note its unreadable segments."""
        del seconds
        with self._lock:
            self._database = None
            self._spools.pop(spool, None)
            # A pass that ended early has not tried all segments.
            before = self._unreadable.get(spool, ()) if report.stopped else ()
            self._unreadable[spool] = tuple(dict.fromkeys((*before, *report.unreadable)))

    def failed(self, spool: Path, error: DiodeError, retry_s: float) -> None:
        """Note the failure."""
        del retry_s
        with self._lock:
            if isinstance(error, DatabaseError):
                self._database = str(error)
            else:
                self._spools[spool] = str(error)

    def guarded(self, problems: Sequence[str], *, holds: bool) -> None:
        """Note the guard's problems."""
        del holds
        self._guard = tuple(problems)

    def stopped(self) -> None:
        """Report not ready from now on."""
        self._is_stopped = True

    def _unreadable_lines(self) -> Iterator[str]:
        for spool, problems in self._unreadable.items():
            yield from problems[:_UNREADABLE_LISTED]
            if (more := len(problems) - _UNREADABLE_LISTED) > 0:
                yield f"{spool}: {more:,} more cannot be read"
