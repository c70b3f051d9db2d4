"""Let Ctrl-C and SIGTERM stop work between two steps, not in the middle of one."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
STOP_SIGNALS = frozenset(_NAMES)


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM raise ``KeyboardInterrupt``, so that a command ends its children and reports its results.

    Does nothing outside the main thread, or if SIGTERM is ignored or handled already.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class StopSignal:
    """Notes the first Ctrl-C or SIGTERM; a second signal raises ``KeyboardInterrupt``.

    Signals reach the main thread only; in any other thread this does nothing. An ignored signal stays ignored.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        """Name of the signal that came; None before."""
        self.fd, self._wake_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        """Descriptor that becomes readable when a signal comes, for a selector."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Take the signals over."""
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
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
