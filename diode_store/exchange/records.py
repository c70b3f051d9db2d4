"""Records of the wire format, in a sealed spool segment or one after another.

The smallest and the fastest way from one warehouse to another, with nothing left out; ``diode_store.wire.codec``
describes a record. A file whose name ends in ``.seg`` is written as a segment, which a spool of `diode-ingest` may
hold; any other is the bare records, which msgpack can read.
"""

from __future__ import annotations

import zlib
from typing import IO, TYPE_CHECKING, Any, cast

import msgpack

from diode_store.errors import ImportFileError, RecordError
from diode_store.exchange.context import BadLine
from diode_store.exchange.segments import SegmentWriter, read_segment
from diode_store.wire import codec
from diode_store.wire.segment_layout import MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from diode_store.records import Measurement

SEGMENT_SUFFIX = ".seg"
_READ_BYTES = 2**20


class BadRecord(BadLine):
    """A place of a file where no record is; ``line`` is the number of the record that should be there, from 1."""

    def at(self, file: str) -> str:
        """Return ``FILE: record N: reason``."""
        return f"{file}: record {self.line}: {self.reason}"


def read(stream: IO[bytes]) -> Iterator[Measurement | BadLine]:
    """Yield the measurement of each record, or what is wrong with it; a segment is told by its first bytes."""
    is_segment = bytes(cast("Any", stream).peek(len(MAGIC))).startswith(MAGIC)
    number = 1
    try:
        for record, error in _in_segment(stream) if is_segment else _in_row(stream):
            yield BadRecord(number, error) if error else _decoded(number, record)
            number += 1
    except (OSError, EOFError, zlib.error, ImportFileError) as error:
        remedy = "" if isinstance(error, ImportFileError) else "; get a whole copy of it"
        yield BadRecord(number, f"the file breaks off here: {error}{remedy}")


def write(
    stream: IO[bytes],
    measurements: Iterable[Measurement],
    on_progress: Callable[[float], None] = lambda _measurements: None,
    *,
    as_segment: bool = False,
) -> tuple[int, int]:
    """Write each measurement as a record; return how many measurements and timings they were."""
    segment = SegmentWriter(stream) if as_segment else None
    count = timings = 0
    for measurement in measurements:
        record = codec.encode(measurement)
        if segment is not None:
            segment.add(measurement.uid, record)
        else:
            stream.write(record)
        count += 1
        timings += len(measurement.timings)
        on_progress(1)
    if segment is not None:
        segment.close()
    return count, timings


def _decoded(number: int, record: bytes) -> Measurement | BadLine:
    try:
        return codec.decode(record)
    except RecordError as error:
        reason = str(error)
        return BadRecord(number, reason if "; " in reason else f"{reason}; get a whole copy of the file")


def _in_segment(stream: IO[bytes]) -> Iterator[tuple[bytes, str | None]]:
    for piece in read_segment(stream):
        yield piece.record, piece.error and f"byte {piece.offset}: {piece.error}"


def _in_row(stream: IO[bytes]) -> Iterator[tuple[bytes, str | None]]:
    """Yield the bytes of each msgpack value; behind one that is none nothing can be found again."""
    unpacker = msgpack.Unpacker(max_buffer_size=2 * codec.MAX_RECORD_BYTES, raw=False)
    held = b""
    begun = 0  # where in the file `held` begins
    while more := stream.read(_READ_BYTES):
        unpacker.feed(more)
        held += more
        done = 0
        try:
            while True:
                unpacker.skip()
                end = unpacker.tell() - begun
                yield held[done:end], None
                done = end
        except msgpack.OutOfData:
            held, begun = held[done:], begun + done
        except (ValueError, msgpack.UnpackException) as error:
            yield b"", f"byte {begun + done}: no msgpack ({error or 'it is malformed'}); get a whole copy of the file"
            return
        if len(held) > codec.MAX_RECORD_BYTES:
            yield b"", f"byte {begun}: a record of over {codec.MAX_RECORD_BYTES:,} bytes; split its timings"
            return
    if held:
        yield b"", f"byte {begun}: the file ends inside a record; get a whole copy of it"
