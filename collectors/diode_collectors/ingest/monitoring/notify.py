"""Report the daemon's state to systemd over its socket: ``Type=notify`` and the watchdog.

Nothing is sent without ``NOTIFY_SOCKET`` in the environment. See sd_notify(3).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

from diode_collectors.ingest.monitoring.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from diode_collectors.ingest.report import IngestProgress, IngestReport
    from diode_store.errors import DiodeError


class Notifier:
    """Sends messages to systemd; drops a message that cannot be sent, as sd_notify does."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Read the socket and the watchdog's period from ``environment``, by default ``os.environ``."""
        values = os.environ if environment is None else environment
        name = values.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte that begins an abstract name; other kinds of sockets are ignored.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name if name.startswith("/") else None
        self.watchdog_s = _watchdog_s(values)

    def send(self, **fields: str | int) -> None:
        """Send each field as ``NAME=value``."""
        if self._address is None:
            return
        text = "\n".join(f"{name}={' '.join(str(value).split())}" for name, value in fields.items())
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # noqa: FBT003 - the standard library's signature
            sender.sendto(text.encode(), self._address)


class NotifyObserver(Observer):
    """Sends events to systemd. While the loop runs, the watchdog gets a sign of life twice per period."""

    def __init__(self, notifier: Notifier, clock: Callable[[], float] = time.monotonic) -> None:
        self._notifier = notifier
        self._clock = clock
        self._ready = False
        self._beat_at = float("-inf")
        self._status = ""
        self._measurements = 0

    def beat(self) -> None:
        """Send a sign of life if half of the watchdog's period has passed."""
        watchdog_s = self._notifier.watchdog_s
        if watchdog_s is not None and self._clock() - self._beat_at >= watchdog_s / 2:
            self._beat_at = self._clock()
            self._notifier.send(WATCHDOG=1)

    def connected(self) -> None:
        """Report that the warehouse is open."""
        self._say_ready("the warehouse is open")

    def progressed(self, spool: Path, progress: IngestProgress) -> None:
        """Show the progress of the pass in the status."""
        if progress.total_bytes and progress.done_bytes < progress.total_bytes:
            self._say(f"ingesting {spool}: {100 * progress.done_bytes // progress.total_bytes} %")

    def passed(self, spool: Path, report: IngestReport, seconds: float) -> None:
        """Show in the status how much was stored since the start."""
        del spool, seconds
        self._measurements += report.measurements
        self._say(f"waiting for records; {self._measurements:,} measurements stored since the start")

    def failed(self, spool: Path, error: DiodeError, retry_s: float) -> None:
        """Show the error. A daemon that waits for its database counts as started, or systemd would end it."""
        del spool
        self._say_ready(f"{error}; retried in {retry_s:.0f} s")

    def guarded(self, problems: Sequence[str], *, holds: bool) -> None:
        """Show the guard's problems."""
        if problems:
            self._say_ready(f"{'holding' if holds else 'warning'}: {'; '.join(problems)}")

    def reloading(self) -> None:
        """Announce a reload, with the time that systemd requires."""
        self._notifier.send(RELOADING=1, MONOTONIC_USEC=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)

    def reloaded(self, changes: Sequence[str], kept: Sequence[str]) -> None:
        """Report ready again."""
        del kept
        self._notifier.send(READY=1, STATUS=f"settings read again; changed: {', '.join(changes) or 'nothing'}")

    def not_reloaded(self, error: DiodeError) -> None:
        """Report ready again, with the old settings."""
        self._notifier.send(READY=1, STATUS=f"the old settings stay: {error}")

    def stopped(self) -> None:
        """Report that it stops."""
        self._notifier.send(STOPPING=1, STATUS="stopped")

    def _say_ready(self, status: str) -> None:
        if self._ready:
            self._say(status)
            return
        self._ready, self._status = True, status
        self._notifier.send(READY=1, STATUS=status)

    def _say(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self._notifier.send(STATUS=status)


def _watchdog_s(values: Mapping[str, str]) -> float | None:
    """Return the watchdog's period in seconds; None if systemd does not watch this process."""
    microseconds, pid = values.get("WATCHDOG_USEC", ""), values.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or int(microseconds) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(microseconds) / 1e6
