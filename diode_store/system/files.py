"""Atomic, durable and lockable files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from diode_store.values.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PRIVATE_FILE = 0o600
NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
"""Numbers of the errors with which a file system, such as a network's, refuses ``flock``."""
_SHOWN_NAME = 40
_LOOK = "check the path, its owner and its mode"
_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EROFS), _LOOK),
    **dict.fromkeys(NO_LOCKS, "use a folder on a local disk"),
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EIO: "check the disk",
    errno.ESTALE: "mount the folder again",
}
_ANY_WRITES = 0o222
MAX_SMALL_FILE = 64 * MIB
"""Limit on the bytes of a small file: a description, settings, picks, corrections or a card."""


def real_path(path: Path | str) -> Path:
    """Return a path without links; a link that leads to itself stays, where ``Path.resolve`` may raise RuntimeError."""
    return Path(os.path.realpath(path))


def expanded(path: Path | str, error: Callable[[str], Exception]) -> Path:
    """Return a path with the user's home in place of ``~``.

    Args:
        path: the path.
        error: makes the exception from a message.

    Raises:
        Exception: the exception of ``error``, if the user does not exist.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise error(f"{path}: there is no such user; write the path out") from None


def read_bounded(path: Path, most: int = MAX_SMALL_FILE) -> bytes:
    """Return the content of a regular file, which may be a link to one.

    Args:
        path: the file.
        most: bytes that are taken into memory at most.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is too large.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
        return file.read(size)  # a file of the kernel has size 0, and may never end


def bounded(file: IO[bytes], most: int = MAX_SMALL_FILE) -> bytes:
    """Return the rest of an open file, as ``read_bounded`` does.

    Raises:
        OSError: the file cannot be read, or is too large.
    """
    content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", file.name)
    return content


def unusable_path(error: OSError) -> str | None:
    """Return in one line which path cannot be used, why, and what to do; None if the error is not a path's fault."""
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{error.filename}: {error.strerror}; {remedy}" if error.filename is not None and remedy else None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` at the end; after an error it is removed.

    Raises:
        OSError: ``path`` cannot be replaced.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        yield beside
        beside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def leave_note(path: Path, text: str) -> None:
    """Write a small private file that only saves work: in a folder that cannot be written there is none."""
    with contextlib.suppress(OSError), whole_file(path) as beside:
        beside.touch(PRIVATE_FILE)
        beside.write_text(text, encoding="utf-8")


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
            fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:_SHOWN_NAME]}.", suffix=".tmp")
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
    """Take the ``flock`` of an open file or folder unless another process has it.

    Raises:
        OSError: the file cannot be locked. The error names the file; its number is in ``NO_LOCKS`` on a file system
            without locks.
    """
    try:
        _flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(fd: int) -> None:
    """Take the ``flock`` of an open file, however long another process holds it.

    Raises:
        OSError: the file system has no locks.
    """
    _flock(fd, fcntl.LOCK_EX)


def _flock(fd: int, how: int) -> None:
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        raise
    except OSError as error:
        message = f"this file system has no locks ({error.strerror})" if error.errno in NO_LOCKS else error.strerror
        raise OSError(error.errno, message, _path_of(fd)) from None


def _path_of(fd: int) -> str | None:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    return None


def open_regular(path: Path, flags: int) -> int:
    """Open an existing regular file with ``flags`` and return the descriptor; others are refused without waiting.

    Raises:
        OSError: the file cannot be opened, or is not regular: a pipe would keep its reader waiting forever.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def entries_of(folder: Path | str) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """Yield the entries of ``folder``, links as they are, and nothing of what cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                yield entry, entry.stat(follow_symlinks=False)


def entries_below(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """Yield what ``folder`` and those below it hold beside folders, as ``entries_of`` does."""
    folders = [str(folder)]
    while folders:
        for entry, found in entries_of(folders.pop()):
            if stat.S_ISDIR(found.st_mode):
                folders.append(entry.path)
            else:
                yield entry, found


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread is in this block for the same folder.

    A file system without locks for folders, such as some network file systems, means no wait.

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
    """Return whether ``path`` holds something other than an empty file or a file with this ``beginning``."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb", buffering=0) as stream:
            found = stream.read(len(beginning))
    except OSError:
        return os.path.lexists(path)
    return found not in {beginning, b""}  # ``found`` is None for a device that has no data yet


def barrier_to(folder: Path) -> str | None:
    """Return why this user cannot write or make a folder; None if nothing prevents it."""
    place = next(path for path in (folder, *folder.absolute().parents) if os.access(path, os.F_OK))
    if not place.is_dir():
        return f"{place} is not a folder"
    # Root may write every folder by its mode; /proc and /sys, which have no disk behind them, take nothing even so.
    is_of_the_kernel = not place.stat().st_mode & _ANY_WRITES and not os.statvfs(place).f_blocks
    return f"{place} is not writable" if is_of_the_kernel or not os.access(place, os.W_OK | os.X_OK) else None
