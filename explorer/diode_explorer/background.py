"""What takes too long for a request, or needs too much: done in processes of their own, one after another, and kept.

Each is an interpreter (``python -m diode_explorer.background``) that gets a pickled task on standard input, answers
on standard output, and ends. So what it imports and keeps in memory goes with it, and readers do not wait for it.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from diode_store.errors import DiodeError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

T = TypeVar("T")
_LIMIT_S = 300.0
_MOST_KEPT = 32
_MOST_WAITING = 8
_OLD_S = 600.0
"""After so long a result is worked out anew if the lake has changed since, and somebody asks."""
_FAILED_S = 60.0
"""After so long what failed is tried again, if somebody asks."""
_NICE = 10
_SHARE, _DONE, _FAILED = "share", "done", "failed"


class Task(ABC, Generic[T]):
    """What is to be worked out: a frozen dataclass; equal ones are worked out once."""

    generation: int = 0
    """Of the lake that it asks, which comparisons leave out; always the same where the lake does not matter."""

    @abstractmethod
    def work(self, database: str, tell: Callable[[float], None]) -> T:
        """Return the result; called in another process.

        Args:
            database: the warehouse.
            tell: to be called with the share that is done, from 0 to 1.

        Raises:
            DiodeError: it cannot be worked out; the message says why in one line.
        """


@dataclass(frozen=True)
class Progress(Generic[T]):
    """How far a task is."""

    result: T | None = None
    """What came of it last."""
    is_under_way: bool = False
    share: float = 0.0
    """How much of what is under way is done, from 0 to 1."""
    error: str = ""
    """Why there is no result, or no newer one."""


@dataclass
class _Kept:
    """A task, and what is known of it."""

    task: Task[Any]
    progress: Progress[Any] = field(default_factory=Progress)
    ended_s: float = 0.0

    def is_due(self, task: Task[Any]) -> bool:
        """Whether it is to be worked out, perhaps again, for somebody who asks with ``task``."""
        if self.progress.is_under_way:
            return False
        age_s = time.monotonic() - self.ended_s
        if self.progress.error:
            return age_s > _FAILED_S
        return self.progress.result is None or (age_s > _OLD_S and task.generation != self.task.generation)


class Background:
    """Works out tasks; a context manager, which ends what is under way."""

    def __init__(self, database: str, *, limit_s: float = _LIMIT_S) -> None:
        """Start nothing yet.

        Args:
            database: the warehouse that tasks are about.
            limit_s: how long one may take.
        """
        self._database, self._limit_s = database, limit_s
        self._kept: dict[Task[Any], _Kept] = {}
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Kept] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._has_ended = False

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what is under way."""
        with self._lock:
            self._has_ended = True
            if self._process is not None:
                self._process.kill()

    def look(self, task: Task[T]) -> Progress[T]:
        """Return how far a task is, and have it worked out if it is not yet, or was long ago."""
        with self._lock:
            kept = self._kept.pop(task, None) or _Kept(task)
            self._forget()
            self._kept[kept.task] = kept
            if kept.is_due(task) and not self._has_ended:
                if self._waiting.qsize() >= _MOST_WAITING:
                    return Progress(kept.progress.result, error="too much else is being worked out; look again later")
                kept.task = task
                kept.progress = Progress(kept.progress.result, is_under_way=True)
                self._waiting.put(kept)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="background", daemon=True)
                    self._thread.start()
            return kept.progress

    def wait(self, task: Task[T], every_s: float = 0.05) -> Progress[T]:
        """Return how a task ended."""
        while (progress := self.look(task)).is_under_way:
            time.sleep(every_s)
        return progress

    def _forget(self) -> None:
        """Forget what nobody has asked for the longest time."""
        over = [task for task, kept in self._kept.items() if not kept.progress.is_under_way]
        for task in over[: max(len(self._kept) - _MOST_KEPT + 1, 0)]:
            del self._kept[task]

    def _work(self) -> None:
        while not self._has_ended:
            kept = self._waiting.get()
            try:
                progress = Progress(self._worked_out(kept))
            except Exception as error:  # noqa: BLE001 - the next task is to be worked out all the same
                log.warning("%s: %s", kept.task, first_line(error))
                progress = Progress(kept.progress.result, error=first_line(error))
            kept.ended_s = time.monotonic()
            kept.progress = progress

    def _worked_out(self, kept: _Kept) -> Any:
        with _started() as process:
            with self._lock:
                self._process = process
                if self._has_ended:
                    process.kill()
            timer = threading.Timer(self._limit_s, process.kill)
            timer.start()
            began = time.monotonic()
            try:
                kind, value = self._answer(kept, process)
            except (OSError, EOFError, pickle.UnpicklingError):
                is_late = time.monotonic() - began >= self._limit_s
                why = f"took more than {self._limit_s:g} s" if is_late else "was ended from outside (out of memory?)"
                raise DiodeError(f"the process that works it out {why}") from None
            finally:
                timer.cancel()
                process.kill()
        if kind == _FAILED:
            raise DiodeError(value)
        return value

    def _answer(self, kept: _Kept, process: subprocess.Popen[bytes]) -> tuple[str, Any]:
        """Give a process its task, and return what it says last."""
        stdin, stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        stdin.write(pickle.dumps((kept.task, self._database, self._limit_s)))
        stdin.close()
        while True:
            kind, value = pickle.load(stdout)  # noqa: S301 - our own process's
            if kind != _SHARE:
                return kind, value
            kept.progress = Progress(kept.progress.result, is_under_way=True, share=value)


def _started() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-m", __name__]
    # In a group of its own, so that Ctrl-C reaches it through us alone.
    return subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, process_group=0
    )


def main() -> None:
    """Work out the task on standard input."""
    os.nice(_NICE)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints, prints to the log

    def say(kind: str, value: Any) -> None:
        pickle.dump((kind, value), answers)
        answers.flush()

    task, database, limit_s = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    signal.alarm(round(limit_s) + 1)  # it must not outlive its limit, even if that process is gone
    try:
        found = task.work(database, lambda share: say(_SHARE, share))
    except DiodeError as error:
        say(_FAILED, first_line(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, the page says it
        say(_FAILED, f"{type(error).__name__}: {first_line(error)}")
    else:
        say(_DONE, found)


if __name__ == "__main__":
    main()
