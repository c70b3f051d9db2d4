"""The bytes of a spool segment: a header, frames that can each be checked alone, an end mark.

Layout of format 1, integers big-endian::

    header   magic (8) · format (2) · flags (2) · writer id (16) · sequence (8) · CRC-32 of these (4)
    frame    marker (8) · uid (16) · length (4) · CRC-32 of marker, uid, length and payload (4) · payload
    ...
    end      marker (8) · number of frames (8) · CRC-32 of these (4)

A payload is one record of ``diode_store.codec``, compressed by zlib when the header's flag says so. The
marker lets a reader go on behind damage; the uid lets it skip a record it knows without decoding it; the end
mark, which only sealing writes, tells a whole segment from one that was cut at the border of a frame. Every
format keeps the header's length and the places of its magic, format and CRC, so that a newer one is known
from a damaged one.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from diode_store.codec import MAX_RECORD_BYTES
from diode_store.errors import RecordError, SegmentError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMAT_VERSION = 1
SEALED_SUFFIX = ".seg"
OPEN_SUFFIX = ".open"

_MAGIC = b"\x89DIODE\r\n"
_MARKER_STEM = b"\xf5\xd1\x0d\xe5\xec\x7f\x1a"
_FRAME_MARKER = _MARKER_STEM + b"\x01"
_END_MARKER = _MARKER_STEM + b"\x02"
_COMPRESSED = 1

_HEADER = struct.Struct(">8sHH16sQI")
_FRAME = struct.Struct(">8s16sII")
_END = struct.Struct(">8sQI")
_CRC_BYTES = 4

HEADER_BYTES = _HEADER.size
FRAME_BYTES = _FRAME.size
"""What a frame adds to its payload."""
END_BYTES = _END.size
MAX_PAYLOAD_BYTES = MAX_RECORD_BYTES + MAX_RECORD_BYTES // 1000 + 64
"""A longer length is damage. zlib adds at most 0.03% to what it cannot compress."""
_SCAN_BYTES = 2**20


class Reason(StrEnum):
    """Why bytes of a segment are no record."""

    BAD_HEADER = "bad_header"
    NO_MARKER = "no_marker"
    BAD_LENGTH = "bad_length"
    BAD_CRC = "bad_crc"
    TRUNCATED = "truncated"
    FRAMES_MISSING = "frames_missing"
    BAD_COMPRESSION = "bad_compression"
    BAD_RECORD = "bad_record"
    NEWER_RECORD = "newer_record"
    NEWER_FORMAT = "newer_format"


@dataclass(frozen=True)
class Header:
    """Who wrote a segment, and how."""

    writer_id: bytes
    """16 bytes, another for each writer."""
    sequence: int
    """Which of its writer's segments it is, from 0."""
    compressed: bool
    format_version: int = FORMAT_VERSION

    def to_bytes(self) -> bytes:
        """Return the header as it stands at the beginning of a file."""
        flags = _COMPRESSED if self.compressed else 0
        body = _HEADER.pack(_MAGIC, self.format_version, flags, self.writer_id, self.sequence, 0)[:-_CRC_BYTES]
        return body + zlib.crc32(body).to_bytes(_CRC_BYTES)


class Frame(NamedTuple):
    """One frame, or, when ``error`` is set, one stretch of bytes that is none."""

    offset: int
    """Where it begins in the file, in bytes."""
    size: int
    """Bytes from there to its end."""
    uid: bytes | None
    payload: bytes | None
    """The record as it is stored; ``record_bytes`` unpacks it."""
    compressed: bool = False
    reason: Reason | None = None
    error: str | None = None
    """What is wrong, without the file and the offset."""

    def record_bytes(self) -> bytes:
        """Return the encoded record.

        Raises:
            SegmentError: the frame is damaged, or its payload does not unpack to at most ``MAX_RECORD_BYTES``.
        """
        if self.payload is None:
            raise SegmentError(f"offset {self.offset}: {self.error}")
        return _decompress(self.payload) if self.compressed else self.payload


def pack_payload(record: bytes, *, compress: bool) -> bytes:
    """Return an encoded record as a frame stores it.

    Raises:
        RecordError: it is longer than any reader accepts.
    """
    if len(record) > MAX_RECORD_BYTES:
        raise RecordError(
            f"a record of {len(record):,} bytes is over the limit of {MAX_RECORD_BYTES:,}; split its timings"
        )
    return zlib.compress(record, 6) if compress else record


def frame_to_bytes(uid: bytes, payload: bytes) -> bytes:
    """Return the frame that holds ``payload``."""
    head = _FRAME.pack(_FRAME_MARKER, uid, len(payload), 0)[:-_CRC_BYTES]
    return b"".join((head, zlib.crc32(payload, zlib.crc32(head)).to_bytes(_CRC_BYTES), payload))


def end_to_bytes(frames: int) -> bytes:
    """Return the end mark of a segment of ``frames`` frames."""
    body = _END.pack(_END_MARKER, frames, 0)[:-_CRC_BYTES]
    return body + zlib.crc32(body).to_bytes(_CRC_BYTES)


def read_segment(path: Path) -> Iterator[Frame]:
    """Yield every frame of a segment, and every stretch of damage between them, in their order.

    Whether the segment should be whole is told by its name: behind the last frame of an unsealed one
    (``.open``), the rest of a frame that its writer did not finish is left out.

    Raises:
        SegmentError: a format this version does not know.
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from SegmentReader(fd, sealed=path.suffix != OPEN_SUFFIX).frames()
    finally:
        os.close(fd)


class SegmentReader:
    """Reads a segment through a file descriptor that the caller owns.

    Reads with ``pread``: memory stays at one frame, and a file that shrinks meanwhile is no crash.

    Raises:
        SegmentError: a format this version does not know.
    """

    def __init__(self, fd: int, *, sealed: bool) -> None:
        self._fd = fd
        self._sealed = sealed
        self.end = os.fstat(fd).st_size
        """Size of the file, in bytes."""
        self.good_frames = 0
        """How many were yielded so far."""
        self.has_end_mark = False
        self.whole_bytes = 0
        """Where the last frame, or the damage to keep, ends; what is behind it in an unsealed file is torn."""
        self._found_damage = False
        self.header = self._read_header()
        """None when it is damaged."""

    @property
    def torn_bytes(self) -> int:
        """How much of an unsealed segment is an unfinished write; known once all frames were yielded."""
        return 0 if self._sealed else self.end - self.whole_bytes

    def frames(self) -> Iterator[Frame]:
        """Yield frames and damage; in an unsealed segment, a torn tail is left out."""
        offset = 0
        if self.header is not None:
            offset = self.whole_bytes = HEADER_BYTES
        held: list[Frame] = []
        while offset < self.end and not self._is_end(offset):
            frame = self._frame_at(offset)
            self.good_frames += frame.error is None
            held.append(frame)
            offset += frame.size
            # What an unfinished write leaves is a prefix of a frame: never a whole one that fails its check.
            if frame.error is None or frame.reason is Reason.BAD_CRC:
                yield from self._release(held)
        if self.has_end_mark:
            yield from self._release(held)
            yield from self._check_end(offset)
        elif self._sealed:
            yield self._cut_short(held)

    def _release(self, held: list[Frame]) -> Iterator[Frame]:
        if held:
            self.whole_bytes = held[-1].offset + held[-1].size
        yield from held
        held.clear()

    def _check_end(self, offset: int) -> Iterator[Frame]:
        _, expected, _ = _END.unpack(self._read(offset, END_BYTES))
        self.whole_bytes = offset + END_BYTES
        if expected != self.good_frames and not self._found_damage:
            message = f"the end mark counts {expected} frames, but {self.good_frames} are there"
            yield Frame(offset, END_BYTES, None, None, reason=Reason.FRAMES_MISSING, error=message)

    def _cut_short(self, held: list[Frame]) -> Frame:
        """Return as one what is wrong at the end of a sealed segment that has no end mark."""
        if held and held[0].offset == 0:
            return held[0]._replace(size=self.end)
        offset = held[0].offset if held else self.end
        why = f": {held[0].error}" if held else ""
        message = f"the segment was sealed but is cut short, it has no whole end mark{why}"
        return Frame(offset, self.end - offset, None, None, reason=Reason.TRUNCATED, error=message)

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def _read_header(self) -> Header | None:
        raw = self._read(0, HEADER_BYTES)
        if len(raw) < HEADER_BYTES:
            return None
        magic, version, flags, writer_id, sequence, crc = _HEADER.unpack(raw)
        if magic != _MAGIC or crc != zlib.crc32(raw[:-_CRC_BYTES]):
            return None
        if version != FORMAT_VERSION:
            raise SegmentError(
                f"spool format {version} is not {FORMAT_VERSION}, the one this torch-diode reads; upgrade torch-diode"
            )
        return Header(writer_id, sequence, bool(flags & _COMPRESSED))

    def _is_end(self, offset: int) -> bool:
        """Tell whether the end mark stands at ``offset`` and nothing behind it."""
        if self.end - offset != END_BYTES:
            return False
        raw = self._read(offset, END_BYTES)
        if raw[:-_CRC_BYTES].startswith(_END_MARKER):
            self.has_end_mark = raw[-_CRC_BYTES:] == zlib.crc32(raw[:-_CRC_BYTES]).to_bytes(_CRC_BYTES)
        return self.has_end_mark

    def _frame_at(self, offset: int) -> Frame:
        """Return the frame at ``offset``, or the damage from there to the next marker."""
        head = self._read(offset, FRAME_BYTES)
        if not head.startswith(_FRAME_MARKER):
            return self._no_frame(offset, head)
        if len(head) < FRAME_BYTES:
            return self._damage(offset, Reason.BAD_LENGTH, "the file ends inside a frame's header")
        _, uid, length, crc = _FRAME.unpack(head)
        left = self.end - offset - FRAME_BYTES
        if length > min(left, MAX_PAYLOAD_BYTES):
            message = f"the frame's length of {length:,} bytes does not fit the {left:,} left in the file"
            return self._damage(offset, Reason.BAD_LENGTH, message)
        payload = self._read(offset + FRAME_BYTES, length)
        if crc != zlib.crc32(payload, zlib.crc32(head[:-_CRC_BYTES])):
            return self._damage(offset, Reason.BAD_CRC, "the frame's CRC does not match its bytes")
        return Frame(offset, FRAME_BYTES + length, uid, payload, self._is_compressed(payload))

    def _no_frame(self, offset: int, head: bytes) -> Frame:
        if offset == 0:
            return self._damage(offset, Reason.BAD_HEADER, "the header is damaged, or this is no spool segment")
        found = "an end mark that is damaged or not at the end" if head.startswith(_END_MARKER) else "no frame"
        return self._damage(offset, Reason.NO_MARKER, f"{found} begins here")

    def _is_compressed(self, payload: bytes) -> bool:
        # Behind a damaged header the payload itself tells: no record begins like a zlib stream.
        return self.header.compressed if self.header is not None else payload[:1] == b"\x78"

    def _damage(self, offset: int, reason: Reason, message: str) -> Frame:
        self._found_damage = True
        return Frame(offset, self._next_marker(offset + 1) - offset, None, None, reason=reason, error=message)

    def _next_marker(self, offset: int) -> int:
        """Return where the next frame or end mark seems to begin, or the end of the file."""
        while offset < self.end:
            window = self._read(offset, _SCAN_BYTES)
            found = window.find(_MARKER_STEM)
            if found >= 0:
                return offset + found
            if not window or offset + len(window) >= self.end:
                break
            offset += len(window) - len(_MARKER_STEM) + 1
        return self.end


def _decompress(payload: bytes) -> bytes:
    """Unpack a payload without ever making more of it than a record may have."""
    stream = zlib.decompressobj()
    try:
        record = stream.decompress(payload, MAX_RECORD_BYTES + 1)
    except zlib.error as error:
        raise SegmentError(f"the payload does not unpack: {error}") from error
    if len(record) > MAX_RECORD_BYTES:
        raise SegmentError(f"the payload unpacks to more than {MAX_RECORD_BYTES:,} bytes")
    if not stream.eof or stream.unused_data:
        raise SegmentError("the payload is not one whole zlib stream")
    return record
