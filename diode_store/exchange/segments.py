"""Sealed spool segments as files: what `diode-ingest` reads from a spool, made and read by themselves.

The layout is that of ``diode_collectors.segment``, which also reads segments that a writer still appends to and is
told apart from this by a test that lets each read what the other wrote::

    header   magic (8) · format (2) · flags (2) · writer id (16) · sequence (8) · CRC-32 of these (4)
    frame    marker (8) · uid (16) · length (4) · CRC-32 of marker, uid, length and payload (4) · payload
    end      marker (8) · number of frames (8) · CRC-32 of these (4)
"""

from __future__ import annotations

import struct
import zlib
from typing import IO, TYPE_CHECKING, NamedTuple

from diode_store.codec import MAX_RECORD_BYTES
from diode_store.errors import ImportFileError, RecordError
from diode_store.keys import content_key

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"\x89DIODE\r\n"
FORMAT_VERSION = 1

_MARKER_STEM = b"\xf5\xd1\x0d\xe5\xec\x7f\x1a"
_FRAME_MARKER = _MARKER_STEM + b"\x01"
_END_MARKER = _MARKER_STEM + b"\x02"
_COMPRESSED = 1
_HEADER = struct.Struct(">8sHH16sQ")
_FRAME = struct.Struct(">8s16sI")
_END = struct.Struct(">8sQ")
_CRC_BYTES = 4
_MAX_PAYLOAD_BYTES = MAX_RECORD_BYTES + MAX_RECORD_BYTES // 1000 + 64
_SCAN_BYTES = 2**20


class Piece(NamedTuple):
    """One record of a segment, or, with ``error``, a place where there is none."""

    offset: int
    """In bytes from the segment's beginning."""
    record: bytes
    error: str | None = None


class SegmentWriter:
    """Writes records as one sealed segment; ``close`` seals it."""

    def __init__(self, stream: IO[bytes]) -> None:
        """Begin a segment."""
        self._stream = stream
        self._frames = 0
        # Nobody goes on with it, so its writer has no name of its own: the same records are the same bytes.
        self._stream.write(_with_crc(_HEADER.pack(MAGIC, FORMAT_VERSION, _COMPRESSED, content_key("export", 1, []), 0)))

    def add(self, uid: bytes, record: bytes) -> None:
        """Append one encoded record."""
        payload = zlib.compress(record, 6)
        head = _FRAME.pack(_FRAME_MARKER, uid, len(payload))
        self._stream.write(head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(_CRC_BYTES) + payload)
        self._frames += 1

    def close(self) -> None:
        """Write the end mark, which says that the segment is whole."""
        self._stream.write(_with_crc(_END.pack(_END_MARKER, self._frames)))


def read_segment(stream: IO[bytes]) -> Iterator[Piece]:
    """Yield the records of a segment in their order, and each place that is damaged; what follows it is read.

    Raises:
        ImportFileError: it is of a format that this version does not know, or no segment.
        OSError: as for ``stream``; likewise EOFError and zlib.error of a compressed one.
    """
    reader = _Reader(stream)
    frames = 0
    is_damaged = False
    while not reader.at_end():
        offset = reader.offset
        expected = reader.end_mark()
        if expected is not None:
            if expected != frames and not is_damaged:
                yield Piece(offset, b"", f"the end mark counts {expected} records, but {frames} are there")
            if reader.at_end():
                return
            yield Piece(offset, b"", "an end mark that is not at the end")
            continue
        try:
            record = reader.frame(compressed=reader.compressed)
        except RecordError as error:
            is_damaged = True
            yield Piece(offset, b"", str(error))
        else:
            frames += 1
            yield Piece(offset, record)
    yield Piece(reader.offset, b"", "the segment is cut short, it has no end mark")


class _Reader:
    """Reads a stream forward through a window, so that it need not be seekable."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._window = b""
        self._at = 0
        self.offset = 0
        self.compressed = self._header()

    def at_end(self) -> bool:
        return not self._peek(1)

    def end_mark(self) -> int | None:
        """Take the end mark that stands here and return how many frames it counts; None if there is none."""
        raw = self._peek(_END.size + _CRC_BYTES)
        if not raw.startswith(_END_MARKER) or raw != _with_crc(raw[: _END.size]):
            return None
        self._take(len(raw))
        return int(_END.unpack(raw[: _END.size])[1])

    def frame(self, *, compressed: bool) -> bytes:
        """Take the frame that stands here and return its record; what is none is passed over.

        Raises:
            RecordError: why it is none.
        """
        head = self._peek(_FRAME.size + _CRC_BYTES)
        if len(head) < _FRAME.size + _CRC_BYTES or not head.startswith(_FRAME_MARKER):
            self._skip_to_marker()
            raise RecordError("no record begins here; get a whole copy of the segment")
        _, _, length = _FRAME.unpack(head[: _FRAME.size])
        whole = self._peek(len(head) + length) if length <= _MAX_PAYLOAD_BYTES else b""
        payload = whole[len(head) :]
        crc = zlib.crc32(payload, zlib.crc32(head[: _FRAME.size])).to_bytes(_CRC_BYTES)
        if len(payload) != length or crc != head[_FRAME.size :]:
            self._skip_to_marker()
            raise RecordError("the record's length or CRC does not match its bytes; get a whole copy of the segment")
        self._take(len(whole))
        return _unpacked(payload) if compressed else payload

    def _header(self) -> bool:
        raw = self._peek(_HEADER.size + _CRC_BYTES)
        if raw[: len(MAGIC)] != MAGIC or raw != _with_crc(raw[: _HEADER.size]):
            raise ImportFileError("its header is damaged, or it is no spool segment; get a whole copy of it")
        _, version, flags, _, _ = _HEADER.unpack(raw[: _HEADER.size])
        if version != FORMAT_VERSION:
            raise ImportFileError(f"spool format {version} is not {FORMAT_VERSION}, which we read; upgrade torch-diode")
        self._take(len(raw))
        return bool(flags & _COMPRESSED)

    def _peek(self, length: int) -> bytes:
        while len(self._window) - self._at < length:
            more = self._stream.read(max(length, _SCAN_BYTES))
            if not more:
                break
            self._window = self._window[self._at :] + more
            self._at = 0
        return self._window[self._at : self._at + length]

    def _take(self, length: int) -> None:
        self._at += length
        self.offset += length

    def _skip_to_marker(self) -> None:
        """Pass over what stands here, to where the next frame or end mark seems to begin, or to the end."""
        self._take(1)
        while (found := self._window.find(_MARKER_STEM, self._at)) < 0:
            left = len(self._window) - self._at
            if len(self._peek(left + 1)) == left:
                self._take(left)
                return
            self._take(max(0, left - len(_MARKER_STEM) + 1))
        self._take(found - self._at)


def _with_crc(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(_CRC_BYTES)


def _unpacked(payload: bytes) -> bytes:
    """Unpack a payload without ever making more of it than a record may have."""
    unpacker = zlib.decompressobj()
    try:
        record = unpacker.decompress(payload, MAX_RECORD_BYTES + 1)
    except zlib.error as error:
        raise RecordError(f"the record does not unpack ({error}); get a whole copy of the segment") from error
    if len(record) > MAX_RECORD_BYTES or not unpacker.eof or unpacker.unused_data:
        raise RecordError("the record does not unpack to what a record may be; get a whole copy of the segment")
    return record
