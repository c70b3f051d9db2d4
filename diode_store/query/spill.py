"""The private folder that DuckDB spills results larger than memory to.

Each connection has its own, locked while it is used. A killed process leaves its folder behind, unlocked; the next
one of the same user removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.errors import QueryError, first_line
from diode_store.files import try_lock

if TYPE_CHECKING:
    from collections.abc import Callable

_PREFIX = "diode-spill-"


def new_folder() -> tuple[str, Callable[[], None]]:
    """Return a new folder in the system's temporary one, and the function that removes it.

    Its mode is 0700 and its name is random: another user could create a known name first.

    Raises:
        QueryError: the temporary folder cannot be written.
    """
    try:
        _remove_abandoned(Path(tempfile.gettempdir()))
        while True:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = _lock(folder)
            if lock is not None:
                return str(folder), partial(_remove, folder, lock)
    except OSError as error:
        raise QueryError(f"no folder for temporary files: {first_line(error)}; set TMPDIR to one") from error


def _remove_abandoned(temporary: Path) -> None:
    for folder in temporary.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                lock = _lock(folder)
                if lock is not None:
                    _remove(folder, lock)


def _lock(folder: Path) -> int | None:
    """Return the locked folder as an open file, or None if another process holds its lock or has just removed it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    if try_lock(descriptor) and folder.exists():
        return descriptor
    os.close(descriptor)
    return None


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
