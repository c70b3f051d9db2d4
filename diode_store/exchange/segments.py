"""Sealed spool segments as files: what `diode-ingest` reads from a spool, made and read by themselves.

``diode_collectors.spool.segment`` reads them too, and those that a writer still appends to, but only from files; this
reads streams, which may be compressed.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, NamedTuple

from diode_store.errors import ImportFileError, RecordError, SegmentError
from diode_store.keys import content_key
from diode_store.wire.segment_layout import (
    END_BYTES,
    FORMAT_VERSION,
    FRAME_BYTES,
    FRAME_MARKER,
    HEADER_BYTES,
    MARKER_STEM,
    MAX_PAYLOAD_BYTES,
    Header,
    end_to_bytes,
    frame_head,
    frame_to_bytes,
    frames_counted,
    is_whole_frame,
    pack_payload,
    unpack_payload,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self._stream.write(Header(content_key("export", 1, []), 0, compressed=True).to_bytes())

    def add(self, uid: bytes, record: bytes) -> None:
        """Append one encoded record."""
        self._stream.write(frame_to_bytes(uid, pack_payload(record, compress=True)))
        self._frames += 1

    def close(self) -> None:
        """Write the end mark, which says that the segment is whole."""
        self._stream.write(end_to_bytes(self._frames))


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
        frames = frames_counted(self._peek(END_BYTES))
        if frames is not None:
            self._take(END_BYTES)
        return frames

    def frame(self, *, compressed: bool) -> bytes:
        """Take the frame that stands here and return its record; what is none is passed over.

        Raises:
            RecordError: why it is none.
        """
        head = self._peek(FRAME_BYTES)
        if len(head) < FRAME_BYTES or not head.startswith(FRAME_MARKER):
            self._skip_to_marker()
            raise RecordError("no record begins here; get a whole copy of the segment")
        _, length = frame_head(head)
        whole = self._peek(FRAME_BYTES + length) if length <= MAX_PAYLOAD_BYTES else b""
        payload = whole[FRAME_BYTES:]
        if len(payload) != length or not is_whole_frame(head, payload):
            self._skip_to_marker()
            raise RecordError("the record's length or CRC does not match its bytes; get a whole copy of the segment")
        self._take(len(whole))
        return _unpacked(payload) if compressed else payload

    def _header(self) -> bool:
        header = Header.of(self._peek(HEADER_BYTES))
        if header is None:
            raise ImportFileError("its header is damaged, or it is no spool segment; get a whole copy of it")
        if header.format_version != FORMAT_VERSION:
            raise ImportFileError(
                f"spool format {header.format_version} is not {FORMAT_VERSION}, which we read; upgrade torch-diode"
            )
        self._take(HEADER_BYTES)
        return header.compressed

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
        while (found := self._window.find(MARKER_STEM, self._at)) < 0:
            left = len(self._window) - self._at
            if len(self._peek(left + 1)) == left:
                self._take(left)
                return
            self._take(max(0, left - len(MARKER_STEM) + 1))
        self._take(found - self._at)


def _unpacked(payload: bytes) -> bytes:
    try:
        return unpack_payload(payload)
    except SegmentError as error:
        why = f" ({error.__cause__})" if error.__cause__ else " to what a record may be"
        raise RecordError(f"the record does not unpack{why}; get a whole copy of the segment") from error
