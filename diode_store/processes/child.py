"""Start a Python process, exchange messages with it, and end it.

Every child process of the project follows the same rules:

- It is a fresh interpreter with this process's ``sys.path``. It runs one function of ours.
- Messages are pickles on a socket that only parent and child hold. Printed output never mixes with them.
- It has a process group of its own, so Ctrl-C reaches the parent alone.
- It ends when its parent closes the socket or dies, even in the middle of an answer.
- Its parent keeps the time limit. A killed child closes its socket, so no kill is taken for a timeout.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import IO, TYPE_CHECKING, Any, Self

from diode_store.errors import DiodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

_PATIENCE_S = 5.0
_MESSAGE_S = 1.0
"""Least seconds for the rest of a message that began in time."""
_STDERR = 2
_LONGEST_S = 1e6
"""Time limit in seconds above which there is no limit: the system counts milliseconds in 32 bits."""


class ChildError(DiodeError):
    """A child process gave no answer. The message is a predicate, such as ``took more than 8 s``."""


class ChildLateError(ChildError):
    """A child process reached its time limit and was killed."""


class ChildMemoryError(ChildError):
    """A child process could not get the memory that its answer needs."""


@dataclass(frozen=True)
class Failed:
    """A message that carries an error to the parent."""

    error: DiodeError


class Child:
    """A process of our own; a context manager that ends it."""

    def __init__(
        self,
        function: str,
        *,
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | int = _STDERR,
        fds: Sequence[int] = (),
    ) -> None:
        """Start the process.

        Args:
            function: ``package.module:name`` of the function that the process calls with its ``Parent``.
            environment: variables to set in the process, beside those of this one.
            output: target of its stdout and stderr, as ``subprocess.Popen`` takes it.
            fds: descriptors that it inherits.

        Raises:
            ChildError: the system refuses a process.
        """
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with theirs:
            self._connection = Connection(ours.detach())
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own function
                    [sys.executable, "-P", "-m", "diode_store.processes", function, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONPATH": path, **(environment or {})},
                    pass_fds=(theirs.fileno(), *fds),
                    process_group=0,
                )
            except OSError as error:
                self._connection.close()
                raise ChildError(f"cannot be started: {error.strerror or error}") from error
        self._reading = threading.Lock()

    def __enter__(self) -> Self:
        """Return the child."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process."""
        self.close()

    @property
    def pid(self) -> int:
        """Process id; also the id of its process group."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status; minus the number of the signal that ended it, or None while it runs."""
        return self._process.poll()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a message arrives or the process ends."""
        return self._connection.fileno()

    def send(self, message: Any) -> None:
        """Send a message. If the process has ended, the next ``receive`` reports it."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(pickle.dumps(message))

    def receive(self, limit_s: float = math.inf) -> Any:
        """Wait for the next message and return it.

        Raises:
            DiodeError: the error that the process reports.
            ChildLateError: no whole message came in time; the process is killed.
            ChildError: the process ended.
        """
        late = threading.Event()
        with self._reading:
            try:
                message = self._read_within(max(limit_s, 0.0) if limit_s < _LONGEST_S else None, late)
            except (EOFError, OSError):
                if not late.is_set():
                    raise ChildError(self._how_it_ended()) from None
        if late.is_set():
            self.kill()
            raise ChildLateError(f"took more than {limit_s:g} s")
        if isinstance(message, Failed):
            raise message.error
        return message

    def waiting(self) -> tuple[list[Any], bool]:
        """Return the messages that have arrived, and whether more may follow."""
        found: list[Any] = []
        with self._reading, contextlib.suppress(EOFError, OSError):
            while self._connection.poll():
                message = self._read()
                if not isinstance(message, Failed):  # after an error the process ends
                    found.append(message)
            return found, True
        return found, False

    def answer(self, limit_s: float = math.inf) -> tuple[bool, Any]:
        """Return True and the result of an answer of ``Parent.serve``, or False and its next part.

        Raises:
            DiodeError: as for ``receive``.
        """
        answer: tuple[bool, Any] = self.receive(limit_s)
        return answer

    def ask(self, request: Any, limit_s: float = math.inf) -> Generator[Any, None, Any]:
        """Send a request, yield the parts of its answer, and return the result.

        Args:
            request: argument of the function that ``Parent.serve`` calls.
            limit_s: time limit of the whole answer in seconds, without the caller's time between parts.

        Raises:
            DiodeError: as for ``receive``.
        """
        self.send(request)
        left_s = limit_s
        while True:
            began = time.monotonic()
            try:
                is_last, value = self.answer(left_s)
            except ChildLateError:
                raise ChildLateError(f"took more than {limit_s:g} s") from None
            left_s -= time.monotonic() - began
            if is_last:
                return value
            yield value

    def call(self, request: Any, on_part: Callable[[Any], None], limit_s: float = math.inf) -> Any:
        """Send a request, pass the parts of its answer to ``on_part``, and return the result; errors as for ``ask``."""
        parts = self.ask(request, limit_s)
        while True:
            try:
                part = next(parts)
            except StopIteration as end:
                return end.value
            on_part(part)

    def kill(self) -> None:
        """Kill the process and everything that it started. Any thread may call this."""
        if self._process.returncode is None:
            self._kill_group()

    def hang_up(self) -> None:
        """Tell the process to end; its last messages can still be received."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as end:
            end.shutdown(socket.SHUT_WR)

    def close(self, patience_s: float = 0.0) -> None:
        """Tell the process to end, kill it after ``patience_s`` seconds, and wait until it is gone."""
        if self._process.returncode is None:
            if patience_s:
                self.hang_up()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience_s)
            self._kill_group()
            self._process.wait()
        with self._reading:
            self._connection.close()

    def _read_within(self, limit_s: float | None, late: threading.Event) -> Any:
        """Read a message; set ``late`` if it does not come in time, or stops in the middle."""
        deadline = time.monotonic() + (limit_s or 0.0)
        if not self._connection.poll(limit_s):
            late.set()
            return None
        if limit_s is None:
            return self._read()

        def end() -> None:
            late.set()
            self.kill()

        killer = threading.Timer(max(deadline - time.monotonic(), _MESSAGE_S), end)
        killer.start()
        try:
            return self._read()
        finally:
            killer.cancel()

    def _read(self) -> Any:
        return pickle.loads(self._connection.recv_bytes())  # noqa: S301 - from a process of our own

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):  # the process may live on after closing its socket
            self._process.wait(_PATIENCE_S)
        self.kill()
        status = self._process.wait()
        if status == -signal.SIGKILL:
            return "was killed (out of memory?)"
        return f"died of signal {-status}" if status < 0 else f"ended with exit status {status}"


def ready(children: Iterable[Child]) -> list[Child]:
    """Wait for a message or the end of at least one child; return the children that have one."""
    by_fd = {child.fileno(): child for child in children}
    return [by_fd[fd] for fd in wait(by_fd) if isinstance(fd, int)]
