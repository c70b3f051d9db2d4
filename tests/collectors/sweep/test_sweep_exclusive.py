"""The lock that reserves a device for one sweep at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from diode_collectors.sweep.lane.exclusive import DeviceLock
from diode_store.errors import SettingsError

OPEN_FILES = Path("/proc/self/fd")


def test_a_folder_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the lock's file and what to set, and no file stays open."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = list(OPEN_FILES.iterdir())
    message = r"diode-sweep-gpu\.lock: this file system has no locks .*; set TMPDIR to a folder on a local disk$"
    for _ in range(2):
        with pytest.raises(SettingsError, match=message), DeviceLock(tmp_path, "gpu"):
            pass
    assert len(list(OPEN_FILES.iterdir())) == len(before)


def test_a_file_of_somebody_else(tmp_path: Path) -> None:
    """To lock a file, reading it is enough."""
    path = tmp_path / "diode-sweep-gpu.lock"
    path.touch(0o444)
    with DeviceLock(tmp_path, "gpu") as lock:
        assert os.fstat(lock._fd).st_ino == path.stat().st_ino
