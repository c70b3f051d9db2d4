"""Reading the segments of a spool, those that a writer still appends to included.

Their bytes are described in ``diode_store.wire.segment_layout``.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from diode_store.errors import SegmentError
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

SEALED_SUFFIX = ".seg"
OPEN_SUFFIX = ".open"

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
        return unpack_payload(self.payload) if self.compressed else self.payload


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
        self._counted: int | None = None
        """What the end mark says, once it was reached."""
        self.whole_bytes = 0
        """Where the last frame, or the damage to keep, ends; what is behind it in an unsealed file is torn."""
        self._found_damage = False
        self.header = self._read_header()
        """None when it is damaged."""

    @property
    def has_end_mark(self) -> bool:
        """Whether it is whole to its end; known once all frames were yielded."""
        return self._counted is not None

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
        self.whole_bytes = offset + END_BYTES
        if self._counted != self.good_frames and not self._found_damage:
            message = f"the end mark counts {self._counted} frames, but {self.good_frames} are there"
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
        header = Header.of(self._read(0, HEADER_BYTES))
        if header is not None and header.format_version != FORMAT_VERSION:
            raise SegmentError(
                f"spool format {header.format_version} is not {FORMAT_VERSION}, the one this torch-diode reads; "
                "upgrade torch-diode"
            )
        return header

    def _is_end(self, offset: int) -> bool:
        """Tell whether the end mark stands at ``offset`` and nothing behind it."""
        if self.end - offset != END_BYTES:
            return False
        self._counted = frames_counted(self._read(offset, END_BYTES))
        return self.has_end_mark

    def _frame_at(self, offset: int) -> Frame:
        """Return the frame at ``offset``, or the damage from there to the next marker."""
        head = self._read(offset, FRAME_BYTES)
        if not head.startswith(FRAME_MARKER):
            return self._no_frame(offset, head)
        if len(head) < FRAME_BYTES:
            return self._damage(offset, Reason.BAD_LENGTH, "the file ends inside a frame's header")
        uid, length = frame_head(head)
        left = self.end - offset - FRAME_BYTES
        if length > min(left, MAX_PAYLOAD_BYTES):
            message = f"the frame's length of {length:,} bytes does not fit the {left:,} left in the file"
            return self._damage(offset, Reason.BAD_LENGTH, message)
        payload = self._read(offset + FRAME_BYTES, length)
        if not is_whole_frame(head, payload):
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
        self._found_damage = True
        return Frame(offset, self._next_marker(offset + 1) - offset, None, None, reason=reason, error=message)

    def _next_marker(self, offset: int) -> int:
        """Return where the next frame or end mark seems to begin, or the end of the file."""
        while offset < self.end:
            window = self._read(offset, _SCAN_BYTES)
            found = window.find(MARKER_STEM)
            if found >= 0:
                return offset + found
            if not window or offset + len(window) >= self.end:
                break
            offset += len(window) - len(MARKER_STEM) + 1
        return self.end
