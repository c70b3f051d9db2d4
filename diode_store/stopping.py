"""Lets Ctrl-C and SIGTERM stop work between two steps, not in the middle of one."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
STOP_SIGNALS = frozenset(_NAMES)


class StopSignal:
    """Takes note of the first Ctrl-C or SIGTERM; the second raises ``KeyboardInterrupt``, should the first not help.

    Signals reach the main thread only; in any other thread this does nothing. An ignored signal stays ignored.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        """Prepare to take over ``numbers``, or both."""
        self._numbers = numbers or STOP_SIGNALS
        self.name: str | None = None
        """Which one came; None when none did."""
        self.fd, self._wake_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        """Can be read from once it came, for a selector to wait on."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Take the signals over."""
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Hand them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._wake_fd)

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if one came."""
        if self.name is not None:
            raise KeyboardInterrupt

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.check()
        self.name = _NAMES[signal.Signals(number)]
        os.write(self._wake_fd, b"!")
