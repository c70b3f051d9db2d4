"""Work out results that take too long for a request, in one process after another, and keep them.

A process ends with its task, so its imports and memory go with it, and readers do not wait for it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from diode_store.errors import DiodeError, first_line
from diode_store.processes.child import Child, ChildError

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_store.processes.parent import Parent, Say

log = logging.getLogger(__name__)

T = TypeVar("T")
_LIMIT_S = 300.0
_MOST_KEPT = 32
_MOST_WAITING = 8
_OLD_S = 600.0
"""Age in seconds from which on a result is renewed, if the cache has changed and somebody asks."""
_FAILED_S = 60.0
"""Seconds after which a failed task is tried again, if somebody asks."""
_NICE = 10


class Task(ABC, Generic[T]):
    """A task for another process: a frozen dataclass. Equal tasks are worked out once."""

    generation: int = 0
    """Generation of the cache that the task asks, left out of comparisons; constant if the cache does not matter."""

    @abstractmethod
    def work(self, database: str, tell: Callable[[float], None]) -> T:
        """Return the result; called in another process.

        Args:
            database: URL of the warehouse.
            tell: call it with the share that is done, from 0 to 1.

        Raises:
            DiodeError: the task failed; the message gives the reason in one line.
        """


@dataclass(frozen=True)
class Progress(Generic[T]):
    """Progress of a task."""

    result: T | None = None
    """Last result."""
    is_under_way: bool = False
    share: float = 0.0
    """Share of the running task that is done, from 0 to 1."""
    error: str = ""
    """Reason why there is no result, or no newer one."""


@dataclass
class _Kept:
    """A task with its progress."""

    task: Task[Any]
    progress: Progress[Any] = field(default_factory=Progress)
    ended_s: float = 0.0

    def is_due(self, task: Task[Any]) -> bool:
        """Return True if the task should be worked out, perhaps again, for somebody who asks with ``task``."""
        if self.progress.is_under_way:
            return False
        age_s = time.monotonic() - self.ended_s
        if self.progress.error:
            return age_s > _FAILED_S
        return self.progress.result is None or (age_s > _OLD_S and task.generation != self.task.generation)


class Background:
    """Works out tasks; a context manager that ends the running one."""

    def __init__(self, database: str, *, limit_s: float = _LIMIT_S) -> None:
        """Start nothing yet.

        Args:
            database: URL of the warehouse.
            limit_s: time limit of a task in seconds.
        """
        self._database, self._limit_s = database, limit_s
        self._kept: dict[Task[Any], _Kept] = {}
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Kept] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child: Child | None = None
        self._has_ended = False

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the running task."""
        with self._lock:
            self._has_ended = True
            if self._child is not None:
                self._child.close()

    def look(self, task: Task[T]) -> Progress[T]:
        """Return the progress of a task, and start it if it has no result or an old one."""
        with self._lock:
            kept = self._kept.pop(task, None) or _Kept(task)
            self._forget()
            self._kept[kept.task] = kept
            if kept.is_due(task) and not self._has_ended:
                if self._waiting.qsize() >= _MOST_WAITING:
                    return Progress(kept.progress.result, error="too many tasks are waiting; look again later")
                kept.task = task
                kept.progress = Progress(kept.progress.result, is_under_way=True)
                self._waiting.put(kept)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="background", daemon=True)
                    self._thread.start()
            return kept.progress

    def wait(self, task: Task[T], every_s: float = 0.05) -> Progress[T]:
        """Wait for the end of a task and return its progress."""
        while (progress := self.look(task)).is_under_way:
            time.sleep(every_s)
        return progress

    def _forget(self) -> None:
        """Forget the tasks that nobody has asked for longest."""
        over = [task for task, kept in self._kept.items() if not kept.progress.is_under_way]
        for task in over[: max(len(self._kept) - _MOST_KEPT + 1, 0)]:
            del self._kept[task]

    def _work(self) -> None:
        while not self._has_ended:
            kept = self._waiting.get()
            try:
                progress = Progress(self._worked_out(kept))
            except Exception as error:  # noqa: BLE001 - a failed task must not stop the next ones
                if not self._has_ended:
                    log.warning("%s: %s", kept.task, first_line(error))
                progress = Progress(kept.progress.result, error=first_line(error))
            kept.ended_s = time.monotonic()
            kept.progress = progress

    def _worked_out(self, kept: _Kept) -> Any:
        with self._lock:
            if self._has_ended:
                raise DiodeError("the server is shutting down")
            self._child = Child("diode_explorer.background:serve")
        with self._child as child:

            def heard(share: float) -> None:
                kept.progress = Progress(kept.progress.result, is_under_way=True, share=share)

            try:
                return child.call((kept.task, self._database), heard, self._limit_s)
            except ChildError as error:
                raise DiodeError(f"the process of this task {error}") from None


def serve(parent: Parent) -> None:
    """Work out the task that the parent sends."""
    os.nice(_NICE)
    parent.serve(_worked_out)


def _worked_out(asked: tuple[Task[T], str], say: Say) -> T:
    task, database = asked
    return task.work(database, say)
