"""Shows and logs errors and other objects inside a user's compile, without ever raising.

Objects of torch and of other people's hooks may raise when they are shown, and so may log filters and handlers.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from diode_store.errors import first_line
from diode_store.values.checks import shown

if TYPE_CHECKING:
    import logging


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
