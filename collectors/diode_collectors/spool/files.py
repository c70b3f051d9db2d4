"""Open the spool's files and folders: private, locked, and with one-line errors."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from typing import TYPE_CHECKING

from diode_store.errors import SpoolError, SpoolFullError
from diode_store.system.files import NO_LOCKS, PRIVATE_FILE, entries_below, open_regular, sync_folder, try_lock
from diode_store.wire.segments import OPEN_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRIVATE_FOLDER = 0o700
SHARED_FOLDER = 0o2770
SHARED_FILE = 0o660
_SHARED_BITS = stat.S_ISGID | stat.S_IWGRP
_NO_FILE = frozenset({errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP, errno.EMLINK})
_LARGE_BYTES = 2**30
_MOST_OF_HOLES = 2
"""Largest ratio of a large segment's size to its blocks on the disk."""
_BLOCK_BYTES = 512
"""Unit of ``st_blocks``, see stat(2)."""
_IS_LINK = "it is a link"
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
        if error.errno in NO_LOCKS:
            raise SpoolError(f"{message}; set DIODE_SPOOL to a folder on a local disk") from error
        raise SpoolError(f"{message}; check the path and its permissions, or set another with DIODE_SPOOL") from error


def make_private_folder(path: Path) -> None:
    """Create ``path`` for its user alone; leave an existing folder as it is."""
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
        raise SpoolError(f"there is no group {group!r}; create it with `groupadd {group}`") from None


def make_shared_folder(path: Path, group: str) -> None:
    """Create ``path`` for the members of ``group``, or give them our own folder.

    A folder that they have already is not changed.

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
    """Create ``path`` with its parent's access rights; leave an existing folder as it is.

    Raises:
        OSError: the folder cannot be made, or ``path`` is a link that may lead out of its parent.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, _IS_LINK, str(path))
    if path.is_dir():
        return
    make_private_folder(path)
    if is_shared(path.parent):
        path.chmod(SHARED_FOLDER)


def is_shared(folder: Path) -> bool:
    """Return True if a group shares ``folder``: its setgid bit is set, and the group may write."""
    return folder.stat().st_mode & _SHARED_BITS == _SHARED_BITS


def file_mode(folder: Path) -> int:
    """Return the mode of files in ``folder``."""
    return SHARED_FILE if is_shared(folder) else PRIVATE_FILE


def create_file(path: Path, flags: int) -> int:
    """Open ``path`` with ``flags``, for the group in a shared folder and else the user alone; return the descriptor."""
    mode = file_mode(path.parent)
    fd = os.open(path, flags, mode)
    # The umask may have removed bits. A file that another user made has its mode already.
    if mode == SHARED_FILE and os.fstat(fd).st_uid == os.geteuid():
        os.fchmod(fd, mode)
    return fd


def open_to_read(path: Path) -> int:
    """Open a segment anywhere, only to read it; return the descriptor.

    Raises:
        OSError: the segment cannot be opened, is not a regular file, or is a file of holes.
    """
    fd = open_regular(path, os.O_RDONLY)
    try:
        _check_size(path, os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def open_segment(path: Path, flags: int) -> int:
    """Open a segment of a spool that a writer can have made; return the descriptor.

    Other users may put entries there to have a file of this user read, cut or removed.

    Raises:
        FileNotFoundError: the segment is gone, which needs no remedy.
        OSError: the segment cannot be opened, or ``check_segment`` refuses it.
    """
    try:
        fd = open_regular(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = _IS_LINK
        raise
    try:
        check_segment(path, os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def check_segment(path: Path, found: os.stat_result) -> None:
    """Refuse an entry that no writer can have made.

    Args:
        path: entry of a spool with a segment's name.
        found: its status, as ``lstat`` or ``fstat`` returns it.

    Raises:
        OSError: ``path`` is not a regular file, is a file of holes, is another user's in a private spool, or is an
            unsealed segment with a second name.
    """
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    folder = path.parent.stat()
    if found.st_uid not in {os.geteuid(), folder.st_uid} and folder.st_mode & _SHARED_BITS != _SHARED_BITS:
        raise OSError(errno.EPERM, "it belongs to another user, and no group shares this spool", str(path))
    _check_size(path, found)
    check_one_name(path, found)


def check_one_name(path: Path, found: os.stat_result) -> None:
    """Refuse an unsealed segment with a second name: sealing it would change the file of that name.

    Raises:
        OSError: the segment has a second name.
    """
    if path.suffix == OPEN_SUFFIX and found.st_nlink > 1:
        raise OSError(errno.EMLINK, "it is a hard link, and its other name may be outside the spool", str(path))


def stored_bytes(found: os.stat_result) -> int:
    """Return a file's size; for a large file that is mostly a hole, the size of its blocks on the disk."""
    on_disk = _BLOCK_BYTES * found.st_blocks
    return on_disk if found.st_size > max(_LARGE_BYTES, _MOST_OF_HOLES * on_disk) else found.st_size


def _check_size(path: Path, found: os.stat_result) -> None:
    """Refuse a file of holes, which takes days to search. No segment is one, since payloads are compressed."""
    if stored_bytes(found) < found.st_size:
        raise OSError(errno.EINVAL, "most of it is a hole, so it is no segment", str(path))


def unreadable(error: OSError) -> str:
    """Return why a segment cannot be read, and the remedy."""
    if error.errno in {errno.EACCES, errno.EPERM}:
        remedy = "check its owner and its mode"
    elif error.errno in NO_LOCKS:
        remedy = "set DIODE_SPOOL to a folder on a local disk"
    else:
        remedy = "move it away" if error.errno in _NO_FILE else "check the disk"
    return f"cannot be read: {error.strerror}; {remedy}"


def check_writable(path: Path) -> None:
    """Create the spool folder ``path`` if missing, and make sure that it can be written; leave nothing in it.

    Raises:
        SpoolError: the folder cannot be created or written.
    """
    with spool_errors(path, "create the spool folder"):
        make_private_folder(path)
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        error.filename = None  # the temporary file has no useful name
        with spool_errors(path, "write the spool"):
            raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int | None]:
    """Open a segment and take its ``flock``.

    Yields:
        The file descriptor; None if the file is gone or another process holds its lock.

    Raises:
        OSError: as for ``open_segment``.
    """
    try:
        fd = open_segment(path, os.O_RDWR)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd if try_lock(fd) and is_still_at(fd, path) else None
    finally:
        os.close(fd)


def is_still_at(fd: int, path: Path) -> bool:
    """Return True if ``fd`` is the file or folder at ``path``, which may have been renamed, removed or replaced."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def open_folder(path: Path) -> int:
    """Open a folder, to lock it; return the descriptor."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def read_beginning(path: Path, most: int) -> bytes:
    """Return at most the first ``most`` bytes of a regular file; do not follow a link.

    Raises:
        OSError: the file cannot be read.
    """
    fd = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return os.pread(fd, most, 0)
    finally:
        os.close(fd)


def folder_bytes(path: Path) -> int:
    """Return the bytes of the files in ``path`` and its sub-folders."""
    return sum(stored_bytes(found) for _, found in entries_below(path))


def changed_ns(folder: Path) -> int | None:
    """Return when a file in ``folder`` was last added or removed; None if there is no folder."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return None
