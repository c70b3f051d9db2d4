"""Talk to the parent process from inside a child."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from diode_store.errors import DiodeError, first_line
from diode_store.processes.child import ChildError, ChildMemoryError, Failed

if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[[Any], None]
    """Sends a part of an answer."""

_NO_THREAD = "can't start new thread"


class Parent:
    """Exchanges messages with the process that started this one."""

    def __init__(self, fd: int) -> None:
        """Listen on the socket ``fd``, which no process that this one starts inherits."""
        os.set_inheritable(fd, False)  # noqa: FBT003 - the function's only argument beside the descriptor
        self.on_gone: Callable[[], object] = lambda: os._exit(0)
        """Called in another thread when the parent has hung up or died."""
        self.is_gone = False
        """True once the parent has hung up or died."""
        self._connection = Connection(fd)
        self._sending = threading.Lock()
        self._messages: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def receive(self) -> Any:
        """Wait for the next message and return it."""
        return pickle.loads(self._messages.get())  # noqa: S301 - from the process that started this one

    def send(self, message: Any) -> None:
        """Send a message, whole or not at all. Do nothing if the parent is gone."""
        content = pickle.dumps(message)
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(content)

    def serve(self, answer: Callable[[Any, Say], Any]) -> NoReturn:
        """Answer the parent's requests until it is gone.

        Args:
            answer: takes a request and a function that sends parts of the answer; returns the result. The parent raises
                a ``DiodeError`` again. Any other error ends this process.
        """
        while True:
            request = self.receive()
            try:
                self.send((True, answer(request, self._say)))
            except DiodeError as error:
                self.send(Failed(error))

    def report(self, error: BaseException) -> None:
        """Tell the parent of an error that ends this process."""
        # A lack of memory also shows as a thread without a stack.
        is_memory = isinstance(error, MemoryError) or _NO_THREAD in str(error)
        failed = f"failed: {type(error).__name__}: {first_line(error)}"
        self.send(Failed(ChildMemoryError("needs more memory than it may have") if is_memory else ChildError(failed)))

    def _say(self, part: Any) -> None:
        self.send((False, part))

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._messages.put(self._connection.recv_bytes())
        self.is_gone = True
        self.on_gone()
