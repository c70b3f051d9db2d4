"""Temporary folders that a killed process does not leave forever.

Beside each lies a file that is locked while the folder is used. A killed process leaves both, unlocked; the next one of
the same user and purpose removes them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.errors import DiodeError, first_line
from diode_store.system.files import try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = ".in-use"
"""Suffix of the file beside the folder."""


SPILL = "diode-spill-"
"""Prefix of folders to which DuckDB spills data beyond its memory limit."""


@dataclass(frozen=True)
class PrivateFolder:
    """A temporary folder of this process; its mode is 0700."""

    path: Path
    lock: int
    """The file beside it, open and locked; a child that inherits it keeps the folder when its parent dies."""


@contextlib.contextmanager
def private_folder(prefix: str, parent: Path | None = None) -> Iterator[PrivateFolder]:
    """Make a folder with a random name, and remove it with its contents at the end.

    Another user could create a known name first.

    Args:
        prefix: first part of the name.
        parent: folder to make it in; None for the system's temporary folder.

    Raises:
        DiodeError: the folder cannot be made.
    """
    try:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(prefix, parent)
        folder = _make(prefix, parent)
    except OSError as error:
        raise DiodeError(f"no folder for temporary files: {first_line(error)}; set TMPDIR to one") from error
    try:
        yield folder
    finally:
        _remove(folder.path)
        os.close(folder.lock)


def remove_abandoned(prefix: str, parent: Path) -> None:
    """Remove this user's folders with names of ``prefix`` that no process uses."""
    for mark in parent.glob(f"{prefix}*{MARK}"):
        with contextlib.suppress(OSError):
            lock = os.open(mark, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.getuid() and _is_taken(mark, lock):
                    _remove(Path(str(mark).removesuffix(MARK)))
            finally:
                os.close(lock)


def _make(prefix: str, parent: Path) -> PrivateFolder:
    while True:
        lock, mark = tempfile.mkstemp(prefix=prefix, suffix=MARK, dir=parent)
        path = Path(mark.removesuffix(MARK))
        try:
            is_taken = _is_taken(Path(mark), lock)
        except OSError:  # this file system has no locks, so nobody takes it for abandoned either
            is_taken = True
        try:
            if is_taken:
                path.mkdir(mode=0o700)
                return PrivateFolder(path, lock)
        except OSError as error:
            Path(mark).unlink(missing_ok=True)
            if not isinstance(error, FileExistsError):
                os.close(lock)
                raise
        os.close(lock)


def _is_taken(mark: Path, lock: int) -> bool:
    """Lock the file ``mark``, open as ``lock``; False if another process has done so, or has removed it."""
    with contextlib.suppress(FileNotFoundError):
        return try_lock(lock) and os.path.samestat(mark.stat(), os.fstat(lock))
    return False


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        if not path.exists():  # else the next process tries again
            Path(f"{path}{MARK}").unlink(missing_ok=True)
