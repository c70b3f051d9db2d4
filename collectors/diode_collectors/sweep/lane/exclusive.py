"""Reserves a device, and a core, for one process while it benchmarks."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

_FOR_ALL = 0o644


class DeviceLock:
    """Among all sweeps of a host, the holder of this lock is alone on the device.

    Compile workers keep every core busy that they may use; the launches of a benchmark must not wait for one, so
    the thread that holds the device moves to a core that nothing else of the sweep uses.
    """

    def __init__(self, folder: Path, name: str, core: int | None = None) -> None:
        """Prepare to lock.

        Args:
            folder: where the lock's file is.
            name: which device.
            core: the core to move to meanwhile; None stays.
        """
        self._path = folder / f"diode-sweep-{name}.lock"
        self._core = core
        self._fd = -1
        self._cores: set[int] = set()

    def __enter__(self) -> Self:
        """Wait for the device, however long it takes."""
        self._fd = _open_shared(self._path)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        if self._core is not None:
            self._cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {self._core})
        return self

    def __exit__(self, *_: object) -> None:
        """Release the device."""
        if self._core is not None:
            os.sched_setaffinity(0, self._cores)
        os.close(self._fd)  # releases the lock
        self._fd = -1


def _open_shared(path: Path) -> int:
    """Open the lock's file, which another user may have made: to lock it, reading it is enough."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, _FOR_ALL)
        with contextlib.suppress(PermissionError):  # another user was quicker
            os.fchmod(fd, _FOR_ALL)  # whatever the umask
        return fd
