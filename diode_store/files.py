"""Atomic, durable and lockable files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PRIVATE_FILE = 0o600
_ANY_WRITES = 0o222


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` at the end; after an error it is removed.

    Raises:
        OSError: it cannot replace ``path``.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        yield beside
        beside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def write_durably(contents: Mapping[Path, bytes], *, mode: int = PRIVATE_FILE) -> None:
    """Write each file atomically; all are on disk when this returns.

    Every temporary file is complete before the first one replaces its target.

    Args:
        contents: path → content.
        mode: the files' permission bits.

    Raises:
        OSError: one cannot be written.
    """
    ready: dict[Path, Path] = {}
    try:
        for path, data in contents.items():
            fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
            ready[path] = Path(name)
            try:
                write_at(fd, 0, data)
                os.fchmod(fd, mode)
                os.fsync(fd)
            finally:
                os.close(fd)
        for path, temporary in ready.items():
            temporary.replace(path)
    finally:
        for temporary in ready.values():
            temporary.unlink(missing_ok=True)
    for folder in {path.parent for path in contents}:
        sync_folder(folder)


def write_at(fd: int, offset: int, data: bytes) -> None:
    """Write all of ``data``, in as many calls as the kernel needs."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def sync_folder(path: Path) -> None:
    """Make the creation, renaming or removal of files in ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Take the ``flock`` of an open file unless another process has it."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread is in this block for the same folder.

    Where the file system has no locks for folders, such as some network's, nothing is waited for.

    Raises:
        OSError: the folder cannot be opened.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_another(path: Path, beginning: bytes) -> bool:
    """Return whether a file with content is there that does not begin as what would replace it does."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            found = stream.read(len(beginning))
    except OSError:
        return True
    return bool(found) and found != beginning


def barrier_to(folder: Path) -> str | None:
    """Return why this user cannot write a folder, or make it where it will be; None if nothing is known against it."""
    place = next(path for path in (folder, *folder.absolute().parents) if os.access(path, os.F_OK))
    if not place.is_dir():
        return f"{place} is not a folder"
    # Root may write every folder by its mode; /proc and /sys, which have no disk behind them, take nothing even so.
    is_of_the_kernel = not place.stat().st_mode & _ANY_WRITES and not os.statvfs(place).f_blocks
    return f"{place} is not writable" if is_of_the_kernel or not os.access(place, os.W_OK | os.X_OK) else None
