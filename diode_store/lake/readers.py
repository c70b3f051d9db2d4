"""Readers of a local lake: each has a shared lock that names the state it reads.

A file that a state names may be deleted once no reader uses that state or an older one, however long it takes.
The locks are ``flock``s, which end with their process, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from diode_store.files import PRIVATE_FILE, try_lock

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIX = ".reading"


def hold(folder: Path, generation: int) -> int | None:
    """Return an open file whose shared lock says that ``generation`` is being read; closing it ends that.

    The caller must check afterwards that the lake still has this generation: else a file of it may have been
    deleted before the lock was there.

    Returns:
        The file, or None where it cannot be locked, in another user's folder, say.
    """
    path = folder / f"{generation:06d}{_SUFFIX}"
    try:
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _is_there(path, descriptor):
                return descriptor
            os.close(descriptor)
    except OSError:
        return None


def held(folder: Path, *, tidy: bool = False) -> list[int]:
    """Return the generations that have readers, in order.

    Args:
        folder: of the lake.
        tidy: delete the files of locks that are not held.
    """
    return sorted(n for n in _generations(folder) if _is_held(folder / f"{n:06d}{_SUFFIX}", tidy=tidy))


def newest_seen(folder: Path) -> int:
    """Return the newest generation that was ever read and may still be, 0 if none was."""
    return max(_generations(folder), default=0)


def _generations(folder: Path) -> list[int]:
    numbers = (path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))
    return [int(number) for number in numbers if number.isdecimal()]


def _is_held(path: Path, *, tidy: bool) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        if not try_lock(descriptor):
            return True
        if tidy:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return False


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether ``path`` is still the file that ``descriptor`` has open."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
