"""Records of the wire format, in a sealed spool segment or one after another.

This is the smallest and fastest way from one warehouse to another, and loses nothing; ``diode_store.wire.codec``
describes a record. A file name that ends in ``.seg`` gets a segment, which can go into a spool of `diode-ingest`. Any
other file gets bare records, which msgpack can read.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

import msgpack

from diode_store.errors import OtherKindError, RecordError, SegmentError
from diode_store.exchange.context import BadLine, with_remedy
from diode_store.records import Measurement
from diode_store.values.keys import content_key
from diode_store.values.units import MIB
from diode_store.wire import codec
from diode_store.wire.segment_layout import MAGIC, Header, end_to_bytes, frame_to_bytes, pack_payload
from diode_store.wire.segments import SegmentReader, bytes_of_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_READ_BYTES = MIB


class BadRecord(BadLine):
    """A place in a file without a valid record; ``line`` is the number of the record expected there, from 1."""

    def at(self, file: str) -> str:
        """Return ``FILE: record N: reason``."""
        return f"{file}: record {self.line}: {self.reason}"


def read(stream: IO[bytes]) -> Iterator[Measurement | BadLine]:
    """Yield the measurement of each record, or a report of the bad record; its first bytes show a segment."""
    is_segment = bytes(cast("Any", stream).peek(len(MAGIC))).startswith(MAGIC)
    number = 1
    try:
        for found in _in_segment(stream) if is_segment else _in_row(stream):
            yield found if isinstance(found, Measurement) else _bad(number, found)
            number += 1
    except (OSError, EOFError, zlib.error, SegmentError) as error:
        yield _bad(number, f"the file breaks off here: {error}")


def write(
    stream: IO[bytes],
    measurements: Iterable[Measurement],
    on_progress: Callable[[float], None] = lambda _measurements: None,
    *,
    as_segment: bool = False,
) -> tuple[int, int]:
    """Write each measurement as a record; return the numbers of measurements and timings."""
    if as_segment:
        # No writer appends to the file, so its writer id is fixed: the same records give the same bytes.
        stream.write(Header(content_key("export", 1, []), 0, compressed=True).to_bytes())
    count = timings = 0
    for measurement in measurements:
        record = codec.encode(measurement)
        payload = pack_payload(record, compress=True) if as_segment else record
        stream.write(frame_to_bytes(measurement.uid, payload) if as_segment else payload)
        count += 1
        timings += len(measurement.timings)
        on_progress(1)
    if as_segment:
        stream.write(end_to_bytes(count))
    return count, timings


def _bad(number: int, reason: str) -> BadRecord:
    return BadRecord(number, with_remedy(reason, "get a whole copy of the file"))


def _decoded(offset: int, decode: Callable[[], Measurement]) -> Measurement | str:
    try:
        return decode()
    except OtherKindError as error:
        return (
            f"byte {offset}: {error}; put the file into a spool and run `diode-ingest --once`, which stores all kinds"
        )
    except (RecordError, SegmentError) as error:
        return f"byte {offset}: {error}"


def _in_segment(stream: IO[bytes]) -> Iterator[Measurement | str]:
    """Yield each measurement of a segment, or a report of what is wrong."""
    for frame in SegmentReader(bytes_of_stream(stream), sealed=True).frames():
        if frame.error is None:
            yield _decoded(frame.offset, frame.measurement)
        else:
            yield f"byte {frame.offset}: {frame.error}"


def _in_row(stream: IO[bytes]) -> Iterator[Measurement | str]:
    """Yield each msgpack value's measurement, or a report of what is wrong; stop at malformed bytes."""
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
                yield _decoded(begun + done, partial(codec.decode, held[done:end]))
                done = end
        except msgpack.OutOfData:
            held, begun = held[done:], begun + done
        except (ValueError, msgpack.UnpackException) as error:
            yield f"byte {begun + done}: no msgpack ({error or 'it is malformed'})"
            return
        if len(held) > codec.MAX_RECORD_BYTES:
            yield f"byte {begun}: a record of over {codec.MAX_RECORD_BYTES:,} bytes; split its timings"
            return
    if held:
        yield f"byte {begun}: the file ends inside a record"
