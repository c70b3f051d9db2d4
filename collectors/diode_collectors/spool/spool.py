"""A spool: the folder through which measurements go from the processes that make them to the warehouse.

Writers leave sealed segments (``*.seg``) in it and lock the unsealed ones (``*.open``) while they write them.
``diode-ingest`` reads the sealed ones, adopts unsealed ones whose writer died, and puts what it cannot read into
``quarantine/`` with the reason beside it.
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
    locked,
    make_private_folder,
    make_shared_folder,
    open_segment,
    spool_errors,
    unreadable,
)
from diode_collectors.spool.quarantine import Quarantine
from diode_collectors.spool.writer import SpoolWriter
from diode_store.errors import SegmentError, SpoolError, SpoolInUseError
from diode_store.files import sync_folder, try_lock, write_at, write_durably
from diode_store.wire.segment_layout import end_to_bytes
from diode_store.wire.segments import OPEN_SUFFIX, SEALED_SUFFIX, SegmentReader, bytes_of_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from diode_collectors.spool.quarantine import Kept
    from diode_store.wire.segments import Frame, Reason

__all__ = ["Adopted", "Spool", "SpoolStatus", "SpoolWriter"]

LOCK_NAME = "ingest.lock"
QUARANTINE_NAME = "quarantine"
_LOCK_ATTEMPTS = 5
_LOCK_PAUSE_S = 0.05


@dataclass(frozen=True)
class Adopted:
    """An unsealed segment whose writer is gone, sealed on its behalf."""

    path: Path
    """Its new name; the old one when there was nothing in it and it was removed."""
    torn_bytes: int
    """How many bytes of an unfinished write were cut off its end."""
    problem: str | None = None
    """Why it could not be sealed, in one line; it was left as it is."""


@dataclass(frozen=True)
class SpoolStatus:
    """What is in a spool."""

    directory: Path
    segments: int
    """How many wait to be ingested: sealed ones and those whose writer is gone."""
    live_segments: int
    """How many are still being written."""
    bytes: int
    """Of all these segments together."""
    oldest_s: float | None
    """Seconds since the oldest waiting segment was last written to; None when none waits."""
    quarantined: int
    quarantined_by_reason: dict[str, int]
    """How many of these for each reason; ``unknown`` where that was not left or cannot be read."""
    quarantine_bytes: int
    ingest_pid: int | None
    """The process that ingests from this spool; 0 when its pid is unknown, None when there is none."""


class Spool:
    """The folder as ``diode-ingest`` sees it. Nothing is created before it is needed."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self.quarantine_directory = self.directory / QUARANTINE_NAME
        self._quarantine = Quarantine(self.quarantine_directory)

    def share_with(self, group: str) -> None:
        """Make the folder for every member of ``group``; writers follow its mode, and so do their files.

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
            Its reader; None when the segment is gone, or is still being written.

        Raises:
            SegmentError: a format this version does not know.
            OSError: it cannot be read.
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
        """Seal every unsealed segment whose writer is gone, cutting off what it did not finish.

        Acknowledged records are whole frames, so they are kept. One that cannot be sealed does not stop the others.

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

        Not made durable, which would wait for the disk: one that a crash brings back is found to be stored already.

        Raises:
            SpoolError: it cannot be removed.
        """
        with spool_errors(segment, "remove the ingested segment"):
            segment.unlink(missing_ok=True)

    def add(self, segment: Path) -> bool:
        """Copy a sealed segment from elsewhere into the spool, to be ingested from it.

        Returns:
            Whether it was copied; a segment of that name may be there already.

        Raises:
            SpoolError: it cannot be copied.
        """
        target = self.directory / segment.name
        with spool_errors(target, "copy a segment into the spool"):
            make_private_folder(self.directory)
            if target.exists():
                return False
            write_durably({target: segment.read_bytes()}, mode=file_mode(self.directory))
        return True

    def quarantine(self, segment: Path, frame: Frame, reason: Reason, message: str) -> Path:
        """Keep what could not be ingested, with the reason beside it; doing so twice changes nothing.

        A whole frame becomes a segment of its own, which can be put back into the spool once its reason is gone
        (a newer torch-diode is installed, say); damaged bytes become a ``.bin``.

        Returns:
            The file.

        Raises:
            SpoolError: it cannot be written.
        """
        return self._quarantine.put_frame(segment, frame, reason, message)

    def quarantine_segment(self, segment: Path, reason: Reason, message: str) -> Path:
        """Move a whole segment into quarantine, with the reason beside it; return its new place.

        Raises:
            SpoolError: it cannot be moved.
        """
        return self._quarantine.put_segment(segment, reason, message)

    def quarantined(self) -> list[Kept]:
        """Return what is in quarantine and why, the newest first.

        Raises:
            SpoolError: the folder cannot be read.
        """
        return self._quarantine.kept()

    def trim_quarantine(self, excess_bytes: int) -> tuple[int, int]:
        """Remove the oldest damaged bytes from quarantine, never what may still be read.

        Returns:
            How many files were removed, and how many bytes that freed.

        Raises:
            SpoolError: one cannot be removed.
        """
        return self._quarantine.trim(excess_bytes)

    @contextlib.contextmanager
    def lock(self) -> Iterator[Callable[[], bool]]:
        """Lock this spool for ingesting.

        Yields:
            A function that returns whether it is lost because the spool was deleted: another process may have it then.

        Raises:
            SpoolInUseError: another process has it; the message names its pid.
            SpoolError: the spool or its lock cannot be made.
        """
        path = self.directory / LOCK_NAME
        with spool_errors(path, "lock the spool"):
            make_private_folder(self.directory)
            fd = create_file(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            self._take(fd)
            yield lambda: os.fstat(fd).st_nlink == 0
        finally:
            os.close(fd)

    def _take(self, fd: int) -> None:
        for _ in range(_LOCK_ATTEMPTS):
            if try_lock(fd):
                # On a full disk the pid is not written; ingesting is what makes room there.
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, 0)
                    write_at(fd, 0, f"{os.getpid()}\n".encode())
                return
            # A status command holds the lock for a moment.
            time.sleep(_LOCK_PAUSE_S)
        who = _pid(fd)
        raise SpoolInUseError(
            f"{self.directory}: another diode-ingest{f' (pid {who})' if who else ''} is running on this spool; "
            "stop it first, or name another spool with --spool",
            who,
        )

    def lock_holder(self) -> int | None:
        """Return the pid of the process that ingests; 0 if it is unknown, None if there is none."""
        with contextlib.suppress(FileNotFoundError), spool_errors(self.directory, "read the lock"):
            return self._lock_holder()
        return None

    def _lock_holder(self) -> int | None:
        try:
            fd = os.open(self.directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return None if try_lock(fd, shared=True) else _pid(fd)
        finally:
            os.close(fd)

    def status(self) -> SpoolStatus:
        """Return what is in the spool, without changing anything.

        Raises:
            SpoolError: the folder cannot be read.
        """
        idle = [path for path in self.unsealed() if _is_idle(path)]
        waiting = [s for path in (*self.sealed(), *idle) if (s := _stat(path)) is not None]
        live = [s for path in set(self.unsealed()) - set(idle) if (s := _stat(path)) is not None]
        oldest = min((s.st_mtime for s in waiting), default=None)
        reasons = self._quarantine.by_reason()
        return SpoolStatus(
            directory=self.directory,
            segments=len(waiting),
            live_segments=len(live),
            bytes=sum(s.st_size for s in (*waiting, *live)),
            oldest_s=None if oldest is None else max(0.0, time.time() - oldest),
            quarantined=sum(reasons.values()),
            quarantined_by_reason=reasons,
            quarantine_bytes=folder_bytes(self.quarantine_directory),
            ingest_pid=self.lock_holder(),
        )


def _adopt(path: Path, fd: int) -> Adopted:
    reader = SegmentReader(bytes_of_file(fd), sealed=False)
    found = sum(1 for _ in reader.frames())
    if not found:
        path.unlink()
        sync_folder(path.parent)
        return Adopted(path, reader.end)
    if not reader.has_end_mark:
        os.ftruncate(fd, reader.whole_bytes)
        write_at(fd, reader.whole_bytes, end_to_bytes(reader.good_frames))
        os.fsync(fd)
    sealed = path.rename(path.with_suffix(SEALED_SUFFIX))
    sync_folder(path.parent)
    return Adopted(sealed, reader.torn_bytes)


def _pid(fd: int) -> int:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _is_idle(path: Path) -> bool:
    """Whether an unsealed segment waits to be ingested; one that cannot be opened does."""
    try:
        with locked(path) as fd:
            return fd is not None
    except OSError:
        return True
