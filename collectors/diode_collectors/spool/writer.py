"""The writing end of a spool: one process appends records and learns when they are safe.

``append`` keeps a record in memory, ``sync`` puts what was appended on the disk: when it returns, the records
are *acknowledged* and survive a crash of the process or of the machine. A segment is sealed, which hands it to
``diode-ingest``, when it has reached its size, on ``seal`` and on ``close``; one whose process died is taken as
soon as its lock is free.
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
from diode_store.files import sync_folder, try_lock, write_at
from diode_store.wire.codec import encode
from diode_store.wire.segment_layout import END_BYTES, HEADER_BYTES, Header, end_to_bytes, frame_to_bytes, pack_payload
from diode_store.wire.segments import OPEN_SUFFIX, SEALED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_store.wire.codec import Record

DEFAULT_SPOOL_BYTES = 2**30
"""How large a spool may grow before its writers are refused: 1 GiB, some hundred million timings."""
DEFAULT_SEGMENT_BYTES = 16 * 2**20
_PENDING_BYTES = 4 * 2**20
_SCAN_EVERY_S = 1.0
_CREATE_ATTEMPTS = 100

_writers: weakref.WeakSet[SpoolWriter] = weakref.WeakSet()


class SpoolWriter:
    """Appends records to segments of its own in a spool folder; safe to share between threads.

    Nothing is created in the folder before the first record is synced. A forked child that goes on using its
    parent's writer gets a segment of its own.

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
            directory: the spool; made, for its user alone, if it is not there. Files in one that a group shares
                are the group's too.
            max_bytes: what the whole folder, quarantine included, may hold.
            segment_bytes: the size at which a segment is sealed.
            compress: whether payloads are compressed.
            time_ns: the time of day, which names segments; nothing but their order depends on it.
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
            RecordError: it cannot be encoded, or is too large.
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
        """Put everything that was appended on the disk.

        After an error the records are still there: call it again to try again.

        Raises:
            SpoolError: that failed; none of the records since the last ``sync`` is acknowledged.
        """
        with self._lock:
            self._sync()

    @property
    def pending_records(self) -> int:
        """How many records were appended and are not safe yet."""
        return self._pending_frames

    def seal(self) -> None:
        """Sync, and hand the segment over to `diode-ingest`; the next record begins a new one.

        Raises:
            SpoolError: that failed; it can be tried again.
        """
        with self._lock:
            self._seal()

    def close(self) -> None:
        """Seal, and refuse further records. Closing twice is harmless.

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
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close, also after an exception: what was appended is worth keeping."""
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
        # Other writers fill the folder and the daemon empties it, so look again now and then, and before refusing.
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
        if not self._pending:
            return
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
        if self._segment is None:
            return
        with spool_errors(self._directory, "seal the segment"):
            self._segment.seal()
        self._let_go()

    def _let_go(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _after_fork(self) -> None:
        """In a forked child: leave the parent's segment and unwritten records to the parent."""
        if self._segment is not None:
            self._segment.leave()
        self._start_over()


class _OpenSegment:
    """An unsealed segment of this process, under its lock."""

    def __init__(self, directory: Path, header: Header, time_ns: Callable[[], int]) -> None:
        self._create = partial(_create, directory, header, time_ns)
        self._path, self._fd = self._create()
        self._header = header.to_bytes()
        self._frames = 0
        self.size = 0
        """Bytes that are acknowledged."""

    def write(self, frames: bytes, count: int) -> None:
        """Write and sync whole frames; after an error the file is as before."""
        self._restore()
        data = frames if self.size else self._header + frames
        self._write(data)
        if not self.size:
            sync_folder(self._path.parent)
        self.size += len(data)
        self._frames += count

    def seal(self) -> None:
        """Write the end mark and give the file its final name."""
        self._restore()
        self._write(end_to_bytes(self._frames))
        self._path.rename(self._path.with_suffix(SEALED_SUFFIX))
        # If the new name is not durable, the old one is, and the daemon seals it again.
        with contextlib.suppress(OSError):
            sync_folder(self._path.parent)

    def close(self) -> None:
        """Release the lock; remove an empty file, leave a file that was not sealed to the daemon."""
        if not self.size:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._fd)

    def leave(self) -> None:
        """Leave the segment to the process that this one was forked from, which may be writing to it just now."""
        os.close(self._fd)  # does not release the lock, which the two share

    def _restore(self) -> None:
        """Give the file a name again if somebody took it away, such as a clean-up job: what it has is acknowledged."""
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
    """Create an empty segment and lock it before another process takes it for a dead writer's."""
    for _ in range(_CREATE_ATTEMPTS):
        path = directory / f"{time_ns():020d}-{header.writer_id.hex()[:16]}-{header.sequence:06d}{OPEN_SUFFIX}"
        fd = create_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        if try_lock(fd) and os.fstat(fd).st_nlink:
            return path, fd
        path.unlink(missing_ok=True)
        os.close(fd)
    raise SpoolError(f"{directory}: each new segment was removed at once; is a clean-up job running there?")


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_leave_segments_to_parent)


def _leave_segments_to_parent() -> None:
    for writer in _writers:
        writer._after_fork()  # noqa: SLF001 - the module's own class
