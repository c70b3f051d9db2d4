"""Temporary folders that a killed process does not leave for ever.

Each is locked while it is used. A killed process leaves its folder behind, unlocked; the next one of the same user
and purpose removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from diode_store.errors import DiodeError, first_line
from diode_store.files import try_lock


@dataclass(frozen=True)
class PrivateFolder:
    """A temporary folder of this process; its mode is 0700."""

    path: Path
    lock: int
    """The folder, open and locked; a child process that inherits this keeps the folder when its parent dies."""

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def new_private_folder(prefix: str, parent: Path | None = None) -> PrivateFolder:
    """Make one, with a random name: another user could create a known name first.

    Args:
        prefix: how its name begins.
        parent: where it is to be; the system's temporary folder if None.

    Raises:
        DiodeError: the folder cannot be made.
    """
    try:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(prefix, parent)
        while True:
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            lock = _lock(path)
            if lock is not None:
                return PrivateFolder(path, lock)
    except OSError as error:
        raise DiodeError(f"no folder for temporary files: {first_line(error)}; set TMPDIR to one") from error


def remove_abandoned(prefix: str, parent: Path) -> None:
    """Remove this user's folders with names of ``prefix`` that no process uses."""
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                lock = _lock(path)
                if lock is not None:
                    PrivateFolder(path, lock).remove()


def _lock(path: Path) -> int | None:
    """Return the locked folder as an open file, or None if another process holds its lock or has just removed it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    if try_lock(descriptor) and path.exists():
        return descriptor
    os.close(descriptor)
    return None
