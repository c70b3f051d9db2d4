"""The spool's files and folders: private, locked, and with one-line errors."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.errors import SpoolError, SpoolFullError
from diode_store.files import PRIVATE_FILE, sync_folder, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

PRIVATE_FOLDER = 0o700
SHARED_FOLDER = 0o2770
SHARED_FILE = 0o660
_SHARED_BITS = stat.S_ISGID | stat.S_IWGRP
_NO_FILE = frozenset({errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP})
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def spool_errors(path: Path, what: str) -> Iterator[None]:
    """Turn an ``OSError`` into one of ours.

    Raises:
        SpoolFullError: the disk, or the user's share of it, is full.
        SpoolError: anything else; the message names ``path`` and what could not be done.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or path
        message = f"{where}: cannot {what}: {error.strerror}"
        if error.errno in _NO_SPACE:
            raise SpoolFullError(f"{message}; make room, or start `diode-ingest` to empty the spool") from error
        raise SpoolError(f"{message}; check the path and its permissions, or set another with DIODE_SPOOL") from error


def make_private_folder(path: Path) -> None:
    """Create ``path`` for its user alone; one that exists is left as it is."""
    if path.is_dir():
        return
    path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    sync_folder(path.parent)


def group_id(group: str) -> int:
    """Return the number of ``group``.

    Raises:
        SpoolError: there is no such group.
    """
    import grp

    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise SpoolError(f"there is no group {group}; create it with `groupadd {group}`") from None


def make_shared_folder(path: Path, group: str) -> None:
    """Create ``path`` for the members of ``group``, or give them our own folder; one that is theirs is not changed.

    Raises:
        SpoolError: there is no such group.
        OSError: the folder cannot be made, or belongs to another user.
    """
    gid = group_id(group)
    make_private_folder(path)
    found = path.stat()
    if found.st_gid == gid and is_shared(path):
        return
    os.chown(path, -1, gid)
    path.chmod(SHARED_FOLDER)


def make_folder_inside(path: Path) -> None:
    """Create ``path`` with its parent's access rights; one that exists is left as it is."""
    if path.is_dir():
        return
    make_private_folder(path)
    if is_shared(path.parent):
        path.chmod(SHARED_FOLDER)


def is_shared(folder: Path) -> bool:
    """Whether ``folder`` is shared by a group: its setgid bit is set, and the group may write."""
    return folder.stat().st_mode & _SHARED_BITS == _SHARED_BITS


def file_mode(folder: Path) -> int:
    """Return the mode of files in ``folder``."""
    return SHARED_FILE if is_shared(folder) else PRIVATE_FILE


def create_file(path: Path, flags: int) -> int:
    """Open ``path`` with ``flags``, for its user alone or, in a shared folder, for the group; return the descriptor."""
    mode = file_mode(path.parent)
    fd = os.open(path, flags, mode)
    # The umask may have taken bits off; a file that another user made has its mode already.
    if mode == SHARED_FILE and os.fstat(fd).st_uid == os.geteuid():
        os.fchmod(fd, mode)
    return fd


def open_regular(path: Path, flags: int) -> int:
    """Open an existing regular file with ``flags`` and return the descriptor; others are refused without waiting.

    Raises:
        OSError: it cannot be opened, or is not a regular file: a pipe would keep its reader waiting for ever.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def open_segment(path: Path, flags: int) -> int:
    """Open a segment as ``open_regular`` does.

    Raises:
        FileNotFoundError: it is gone, which needs no remedy.
        OSError: it cannot be opened, is no regular file, or is a link to nothing.
    """
    try:
        return open_regular(path, flags)
    except FileNotFoundError:
        if path.is_symlink() and not path.exists():
            raise OSError(errno.EINVAL, "it is a link to a file that is not there", str(path)) from None
        raise


def unreadable(error: OSError) -> str:
    """Return why a segment cannot be read, and what to do about it."""
    if error.errno in {errno.EACCES, errno.EPERM}:
        remedy = "check its owner and its mode"
    else:
        remedy = "move it away" if error.errno in _NO_FILE else "check the disk"
    return f"cannot be read: {error.strerror}; {remedy}"


def check_writable(path: Path) -> None:
    """Create the spool folder ``path`` if need be, and make sure that it can be written; nothing is left in it.

    Raises:
        SpoolError: it cannot be created or written.
    """
    with spool_errors(path, "create the spool folder"):
        make_private_folder(path)
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        error.filename = None  # of a file that has no name
        with spool_errors(path, "write the spool"):
            raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int | None]:
    """Open a segment and take its ``flock``.

    Yields:
        The file descriptor; None when the file is gone, or another process holds its lock.

    Raises:
        OSError: as for ``open_segment``.
    """
    try:
        fd = open_segment(path, os.O_RDWR)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd if try_lock(fd) and _is_still_at(fd, path) else None
    finally:
        os.close(fd)


def _is_still_at(fd: int, path: Path) -> bool:
    """Whether ``fd`` is the file at ``path``: it may have been renamed or removed before it was locked."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def folder_bytes(path: Path) -> int:
    """Return how many bytes the files in ``path`` and its sub-folders have."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(folder) / name).lstat().st_size
    return total


def changed_ns(folder: Path) -> int | None:
    """Return when a file in ``folder`` was last added or removed; None if the folder is not there."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return None
