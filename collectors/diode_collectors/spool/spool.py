"""Manage a spool, the folder through which measurements reach the warehouse.

Writers leave sealed segments (``*.seg``) in it and lock the unsealed ones (``*.open``) while they write.
``diode-ingest`` reads sealed segments and adopts unsealed ones of dead writers. Data that it cannot read goes to
``quarantine/``, with the reason beside it.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diode_collectors.spool.files import (
    create_file,
    file_mode,
    folder_bytes,
    is_still_at,
    locked,
    make_private_folder,
    make_shared_folder,
    open_folder,
    open_segment,
    read_beginning,
    spool_errors,
    stored_bytes,
    unreadable,
)
from diode_collectors.spool.quarantine import Quarantine
from diode_collectors.spool.writer import SpoolWriter
from diode_store.errors import SegmentError, SpoolError, SpoolInUseError
from diode_store.system.files import sync_folder, try_lock, write_at, write_durably
from diode_store.wire.segment_layout import HEADER_BYTES, end_to_bytes
from diode_store.wire.segments import OPEN_SUFFIX, SEALED_SUFFIX, SegmentReader, bytes_of_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from diode_collectors.spool.quarantine import Kept
    from diode_store.wire.segments import Frame, Reason

__all__ = ["Adopted", "Spool", "SpoolStatus", "SpoolWriter"]

PID_NAME = "ingest.lock"
"""File with the pid of the ingesting process. The lock itself is on the folder."""
QUARANTINE_NAME = "quarantine"
_LOCK_ATTEMPTS = 5
_LOCK_PAUSE_S = 0.05
_PID_BYTES = 32


@dataclass(frozen=True)
class Adopted:
    """An unsealed segment of a dead writer, sealed on its behalf."""

    path: Path
    """New name of the segment; the old one if it was empty and removed."""
    torn_bytes: int
    """Bytes of an unfinished write that were cut off its end."""
    problem: str | None = None
    """Reason why it could not be sealed and stays as it is, in one line."""


@dataclass(frozen=True)
class SpoolStatus:
    """Contents of a spool."""

    directory: Path
    segments: int
    """Segments that wait to be ingested: sealed ones and those of dead writers."""
    live_segments: int
    """Segments that are still being written."""
    bytes: int
    """Bytes of all these segments."""
    oldest_s: float | None
    """Seconds since the last write to the oldest waiting segment; None if none waits."""
    quarantined: int
    quarantined_by_reason: dict[str, int]
    """Quarantined files by reason; ``unknown`` counts missing and unreadable reasons."""
    quarantine_bytes: int
    unreadable: tuple[str, ...]
    """A line for each waiting segment that cannot be opened: the reason and the remedy."""
    ingest_pid: int | None
    """Process that ingests from this spool; 0 if its pid is unknown, None if there is none."""


class Spool:
    """The folder as ``diode-ingest`` sees it. Nothing is created before it is needed."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self.quarantine_directory = self.directory / QUARANTINE_NAME
        self._quarantine = Quarantine(self.quarantine_directory)

    def share_with(self, group: str) -> None:
        """Make the folder for all members of ``group``; writers give their files the same access.

        Raises:
            SpoolError: there is no such group, or the folder cannot be made or belongs to another user.
        """
        with spool_errors(self.directory, f"share the spool with the group {group}"):
            make_shared_folder(self.directory, group)

    def sealed(self) -> list[Path]:
        """Return the sealed segments, oldest first; names begin with the time of creation."""
        return self._named(SEALED_SUFFIX)

    def unsealed(self) -> list[Path]:
        """Return the unsealed segments, oldest first, whether or not their writer lives."""
        return self._named(OPEN_SUFFIX)

    def _named(self, suffix: str) -> list[Path]:
        with spool_errors(self.directory, "list the spool"):
            try:
                return sorted(p for p in self.directory.iterdir() if p.suffix == suffix and not p.name.startswith("."))
            except FileNotFoundError:
                return []

    @contextlib.contextmanager
    def reader(self, segment: Path) -> Iterator[SegmentReader | None]:
        """Open a segment for reading; an unsealed one is locked meanwhile.

        Yields:
            Its reader; None if the segment is gone or still being written.

        Raises:
            SegmentError: a format that this version does not know.
            OSError: the segment cannot be read.
        """
        if segment.suffix == OPEN_SUFFIX:
            with locked(segment) as fd:
                yield None if fd is None else SegmentReader(bytes_of_file(fd), sealed=False)
            return
        try:
            fd = open_segment(segment, os.O_RDONLY)
        except FileNotFoundError:
            yield None
            return
        try:
            yield SegmentReader(bytes_of_file(fd), sealed=True)
        finally:
            os.close(fd)

    def adopt_idle(self) -> list[Adopted]:
        """Seal every unsealed segment of a dead writer, and cut off an unfinished write.

        Acknowledged records are whole frames, so they are kept. A segment that cannot be sealed does not stop the
        others.

        Raises:
            SpoolError: the folder cannot be read.
        """
        adopted = []
        for path in self.unsealed():
            try:
                with locked(path) as fd:
                    if fd is None:
                        continue
                    with spool_errors(path, "seal the segment of a writer that is gone"):
                        adopted.append(_adopt(path, fd))
            except SegmentError as error:
                adopted.append(Adopted(path, 0, f"{path}: {error}"))
            except SpoolError as error:
                adopted.append(Adopted(path, 0, str(error)))
            except OSError as error:
                adopted.append(Adopted(path, 0, f"{path}: {unreadable(error)}"))
        return adopted

    def remove(self, segment: Path) -> None:
        """Remove a segment whose records are safe elsewhere.

        The removal does not wait for the disk. If a crash brings the segment back, its records are found in the
        warehouse.

        Raises:
            SpoolError: the segment cannot be removed.
        """
        with spool_errors(segment, "remove the ingested segment"):
            segment.unlink(missing_ok=True)

    def add(self, segment: Path) -> bool:
        """Copy a sealed segment from elsewhere into the spool, to be ingested from there.

        Returns:
            True if it was copied; False if the spool has a segment of that name.

        Raises:
            SpoolError: the segment cannot be copied.
        """
        target = self.directory / segment.name
        with spool_errors(target, "copy a segment into the spool"):
            make_private_folder(self.directory)
            if os.path.lexists(target):
                return False
            write_durably({target: segment.read_bytes()}, mode=file_mode(self.directory))
        return True

    def quarantine(self, segment: Path, frame: Frame, reason: Reason, message: str) -> Path:
        """Keep a frame that could not be ingested, with the reason beside it; a second call changes nothing.

        A whole frame becomes a segment of its own. It can be put back into the spool once its reason is gone, for
        example after an upgrade. Damaged bytes become a ``.bin``.

        Returns:
            The file.

        Raises:
            SpoolError: the file cannot be written.
        """
        return self._quarantine.put_frame(segment, frame, reason, message)

    def quarantine_segment(self, segment: Path, reason: Reason, message: str) -> Path:
        """Move a whole segment into quarantine, with the reason beside it; return its new place.

        Raises:
            SpoolError: the segment cannot be moved.
        """
        return self._quarantine.put_segment(segment, reason, message)

    def quarantined(self) -> list[Kept]:
        """Return the files in quarantine and their reasons, the newest first.

        Raises:
            SpoolError: the folder cannot be read.
        """
        return self._quarantine.kept()

    def trim_quarantine(self, excess_bytes: int) -> tuple[int, int]:
        """Remove the oldest damaged bytes from quarantine, never anything readable.

        Returns:
            The numbers of removed files and of freed bytes.

        Raises:
            SpoolError: a file cannot be removed.
        """
        return self._quarantine.trim(excess_bytes)

    @contextlib.contextmanager
    def lock(self) -> Iterator[Callable[[], bool]]:
        """Lock this spool for ingesting.

        Yields:
            A function that returns True if the locked folder was deleted or replaced. Another process may have locked
            the new folder.

        Raises:
            SpoolInUseError: another process has it; the message names its pid.
            SpoolError: the spool or its lock cannot be made.
        """
        with spool_errors(self.directory, "lock the spool"):
            make_private_folder(self.directory)
            fd = open_folder(self.directory)
        try:
            with spool_errors(self.directory, "lock the spool"):
                self._take(fd)
            yield lambda: self._is_lost(fd)
        finally:
            os.close(fd)

    def _take(self, fd: int) -> None:
        for _ in range(_LOCK_ATTEMPTS):
            if try_lock(fd):
                # A full disk cannot hold the pid, but ingesting frees space there.
                with contextlib.suppress(OSError):
                    self._leave_pid()
                return
            # A status command holds the lock for a moment.
            time.sleep(_LOCK_PAUSE_S)
        who = self._pid()
        raise SpoolInUseError(
            f"{self.directory}: another diode-ingest{f' (pid {who})' if who else ''} is running on this spool; "
            "stop it first, or name another spool with --spool",
            who,
        )

    def _is_lost(self, fd: int) -> bool:
        try:
            return not is_still_at(fd, self.directory)
        except OSError:  # the next pass reports it
            return False

    def _leave_pid(self) -> None:
        """Write the pid to a new file, because an old one may be a link or another user's."""
        path = self.directory / PID_NAME
        path.unlink(missing_ok=True)
        fd = create_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        try:
            write_at(fd, 0, f"{os.getpid()}\n".encode())
        finally:
            os.close(fd)

    def lock_holder(self) -> int | None:
        """Return the pid of the ingesting process; 0 if it is unknown, None if there is no such process."""
        with contextlib.suppress(FileNotFoundError), spool_errors(self.directory, "read the lock"):
            return self._lock_holder()
        return None

    def _lock_holder(self) -> int | None:
        try:
            fd = open_folder(self.directory)
        except FileNotFoundError:
            return None
        try:
            return None if try_lock(fd, shared=True) else self._pid()
        finally:
            os.close(fd)

    def _pid(self) -> int:
        try:
            text = read_beginning(self.directory / PID_NAME, _PID_BYTES).strip()
        except OSError:
            return 0
        return int(text) if text.isdigit() else 0

    def status(self) -> SpoolStatus:
        """Return the contents of the spool without changing anything.

        Raises:
            SpoolError: the folder cannot be read.
        """
        unsealed = self.unsealed()
        idle = [path for path in unsealed if _is_idle(path)]
        names = (*self.sealed(), *idle)
        waiting = [s for path in names if (s := _stat(path)) is not None]
        live = [s for path in set(unsealed) - set(idle) if (s := _stat(path)) is not None]
        oldest = min((s.st_mtime for s in waiting), default=None)
        reasons = self._quarantine.by_reason()
        return SpoolStatus(
            directory=self.directory,
            segments=len(waiting),
            live_segments=len(live),
            bytes=sum(map(stored_bytes, (*waiting, *live))),
            oldest_s=None if oldest is None else max(0.0, time.time() - oldest),
            quarantined=sum(reasons.values()),
            quarantined_by_reason=reasons,
            quarantine_bytes=folder_bytes(self.quarantine_directory),
            unreadable=tuple(why for path in names if (why := _why_unreadable(path)) is not None),
            ingest_pid=self.lock_holder(),
        )


def _adopt(path: Path, fd: int) -> Adopted:
    reader = SegmentReader(bytes_of_file(fd), sealed=False)
    found = sum(1 for _ in reader.frames())
    if not found and reader.header is None and reader.end > HEADER_BYTES:
        return Adopted(_renamed(path), 0)  # not a writer's file: ingesting reports and quarantines it
    if not found:
        path.unlink()
        sync_folder(path.parent)
        return Adopted(path, reader.end)
    if not reader.has_end_mark:
        os.ftruncate(fd, reader.whole_bytes)
        write_at(fd, reader.whole_bytes, end_to_bytes(reader.good_frames))
        os.fsync(fd)
    return Adopted(_renamed(path), reader.torn_bytes)


def _renamed(path: Path) -> Path:
    """Give an unsealed segment the name of a sealed one."""
    target = path.with_suffix(SEALED_SUFFIX)
    if os.path.lexists(target):
        raise SpoolError(f"{path}: not sealed, as it would replace {target.name}; rename one of them")
    sealed = path.rename(target)
    sync_folder(path.parent)
    return sealed


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _why_unreadable(path: Path) -> str | None:
    try:
        os.close(open_segment(path, os.O_RDWR if path.suffix == OPEN_SUFFIX else os.O_RDONLY))
    except FileNotFoundError:  # ingested meanwhile
        return None
    except OSError as error:
        return f"{path}: {unreadable(error)}"
    return None


def _is_idle(path: Path) -> bool:
    """Return True if an unsealed segment waits to be ingested; one that cannot be opened waits too."""
    try:
        with locked(path) as fd:
            return fd is not None
    except OSError:
        return True
