"""Runs work that SIGTERM and SIGINT end, and passes SIGHUP on."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from diode_store.stopping import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_LOOK_S, _LAST_LOOK_S = 0.01, 0.2

_Result = TypeVar("_Result")


def run_until_signalled(
    work: Callable[[threading.Event], _Result], *, on_hangup: Callable[[], None] | None = None
) -> _Result:
    """Run ``work`` in a thread of its own; SIGTERM or SIGINT sets the event it is given.

    A second signal ends the process at once, with 128 + its number. The signals are waited for, not handled: a
    handler that sets an event can interrupt the same thread inside that event and never return.

    Args:
        work: what to do; it returns soon after its event is set.
        on_hangup: called, in the calling thread, for each SIGHUP; without it SIGHUP keeps its usual effect.
    """
    stop = threading.Event()
    awaited = STOP_SIGNALS | ({signal.SIGHUP} if on_hangup else set())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        with ThreadPoolExecutor(max_workers=1) as executor:
            future = executor.submit(work, stop)
            look_s = _FIRST_LOOK_S
            while not future.done():
                wait([future], look_s)
                # Without a timeout of its own: one that a stopped process (Ctrl-Z, a debugger) sleeps through makes
                # Python return a signal that was never sent.
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
            return future.result()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
