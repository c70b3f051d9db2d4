"""The bytes of a spool segment: a header, frames that can each be checked alone, an end mark.

Layout of format 1, integers big-endian::

    header   magic (8) · format (2) · flags (2) · writer id (16) · sequence (8) · CRC-32 of these (4)
    frame    marker (8) · uid (16) · length (4) · CRC-32 of marker, uid, length and payload (4) · payload
    ...
    end      marker (8) · number of frames (8) · CRC-32 of these (4)

A payload is one record of ``diode_store.wire.codec``, compressed by zlib if the header's flag says so. The marker lets
a reader continue after damage. The uid lets a reader skip a known record without decoding it. Only sealing writes the
end mark, which tells a whole segment from one that was cut between two frames.

Every format keeps the header's length and the places of its magic, format and CRC. So a reader can tell a newer segment
from a damaged one. ``diode_store.wire.segments`` reads segments.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from diode_store.errors import RecordError, SegmentError
from diode_store.wire.codec import MAX_RECORD_BYTES

MAGIC = b"\x89DIODE\r\n"
FORMAT_VERSION = 1

MARKER_STEM = b"\xf5\xd1\x0d\xe5\xec\x7f\x1a"
"""First bytes of every marker, where a reader continues after damage."""
FRAME_MARKER = MARKER_STEM + b"\x01"
END_MARKER = MARKER_STEM + b"\x02"

_COMPRESSED = 1
_HEADER = struct.Struct(">8sHH16sQI")
_FRAME = struct.Struct(">8s16sII")
_END = struct.Struct(">8sQI")
_CRC_BYTES = 4

HEADER_BYTES = _HEADER.size
FRAME_BYTES = _FRAME.size
"""Length of a frame's head, which precedes its payload."""
END_BYTES = _END.size
MAX_PAYLOAD_BYTES = MAX_RECORD_BYTES + MAX_RECORD_BYTES // 1000 + 64
"""Limit on the bytes of a payload; a longer length is damage. zlib adds at most 0.03% to incompressible data."""


@dataclass(frozen=True)
class Header:
    """Who wrote a segment, and how."""

    writer_id: bytes
    """16 bytes, another for each writer."""
    sequence: int
    """Number of the segment among its writer's, from 0."""
    compressed: bool
    format_version: int = FORMAT_VERSION
    """Format of the segment; the other fields mean nothing in another format than ours."""

    @classmethod
    def of(cls, raw: bytes) -> Header | None:
        """Return the header that the first ``HEADER_BYTES`` of a file are, of any format; None if it is damaged."""
        if len(raw) != HEADER_BYTES or not raw.startswith(MAGIC) or not _ends_with_crc(raw):
            return None
        _, version, flags, writer_id, sequence, _ = _HEADER.unpack(raw)
        return cls(writer_id, sequence, bool(flags & _COMPRESSED), version)

    def to_bytes(self) -> bytes:
        """Return the header as it stands at the beginning of a file."""
        flags = _COMPRESSED if self.compressed else 0
        return _with_crc(_HEADER.pack(MAGIC, self.format_version, flags, self.writer_id, self.sequence, 0))


def pack_payload(record: bytes, *, compress: bool) -> bytes:
    """Return an encoded record as a frame stores it.

    Raises:
        RecordError: the record is longer than any reader accepts.
    """
    if len(record) > MAX_RECORD_BYTES:
        raise RecordError(
            f"a record of {len(record):,} bytes is over the limit of {MAX_RECORD_BYTES:,}; split its timings"
        )
    return zlib.compress(record, 6) if compress else record


def unpack_payload(payload: bytes) -> bytes:
    """Return the record of a compressed payload, never expanding more than a record may have.

    Raises:
        SegmentError: the payload is damaged or too large; an error of zlib is the cause.
    """
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


def frame_to_bytes(uid: bytes, payload: bytes) -> bytes:
    """Return the frame that holds ``payload``."""
    head = _FRAME.pack(FRAME_MARKER, uid, len(payload), 0)[:-_CRC_BYTES]
    return b"".join((head, zlib.crc32(payload, zlib.crc32(head)).to_bytes(_CRC_BYTES), payload))


def frame_head(head: bytes) -> tuple[bytes, int]:
    """Return the uid and the payload's length from a frame's first ``FRAME_BYTES``."""
    _, uid, length, _ = _FRAME.unpack(head)
    return uid, length


def is_whole_frame(head: bytes, payload: bytes) -> bool:
    """Return whether a frame's head and payload are intact, by the head's CRC."""
    return head[-_CRC_BYTES:] == zlib.crc32(payload, zlib.crc32(head[:-_CRC_BYTES])).to_bytes(_CRC_BYTES)


def end_to_bytes(frames: int) -> bytes:
    """Return the end mark of a segment of ``frames`` frames."""
    return _with_crc(_END.pack(END_MARKER, frames, 0))


def frames_counted(raw: bytes) -> int | None:
    """Return the number of frames in an end mark; None if ``raw`` is no whole end mark."""
    if len(raw) != END_BYTES or not raw.startswith(END_MARKER) or not _ends_with_crc(raw):
        return None
    return int(_END.unpack(raw)[1])


def _with_crc(packed: bytes) -> bytes:
    """Return ``packed`` with the CRC of the fields before it as its last field."""
    body = packed[:-_CRC_BYTES]
    return body + zlib.crc32(body).to_bytes(_CRC_BYTES)


def _ends_with_crc(raw: bytes) -> bool:
    return _with_crc(raw) == raw
