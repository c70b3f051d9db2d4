"""Show and log errors and other objects inside a user's compile, without ever raising.

Objects of torch and of other people's hooks may raise when they are shown, and so may log filters and handlers.
"""

from __future__ import annotations

import contextlib
import logging
import threading

from diode_store.errors import first_line
from diode_store.values.checks import shown


def in_words(thing: object) -> str:
    """Return the text for a log line of an error or any other object."""
    try:
        return f"{type(thing).__name__}: {first_line(thing)}" if isinstance(thing, BaseException) else shown(thing)
    except Exception:  # noqa: BLE001 - see above
        return object.__repr__(thing)


def log(logger: logging.Logger, level: int, message: str, error: BaseException | None = None) -> None:
    """Log a line, with the traceback of ``error`` if given."""
    with contextlib.suppress(Exception):
        logger.log(level, "%s", message, exc_info=error)


class Once:
    """Logs a line at most once for each subject; any thread may use it."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._subjects: set[str] = set()
        self._lock = threading.Lock()

    def __contains__(self, subject: str) -> bool:
        """Return whether a line about ``subject`` was logged."""
        return subject in self._subjects

    def log(self, subject: str, line: str, level: int = logging.WARNING, error: Exception | None = None) -> None:
        """Log ``line`` unless one about ``subject`` was logged."""
        with self._lock:
            first = subject not in self._subjects
            self._subjects.add(subject)
        if first:
            log(self._logger, level, f"{line} (logged once)", error)
