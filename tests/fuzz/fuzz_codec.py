"""Feeds the wire format and the segment reader with whatever libFuzzer comes up with: ``[CORPUS...] [-FLAG=VALUE...]``.

Bytes either make a record, which is then as good as any other, or a ``CodecError`` or ``SegmentError``; nothing else
may come out. Ends with 0 when nothing was found, as ``-max_total_time=SECONDS`` says when; flags are libFuzzer's.

    mkdir corpus && PYTHONPATH=tests:tests/faults python tests/fuzz/fuzz_codec.py --seed corpus
    python tests/fuzz/fuzz_codec.py corpus -max_total_time=60 -rss_limit_mb=600

``--seed`` writes good records of both kinds and segments of both wire versions into a folder, to begin from.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=[
        "diode_store.wire.codec",
        "diode_store.wire.decision_map",
        "diode_store.wire.record_parts",
        "diode_store.values.checks",
        "diode_store.wire.segment_layout",
        "diode_store.wire.segments",
    ]
):
    from diode_store.errors import CodecError, SegmentError
    from diode_store.records import Measurement
    from diode_store.wire import codec
    from diode_store.wire.segment_layout import HEADER_BYTES, Header, end_to_bytes, frame_to_bytes
    from diode_store.wire.segments import SegmentReader, bytes_of_file, bytes_of_stream, read_segment

OLDER = Path(__file__).parent.parent / "data" / "h200-2026-11-twice-1.seg"
_SOME = 12


def check_record(payload: bytes) -> None:
    """Decode; what is accepted must survive being written and read again, and its head must say the same."""
    try:
        record = codec.decode_record(payload)
    except CodecError:
        record = None
    if record is not None:
        assert codec.decode_record(codec.encode(record)) == record
    measurement = record if isinstance(record, Measurement) else None
    try:
        head = codec.decode_head(payload)
    except CodecError:
        assert measurement is None, "the head of a good record cannot be read"
        return
    if measurement is not None:
        assert head.uid == measurement.uid
        assert head.problem == measurement.problem


def check_segment(content: bytes) -> None:
    """Read; the stretches found must lie side by side from the first byte to the last that is not torn."""
    fd = os.memfd_create("segment")
    try:
        os.write(fd, content)
        for sealed in (True, False):
            _check_stretches(fd, len(content), sealed=sealed)
    finally:
        os.close(fd)


def _check_stretches(fd: int, size: int, *, sealed: bool) -> None:
    try:
        reader = SegmentReader(bytes_of_file(fd), sealed=sealed)
    except SegmentError:
        return
    reached = HEADER_BYTES if reader.header else 0
    frames = list(reader.frames())
    with os.fdopen(os.dup(fd), "rb") as stream:
        stream.seek(0)
        assert frames == list(SegmentReader(bytes_of_stream(stream), sealed=sealed).frames())
    for frame in frames:
        assert frame.offset == reached
        assert (frame.payload is None) == (frame.error is not None)
        reached = frame.offset + frame.size
        if frame.payload is not None:
            try:
                check_record(frame.record_bytes())
            except SegmentError:
                continue
    assert reached <= size
    assert reader.torn_bytes >= 0


def one_input(data: bytes) -> None:
    """Try one input as a record, as a segment, and as a frame of which only the payload is strange."""
    check_record(data)
    check_segment(data)
    check_segment(HEADER + frame_to_bytes(bytes(16), data) + end_to_bytes(1))


def seed(folder: Path) -> None:
    """Write good inputs: records of the older wire version that ships in test data, of today's, decisions, segments."""
    from producing import produce

    from decided import EVERY_FIELD, decision

    older = [frame.record_bytes() for frame, _ in zip(read_segment(OLDER), range(_SOME), strict=False)]
    decisions = [codec.encode(decision(number, **EVERY_FIELD)) for number in range(2)]
    records = [*older, *decisions, *(codec.encode(m) for m in produce(1, range(_SOME)))]
    for number, record in enumerate(records):
        (folder / f"record-{number}").write_bytes(record)
    frames = b"".join(frame_to_bytes(codec.decode(record).uid, record) for record in records[-2:])
    (folder / "segment").write_bytes(HEADER + frames + end_to_bytes(2))


HEADER = Header(bytes(16), 0, compressed=False).to_bytes()

if __name__ == "__main__":
    if sys.argv[1:2] == ["--seed"]:
        seed(Path(sys.argv[2]))
    else:
        atheris.Setup(sys.argv, one_input)
        atheris.Fuzz()
