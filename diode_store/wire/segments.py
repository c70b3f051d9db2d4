"""Read spool segments, and tell records from damage.

Segments come from files, which a writer may still append to, and from streams, which may be compressed.
``diode_store.wire.segment_layout`` describes their bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from typing import IO, TYPE_CHECKING, NamedTuple

from diode_store.errors import CodecError, OtherKindError, SegmentError, UnknownVersionError
from diode_store.records import Measurement
from diode_store.values.units import GIB, MIB
from diode_store.wire.codec import decode_head, decode_record
from diode_store.wire.segment_layout import (
    END_BYTES,
    END_MARKER,
    FORMAT_VERSION,
    FRAME_BYTES,
    FRAME_MARKER,
    HEADER_BYTES,
    MARKER_STEM,
    MAX_PAYLOAD_BYTES,
    Header,
    frame_head,
    frames_counted,
    is_whole_frame,
    unpack_payload,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diode_store.wire.codec import Record, RecordHead

SEALED_SUFFIX = ".seg"
OPEN_SUFFIX = ".open"

_SCAN_BYTES = MIB
_FIRST_SCAN_BYTES = 2**12
"""Size of the first look for the next marker; each further one is four times as large."""
MOST_DAMAGE = 10_000
"""Limit on the stretches of damage told apart in a segment; the rest of the segment counts as one stretch."""
MOST_LOOKED_AT_BYTES = GIB
"""Limit on the bytes of failing payloads in a segment, counted each time. The rest counts as one stretch of damage."""

ReadAt = Callable[[int, int], bytes]
"""Takes an offset and a length; returns that many bytes, fewer only at the end.

Offsets grow, but for one step back by ``FRAME_BYTES`` at most.
"""


class Reason(StrEnum):
    """Why bytes of a segment are not a record."""

    BAD_HEADER = "bad_header"
    NO_MARKER = "no_marker"
    BAD_LENGTH = "bad_length"
    BAD_CRC = "bad_crc"
    TRUNCATED = "truncated"
    FRAMES_MISSING = "frames_missing"
    BAD_COMPRESSION = "bad_compression"
    BAD_RECORD = "bad_record"
    OTHER_CONTENT = "other_content"
    NEWER_RECORD = "newer_record"
    NEWER_FORMAT = "newer_format"

    @classmethod
    def of(cls, error: SegmentError | CodecError) -> Reason:
        """Return why a whole frame has no valid record, from what ``Frame.record`` raised."""
        if isinstance(error, UnknownVersionError):
            return cls.NEWER_RECORD
        return cls.BAD_COMPRESSION if isinstance(error, SegmentError) else cls.BAD_RECORD


class Frame(NamedTuple):
    """One frame, or, when ``error`` is set, one stretch of bytes that is none."""

    offset: int
    """Offset of the frame in the segment, in bytes."""
    size: int
    """Bytes from there to its end."""
    uid: bytes | None
    payload: bytes | None
    """The record as it is stored; ``record_bytes`` unpacks it."""
    compressed: bool = False
    reason: Reason | None = None
    error: str | None = None
    """Description of the damage, without the file and the offset."""

    def record_bytes(self) -> bytes:
        """Return the encoded record.

        Raises:
            SegmentError: the frame is damaged, or its payload does not unpack to at most ``MAX_RECORD_BYTES``.
        """
        if self.payload is None:
            raise SegmentError(f"offset {self.offset}: {self.error}")
        return unpack_payload(self.payload) if self.compressed else self.payload

    def record(self) -> Record:
        """Return the record in this frame, of whichever kind.

        Raises:
            SegmentError: as for ``record_bytes``.
            CodecError: no valid record with the frame's uid; ``UnknownVersionError`` for a newer one.
        """
        record = decode_record(self.record_bytes())
        self._check_uid(record.uid)
        return record

    def measurement(self) -> Measurement:
        """Return the measurement in this frame.

        Raises:
            OtherKindError: a record of another kind.
            SegmentError: as for ``record``.
            CodecError: as for ``record``.
        """
        record = self.record()
        if not isinstance(record, Measurement):
            raise OtherKindError("it is no measurement")
        return record

    def head(self) -> RecordHead:
        """Return the head of the measurement, without the timings; raises the errors of ``measurement``."""
        head = decode_head(self.record_bytes())
        self._check_uid(head.uid)
        return head

    def _check_uid(self, found: bytes) -> None:
        if found != self.uid:
            raise CodecError(f"the record's uid {found.hex()} is not its frame's, {(self.uid or b'').hex()}")


def bytes_of_file(fd: int) -> ReadAt:
    """Return a function that reads a file with ``pread``, up to its present end; the file may shrink meanwhile."""
    end = os.fstat(fd).st_size
    return lambda offset, length: os.pread(fd, max(0, min(length, end - offset)), offset)


def bytes_of_stream(stream: IO[bytes]) -> ReadAt:
    """Return a function that reads a stream forward, through a window that keeps what may be read again."""
    window, start = b"", 0

    def read(offset: int, length: int) -> bytes:
        nonlocal window, start
        while (missing := offset + length - start - len(window)) > 0:
            more = stream.read(max(missing, _SCAN_BYTES))
            if not more:
                break
            done = max(0, offset - FRAME_BYTES - start)
            window, start = window[done:] + more, start + done
        return window[offset - start : offset - start + length]

    return read


def read_segment(path: Path) -> Iterator[Frame]:
    """Yield every frame of a segment, and every stretch of damage between frames, in order.

    An unsealed segment (``.open``) may end with a frame that its writer did not finish; that frame is left out.

    Raises:
        SegmentError: a format this version does not know.
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from SegmentReader(bytes_of_file(fd), sealed=path.suffix != OPEN_SUFFIX).frames()
    finally:
        os.close(fd)


class SegmentReader:
    """Reads a segment front to back, one frame in memory at a time.

    Raises:
        SegmentError: a format this version does not know.
    """

    def __init__(self, read: ReadAt, *, sealed: bool) -> None:
        """Read the header.

        Args:
            read: the segment's bytes; ``bytes_of_file`` or ``bytes_of_stream``.
            sealed: True if the segment should be whole; if False, an unfinished write at its end is no damage.
        """
        self._read = read
        self._sealed = sealed
        self.header = self._read_header()
        """None when it is damaged."""
        self.good_frames = 0
        """Number of frames yielded so far."""
        self.has_end_mark = False
        """True if the segment is whole to its end; like the next fields, final once all frames were yielded."""
        self.end = 0
        """Its size, in bytes."""
        self.whole_bytes = HEADER_BYTES if self.header else 0
        """End of the last frame, or of the damage to keep; bytes behind it in an unsealed segment are torn."""
        self._damaged = self._looked_at = 0

    @property
    def torn_bytes(self) -> int:
        """Number of bytes of an unfinished write in an unsealed segment."""
        return 0 if self._sealed else self.end - self.whole_bytes

    def frames(self) -> Iterator[Frame]:
        """Yield frames and damage; in an unsealed segment, a torn tail is left out."""
        offset = self.whole_bytes
        held: list[Frame] = []
        while head := self._read(offset, FRAME_BYTES):
            # Shorter than a frame's head, so nothing follows it.
            counted = frames_counted(head)
            if counted is not None:
                yield from self._release(held)
                yield from self._check_end(offset, counted)
                return
            frame = self._frame_at(offset, head)
            self.good_frames += frame.error is None
            held.append(frame)
            offset += frame.size
            # What an unfinished write leaves is a prefix of a frame: never a whole one that fails its check.
            if frame.error is None or frame.reason is Reason.BAD_CRC:
                yield from self._release(held)
        self.end = offset
        if self._sealed:
            yield self._cut_short(held)

    def _release(self, held: list[Frame]) -> Iterator[Frame]:
        if held:
            self.whole_bytes = held[-1].offset + held[-1].size
        yield from held
        held.clear()

    def _check_end(self, offset: int, counted: int) -> Iterator[Frame]:
        self.has_end_mark = True
        self.whole_bytes = self.end = offset + END_BYTES
        if counted != self.good_frames and not self._damaged:
            message = f"the end mark counts {counted} frames, but {self.good_frames} are there"
            yield Frame(offset, END_BYTES, None, None, reason=Reason.FRAMES_MISSING, error=message)

    def _cut_short(self, held: list[Frame]) -> Frame:
        """Return the fault at the end of a sealed segment without an end mark, as one frame."""
        if held and held[0].offset == 0:
            return held[0]._replace(size=self.end)
        offset = held[0].offset if held else self.end
        why = f": {held[0].error}" if held else ""
        message = f"the segment was sealed but is cut short, it has no whole end mark{why}"
        return Frame(offset, self.end - offset, None, None, reason=Reason.TRUNCATED, error=message)

    def _read_header(self) -> Header | None:
        header = Header.of(self._read(0, HEADER_BYTES))
        if header is not None and header.format_version != FORMAT_VERSION:
            raise SegmentError(
                f"spool format {header.format_version} is not {FORMAT_VERSION}, the one this torch-diode reads; "
                "upgrade torch-diode"
            )
        return header

    def _frame_at(self, offset: int, head: bytes) -> Frame:
        """Return the frame at ``offset``, or the damage from there to the next marker."""
        if not head.startswith(FRAME_MARKER):
            return self._no_frame(offset, head)
        if len(head) < FRAME_BYTES:
            return self._damage(offset, Reason.BAD_LENGTH, "the file ends inside a frame's header")
        uid, length = frame_head(head)
        if length > MAX_PAYLOAD_BYTES:
            message = f"the frame's length of {length:,} bytes is over the limit of {MAX_PAYLOAD_BYTES:,}"
            return self._damage(offset, Reason.BAD_LENGTH, message)
        payload = self._read(offset + FRAME_BYTES, length)
        if len(payload) < length:
            message = f"the frame's length of {length:,} bytes does not fit the {len(payload):,} left in the file"
            return self._damage(offset, Reason.BAD_LENGTH, message)
        if not is_whole_frame(head, payload):
            self._looked_at += length
            return self._damage(offset, Reason.BAD_CRC, "the frame's CRC does not match its bytes")
        return Frame(offset, FRAME_BYTES + length, uid, payload, self._is_compressed(payload))

    def _no_frame(self, offset: int, head: bytes) -> Frame:
        if offset == 0:
            return self._damage(offset, Reason.BAD_HEADER, "the header is damaged, or this is no spool segment")
        found = "an end mark that is damaged or not at the end" if head.startswith(END_MARKER) else "no frame"
        return self._damage(offset, Reason.NO_MARKER, f"{found} begins here")

    def _is_compressed(self, payload: bytes) -> bool:
        # Behind a damaged header the payload itself tells: no record begins like a zlib stream.
        return self.header.compressed if self.header is not None else payload[:1] == b"\x78"

    def _damage(self, offset: int, reason: Reason, message: str) -> Frame:
        self._damaged += 1
        if self._damaged <= MOST_DAMAGE and self._looked_at <= MOST_LOOKED_AT_BYTES:
            return Frame(offset, self._next_marker(offset + 1) - offset, None, None, reason=reason, error=message)
        end = offset
        while window := self._read(end, _SCAN_BYTES):
            end += len(window)
        message = "too much damage comes before; the rest is not read"
        return Frame(offset, end - offset, None, None, reason=Reason.NO_MARKER, error=message)

    def _next_marker(self, offset: int) -> int:
        """Return the offset of the next frame or end mark, or of the end of the segment."""
        size = _FIRST_SCAN_BYTES
        while True:
            window = self._read(offset, size)
            found = window.find(MARKER_STEM)
            if found >= 0:
                return offset + found
            if len(window) < size:
                return offset + len(window)
            offset += len(window) - len(MARKER_STEM) + 1
            size = min(4 * size, _SCAN_BYTES)
