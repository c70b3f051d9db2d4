"""Readers of a local lake; each has a shared lock that names its state.

A state's file may be deleted once no reader uses that state or an older one, however long the reader takes. The locks
are ``flock``s, which end with their process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from diode_store.system.files import PRIVATE_FILE, open_regular, try_lock

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIX = ".reading"


def hold(folder: Path, generation: int) -> int | None:
    """Return an open file with a shared lock on ``generation``; closing it ends the reading.

    The caller must check afterwards that the lake still has this generation. Otherwise a file may have been deleted
    before the lock existed.

    Returns:
        The file, or None if it cannot be locked, as in another user's folder.
    """
    path = folder / f"{generation:06d}{_SUFFIX}"
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _is_there(path, descriptor):
                return descriptor
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def held(folder: Path, *, tidy: bool = False) -> list[int]:
    """Return the generations with readers, in order.

    Args:
        folder: the lake's folder.
        tidy: delete the files of unused locks.
    """
    return sorted(n for n in _generations(folder) if _is_held(folder / f"{n:06d}{_SUFFIX}", tidy=tidy))


def newest_seen(folder: Path) -> int:
    """Return the newest generation that may still have readers; 0 if none was ever read."""
    return max(_generations(folder), default=0)


def _generations(folder: Path) -> list[int]:
    numbers = (path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))
    return [int(number) for number in numbers if number.isdecimal()]


def _is_held(path: Path, *, tidy: bool) -> bool:
    try:
        descriptor = open_regular(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        return isinstance(error, PermissionError)  # another user's lock; other unreadable files are no locks
    try:
        if not try_lock(descriptor):
            return True
        if tidy:
            path.unlink(missing_ok=True)
    except OSError:  # without locks nobody can tell
        return True
    finally:
        os.close(descriptor)
    return False


def _is_there(path: Path, descriptor: int) -> bool:
    """Return whether ``path`` is still the file that ``descriptor`` has open."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
