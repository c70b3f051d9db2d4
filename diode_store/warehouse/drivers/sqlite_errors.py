"""Messages for SQLite's errors: cause and remedy. This module imports little, for readers without SQLAlchemy."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from diode_store.errors import DatabaseError

if TYPE_CHECKING:
    from pathlib import Path

_REMEDIES = {
    "unable to open database file": "it cannot be opened; check that its folder exists and is yours to write",
    "file is not a database": "it is not an SQLite database; name another file",
    "database disk image is malformed": "it is damaged; restore it from a backup",
    "readonly database": "it is not writable by this user; check the owner and mode of the file and its folder",
    "is locked": "another process holds it locked; try again when that process is done",
    "disk is full": "its disk is full; make room and try again",
}


def reason(error: BaseException) -> str:
    """Return the meaning of a database driver's error on one line, with the remedy if it is known."""
    text = " ".join(str(error).split())
    return next((remedy for said, remedy in _REMEDIES.items() if said in text), text or type(error).__name__)


def is_there(path: Path) -> bool:
    """Return whether there is a database file at ``path`` that this user may read.

    The file is not opened: closing it here would end the locks that this process has on it.

    Raises:
        DatabaseError: ``path`` is a folder, or this user may not read or reach it; SQLite reports all of these alike.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise DatabaseError(f"{path}: {error.strerror}; check the owner and mode of the folders it is in") from error
    if stat.S_ISDIR(mode):
        raise DatabaseError(f"{path} is a folder; name a file in it")
    if not os.access(path, os.R_OK):
        raise DatabaseError(f"{path}: this user may not read it; check its owner and its mode")
    return True
