"""Write to a spool: one process appends records and learns when they are safe.

``append`` keeps a record in memory. ``sync`` puts the appended records on the disk; from then on they are
*acknowledged* and survive a crash of the process or the machine. A sealed segment goes to ``diode-ingest``. It is
sealed when it reaches its size, on ``seal`` and on ``close``. The segment of a dead process is taken once its lock is
free.

Some file systems, such as network ones, have no locks. There each ``sync`` writes a segment of its own under a hidden
name and seals it. No other process takes a segment that is being written, and a crash loses nothing either.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
import time
import weakref
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from diode_collectors.spool.files import create_file, folder_bytes, make_private_folder, spool_errors
from diode_store.errors import SpoolError, SpoolFullError
from diode_store.system.files import sync_folder, try_lock, write_at
from diode_store.wire.codec import encode
from diode_store.wire.segment_layout import END_BYTES, HEADER_BYTES, Header, end_to_bytes, frame_to_bytes, pack_payload
from diode_store.wire.segments import OPEN_SUFFIX, SEALED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_store.wire.codec import Record

DEFAULT_SPOOL_BYTES = 2**30
"""Size limit of a spool in bytes, above which writers are refused."""
DEFAULT_SEGMENT_BYTES = 16 * 2**20
_PENDING_BYTES = 4 * 2**20
_SCAN_EVERY_S = 1.0
_CREATE_ATTEMPTS = 100
_HIDDEN = "."
"""First character of a name that ``Spool`` does not list."""

_writers: weakref.WeakSet[SpoolWriter] = weakref.WeakSet()


class SpoolWriter:
    """Appends records to segments of its own in a spool folder; thread-safe.

    It creates nothing in the folder before it syncs the first record. A forked child that goes on using its parent's
    writer gets a segment of its own.

    Raises:
        SpoolError: the folder cannot be made.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        max_bytes: int = DEFAULT_SPOOL_BYTES,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        compress: bool = True,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare to write.

        Args:
            directory: the spool; made, for its user alone, if missing. In a folder that a group shares, the group gets
                the files too.
            max_bytes: size limit of the whole folder, quarantine included.
            segment_bytes: size at which a segment is sealed.
            compress: compress payloads.
            time_ns: the time of day, which names segments; only their order depends on it.
        """
        self._directory = Path(directory)
        with spool_errors(self._directory, "create the spool folder"):
            make_private_folder(self._directory)
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._compress = compress
        self._time_ns = time_ns
        self._closed = False
        self._start_over()
        _writers.add(self)
        _watch_forks()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._writer_id = os.urandom(16)
        self._sequence = 0
        self._segment: _OpenSegment | None = None
        self._pending = bytearray()
        self._pending_frames = 0
        self._used_bytes = 0
        self._scanned_at = float("-inf")

    def append(self, record: Record) -> None:
        """Take ``record`` into memory; it is safe after the next ``sync``.

        Raises:
            RecordError: ``record`` cannot be encoded, or is too large.
            SpoolFullError: the spool has reached its limit; the record was not taken.
            SpoolError: the spool cannot be written; the record was not taken.
        """
        payload = pack_payload(encode(record), compress=self._compress)
        frame = frame_to_bytes(record.uid, payload)
        with self._lock:
            self._make_room(len(frame))
            self._pending += frame
            self._pending_frames += 1

    def sync(self) -> None:
        """Put all appended records on the disk.

        After an error the records are still there, and another call tries again.

        Raises:
            SpoolError: the write failed; none of the records since the last ``sync`` is acknowledged.
        """
        with self._lock:
            self._sync()

    @property
    def pending_records(self) -> int:
        """Number of appended records that are not safe yet or, without locks, not handed over."""
        segment = self._segment
        hidden = segment.frames if segment is not None and not segment.is_locked else 0
        return self._pending_frames + hidden

    def seal(self) -> None:
        """Sync, and hand the segment over to `diode-ingest`; the next record begins a new one.

        Raises:
            SpoolError: the write failed; another call tries again.
        """
        with self._lock:
            self._seal()

    def close(self) -> None:
        """Seal, and refuse further records; do nothing if it is closed.

        Raises:
            SpoolError: the last records could not be written; the acknowledged ones are safe.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._seal()
            finally:
                self._let_go()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close, even after an exception, since the appended records are worth keeping."""
        self.close()

    def _make_room(self, size: int) -> None:
        """Make room for a frame of ``size`` bytes, or raise."""
        if self._closed:
            raise SpoolError(f"{self._directory}: the spool writer is closed")
        there = (self._segment.size if self._segment else HEADER_BYTES) + len(self._pending)
        if there > HEADER_BYTES and there + size + END_BYTES > self._segment_bytes:
            self._seal()
        elif self._pending and len(self._pending) + size > _PENDING_BYTES:
            self._sync()
        self._check_limit(len(self._pending) + size + HEADER_BYTES + END_BYTES)

    def _check_limit(self, wanted: int) -> None:
        # Other writers fill the folder and the daemon empties it, so look now and then, and before refusing.
        now = time.monotonic()
        if now - self._scanned_at > _SCAN_EVERY_S or self._used_bytes + wanted > self._max_bytes:
            self._used_bytes, self._scanned_at = folder_bytes(self._directory), now
        if self._used_bytes + wanted > self._max_bytes:
            raise SpoolFullError(
                f"{self._directory}: the spool holds {self._used_bytes:,} bytes and its limit is "
                f"{self._max_bytes:,}; start or check `diode-ingest`; "
                f"`diode-ingest status --spool {shlex.quote(str(self._directory))}` shows what is there"
            )

    def _sync(self) -> None:
        if self._pending:
            self._write_pending()
        if self._segment is not None and not self._segment.is_locked:
            self._hand_over(self._segment)

    def _write_pending(self) -> None:
        with spool_errors(self._directory, "write the spool"):
            if self._segment is None:
                header = Header(self._writer_id, self._sequence, self._compress)
                self._segment = _OpenSegment(self._directory, header, self._time_ns)
                self._sequence += 1
            self._segment.write(bytes(self._pending), self._pending_frames)
        self._used_bytes += len(self._pending)
        self._pending.clear()
        self._pending_frames = 0

    def _seal(self) -> None:
        self._sync()
        if self._segment is not None:
            self._hand_over(self._segment)

    def _hand_over(self, segment: _OpenSegment) -> None:
        with spool_errors(self._directory, "seal the segment"):
            segment.seal()
        self._let_go()

    def _let_go(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _after_fork(self) -> None:
        """Leave the parent's segment and unwritten records to the parent, in a forked child."""
        if self._segment is not None:
            self._segment.leave()
        self._start_over()


class _OpenSegment:
    """An unsealed segment of this process, under its lock if the file system has locks."""

    def __init__(self, directory: Path, header: Header, time_ns: Callable[[], int]) -> None:
        self._create = partial(_create, directory, header, time_ns)
        self._path, self._fd = self._create()
        self._header = header.to_bytes()
        self.frames = 0
        """Number of acknowledged frames."""
        self.size = 0
        """Number of acknowledged bytes."""

    @property
    def is_locked(self) -> bool:
        """Return True if other processes can tell that this one writes to it."""
        return not self._path.name.startswith(_HIDDEN)

    def write(self, frames: bytes, count: int) -> None:
        """Write and sync whole frames; after an error the file is as before."""
        self._restore()
        data = frames if self.size else self._header + frames
        self._write(data)
        if not self.size:
            sync_folder(self._path.parent)
        self.size += len(data)
        self.frames += count

    def seal(self) -> None:
        """Write the end mark and give the file its final name."""
        self._restore()
        self._write(end_to_bytes(self.frames))
        self._path.rename(self._path.with_name(f"{self._path.stem.removeprefix(_HIDDEN)}{SEALED_SUFFIX}"))
        # If the new name is not durable, the old one is, and the daemon seals the segment again.
        with contextlib.suppress(OSError):
            sync_folder(self._path.parent)

    def close(self) -> None:
        """Release the lock. Remove an empty file; leave an unsealed one to the daemon."""
        if not self.size:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._fd)

    def leave(self) -> None:
        """Leave the segment to the process that this one was forked from, which may be writing to it."""
        os.close(self._fd)  # does not release the lock, which the two share

    def _restore(self) -> None:
        """Give the file a name again if, for example, a clean-up job removed it; its contents are acknowledged."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._path.stat(), os.fstat(self._fd)):
                return
        content = os.pread(self._fd, self.size, 0)
        path, fd = self._create()
        try:
            write_at(fd, 0, content)
            os.fsync(fd)
            sync_folder(path.parent)
        except OSError:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        os.close(self._fd)
        self._path, self._fd = path, fd

    def _write(self, data: bytes) -> None:
        try:
            write_at(self._fd, self.size, data)
            os.fsync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)
            raise


def _create(directory: Path, header: Header, time_ns: Callable[[], int]) -> tuple[Path, int]:
    """Create an empty segment, locked or hidden before another process can take it for a dead writer's."""
    hidden = ""
    for _ in range(_CREATE_ATTEMPTS):
        name = f"{hidden}{time_ns():020d}-{header.writer_id.hex()[:16]}-{header.sequence:06d}{OPEN_SUFFIX}"
        path = directory / name
        fd = create_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        try:
            if (hidden or try_lock(fd)) and os.fstat(fd).st_nlink:
                return path, fd
        except OSError:
            hidden = _HIDDEN
        path.unlink(missing_ok=True)
        os.close(fd)
    raise SpoolError(f"{directory}: each new segment was removed at once; is a clean-up job running there?")


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_leave_segments_to_parent)


def _leave_segments_to_parent() -> None:
    for writer in _writers:
        writer._after_fork()  # noqa: SLF001 - the module's own class
