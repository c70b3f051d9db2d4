"""Reservation of a device, and a core, for one process while it benchmarks."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Self

from diode_store.errors import SettingsError
from diode_store.system.files import wait_for_lock

if TYPE_CHECKING:
    from pathlib import Path

_FOR_ALL = 0o644


class DeviceLock:
    """Lock whose holder is alone on the device among all sweeps of a host.

    Compile workers keep all their cores busy, and the launches of a benchmark must not wait for one. So the thread that
    holds the device moves to a core that nothing else of the sweep uses.
    """

    def __init__(self, folder: Path, name: str, core: int | None = None) -> None:
        """Prepare to lock.

        Args:
            folder: Folder of the lock's file.
            name: Name of the device.
            core: Core to move to while locked; None to stay.
        """
        self._path = folder / f"diode-sweep-{name}.lock"
        self._core = core
        self._fd = -1
        self._cores: set[int] = set()

    def __enter__(self) -> Self:
        """Wait for the device, however long it takes.

        Raises:
            SettingsError: the lock's file cannot be opened or locked.
        """
        try:
            self._fd = _open_shared(self._path)
            wait_for_lock(self._fd)
        except OSError as error:
            self._close()
            remedy = "set TMPDIR to a folder on a local disk"
            raise SettingsError(f"{self._path}: {error.strerror}, so the device cannot be reserved; {remedy}") from None
        if self._core is not None:
            self._cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {self._core})
        return self

    def __exit__(self, *_: object) -> None:
        """Release the device."""
        if self._core is not None:
            os.sched_setaffinity(0, self._cores)
        self._close()  # releases the lock

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open_shared(path: Path) -> int:
    """Open the lock's file, which another user may have made. Read access suffices to lock it, except on NFS."""
    try:
        with contextlib.suppress(PermissionError):
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # does not wait at a pipe
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FOR_ALL)
        with contextlib.suppress(PermissionError):  # another user made the file meanwhile
            os.fchmod(fd, _FOR_ALL)  # whatever the umask
        return fd
