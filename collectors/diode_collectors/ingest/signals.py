"""Run work that SIGTERM and SIGINT end, and pass SIGHUP on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from diode_store.command_line.stopping import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_LOOK_S, _LAST_LOOK_S = 0.01, 0.2
_STOP_WITHIN_S = 9.0
"""Seconds from the first signal to the end. A hanging file system or name service must not delay a shutdown."""

_CUT_OFF = (
    f"stopped in the middle of a batch: the database or a disk gave no answer for {_STOP_WITHIN_S:g} s; "
    "the batch is still in the spool\n"
)

_Result = TypeVar("_Result")


def run_until_signalled(
    work: Callable[[threading.Event], _Result], *, on_hangup: Callable[[], None] | None = None
) -> _Result:
    """Run ``work`` in a thread; SIGTERM or SIGINT sets the event that it gets.

    A second signal ends the process at once, with 128 + its number. If the work goes on for nine seconds after the
    first signal, the process ends with 0. Signals are waited for, not handled, because a handler that sets an event can
    interrupt its own thread inside that event and never return.

    Args:
        work: returns soon after its event is set, and loses nothing if it is cut off.
        on_hangup: called in the calling thread for each SIGHUP; without it SIGHUP keeps its usual effect.
    """
    stop = threading.Event()
    awaited = STOP_SIGNALS | ({signal.SIGHUP} if on_hangup else set())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        with ThreadPoolExecutor(max_workers=1) as executor:
            future = executor.submit(work, stop)
            look_s = _FIRST_LOOK_S
            end_at = float("inf")
            while not future.done():
                wait([future], look_s)
                if time.monotonic() > end_at and not future.done():
                    sys.stderr.write(_CUT_OFF)
                    sys.stderr.flush()
                    os._exit(0)
                # No timeout: if a stopped process (Ctrl-Z, a debugger) sleeps through one, Python returns a signal that
                # was never sent.
                received = signal.sigtimedwait(awaited, 0)
                look_s = min(2 * look_s, _LAST_LOOK_S)
                if received is None:
                    continue
                if received.si_signo == signal.SIGHUP and on_hangup:
                    on_hangup()
                elif stop.is_set():
                    os._exit(128 + received.si_signo)
                else:
                    stop.set()
                    end_at = time.monotonic() + _STOP_WITHIN_S
            return future.result()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
