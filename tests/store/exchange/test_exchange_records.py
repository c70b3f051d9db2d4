"""Records of the wire format as files: bare ones, and sealed segments as a spool has them."""

from __future__ import annotations

import io
import re
import zlib
from typing import TYPE_CHECKING

import pytest
from round_trip import EVERYTHING, everything

from diode_collectors.spool.writer import SpoolWriter
from diode_store.exchange import records
from diode_store.exchange.context import BadLine
from diode_store.records import Measurement
from diode_store.wire import codec
from diode_store.wire.segment_layout import END_BYTES, HEADER_BYTES, Header, end_to_bytes, frame_to_bytes
from diode_store.wire.segments import read_segment as read_by_collectors

if TYPE_CHECKING:
    from pathlib import Path

    from round_trip import RoundTrip

    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store

pytestmark = pytest.mark.usefixtures("default_database")


def written(measurements: list[Measurement], *, as_segment: bool) -> bytes:
    """Return measurements as a file of records."""
    stream = io.BytesIO()
    assert records.write(stream, measurements, as_segment=as_segment)[0] == len(measurements)
    return stream.getvalue()


def read(data: bytes) -> list[Measurement | BadLine]:
    """Return what a file of records holds."""
    return list(records.read(io.BufferedReader(io.BytesIO(data))))  # type: ignore[arg-type]  # mypy: BytesIO is raw


def places(found: list[Measurement | BadLine]) -> list[str]:
    """Return where something is wrong, and what."""
    return [item.at("F") for item in found if isinstance(item, BadLine)]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["out.seg", "out.records", "out.records.gz", "out.seg.gz"])
def test_round_trip(store: Store, round_trip: RoundTrip, make_measurement: MakeMeasurement, name: str) -> None:
    """Into another warehouse with every field; importing again adds nothing."""
    store.write(everything(make_measurement))
    round_trip.through(name, EVERYTHING, "--format", "records")


def test_the_collectors_read_an_exported_segment(tmp_path: Path, make_measurement: MakeMeasurement) -> None:
    """It is whole, so that a spool may hold it."""
    path = tmp_path / "a.seg"
    path.write_bytes(written([make_measurement(1), make_measurement(2)], as_segment=True))
    frames = list(read_by_collectors(path))
    assert [frame.error for frame in frames] == [None, None]
    assert [frame.measurement() for frame in frames] == [make_measurement(1), make_measurement(2)]


@pytest.mark.parametrize("compressed", [True, False])
def test_segments_of_the_collectors_are_read(
    tmp_path: Path, make_measurement: MakeMeasurement, *, compressed: bool
) -> None:
    """Whichever way a writer stores its payloads."""
    given = [make_measurement(1), make_measurement(2)]
    with SpoolWriter(tmp_path, compress=compressed) as writer:
        for measurement in given:
            writer.append(measurement)
    (segment,) = tmp_path.glob("*.seg")
    assert read(segment.read_bytes()) == given


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"no zlib", r"the payload does not unpack: Error -3 .*; get a whole copy of the file"),
        (zlib.compress(b"x" * 100)[:-3], "the payload is not one whole zlib stream; get a whole copy of the file"),
        (zlib.compress(b"x") + b"more", "the payload is not one whole zlib stream; get a whole copy of the file"),
        (zlib.compress(bytes(1001)), "the payload unpacks to more than 1,000 bytes; get a whole copy of the file"),
    ],
)
def test_a_payload_that_does_not_unpack(
    make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch, payload: bytes, reason: str
) -> None:
    """It is named with why, never unpacked to more than a record may have, and what follows it is read."""
    monkeypatch.setattr("diode_store.wire.segment_layout.MAX_RECORD_BYTES", 1000)
    bad = frame_to_bytes(bytes(16), payload)
    good = written([make_measurement(1)], as_segment=True)[HEADER_BYTES:-END_BYTES]
    found = read(Header(bytes(16), 7, compressed=True).to_bytes() + bad + good + end_to_bytes(2))
    (said,) = places(found)
    assert re.match(rf"F: record 1: byte 40: {reason}", said)
    assert found[1] == make_measurement(1)


def test_a_segment_of_a_newer_format() -> None:
    """It is refused by its number."""
    assert places(read(Header(bytes(16), 7, compressed=True, format_version=2).to_bytes() + b"whatever")) == [
        (
            "F: record 1: the file breaks off here: spool format 2 is not 1, the one this torch-diode reads; "
            "upgrade torch-diode"
        )
    ]


def test_damage_costs_one_record(make_measurement: MakeMeasurement) -> None:
    """The place is named in records and bytes, and what follows is read."""
    given = [make_measurement(number) for number in range(3)]
    data = bytearray(written(given, as_segment=True))
    middle = len(data) // 2
    data[middle] ^= 0xFF
    found = read(bytes(data))
    assert [item for item in found if isinstance(item, Measurement)] == [given[0], given[2]]
    (said,) = places(found)
    place, _, why = said.partition(": the ")
    assert place.startswith("F: record 2: byte ")
    assert why == "frame's CRC does not match its bytes; get a whole copy of the file"


def test_a_frame_whose_uid_is_not_its_records(make_measurement: MakeMeasurement) -> None:
    """What the daemon would not ingest is not imported either: the uid tells replays apart."""
    measurement = make_measurement(1)
    frame = frame_to_bytes(bytes(16), codec.encode(measurement))
    (said,) = places(read(Header(bytes(16), 0, compressed=False).to_bytes() + frame + end_to_bytes(1)))
    assert said == (
        f"F: record 1: byte 40: the record's uid {measurement.uid.hex()} is not its frame's, {bytes(16).hex()}; "
        "get a whole copy of the file"
    )


def test_a_damaged_header(make_measurement: MakeMeasurement) -> None:
    """The records behind it are read, as the daemon reads them."""
    data = bytearray(written([make_measurement(1)], as_segment=True))
    data[20] ^= 4
    found = read(bytes(data))
    assert places(found) == [
        "F: record 1: byte 0: the header is damaged, or this is no spool segment; get a whole copy of the file"
    ]
    assert found[1:] == [make_measurement(1)]


def test_a_segment_that_was_cut(make_measurement: MakeMeasurement) -> None:
    """Whole records before the cut are read."""
    data = written([make_measurement(1), make_measurement(2)], as_segment=True)
    for length in range(60, len(data), 37):
        found = read(data[:length])
        assert len([item for item in found if isinstance(item, Measurement)]) in {0, 1, 2}
        assert places(found), length
    assert places(read(data)) == []


def test_every_flipped_byte_is_noticed(make_measurement: MakeMeasurement) -> None:
    """Nothing is read that was not written."""
    given = make_measurement(1)
    data = written([given], as_segment=True)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        found = read(bytes(flipped))
        assert [item for item in found if isinstance(item, Measurement)] in ([], [given]), position
        assert places(found), position


def test_bare_records_that_break_off(make_measurement: MakeMeasurement) -> None:
    """What is whole is read, and the rest is named by its byte."""
    data = written([make_measurement(1), make_measurement(2)], as_segment=False)
    first = len(codec.encode(make_measurement(1)))
    found = read(data[:-5])
    assert found[0] == make_measurement(1)
    assert places(found) == [
        f"F: record 2: byte {first}: the file ends inside a record; get a whole copy of the file",
    ]
    assert "no msgpack" in places(read(data + b"\xc1"))[0]


def test_values_that_are_no_records(make_measurement: MakeMeasurement) -> None:
    """Msgpack of something else is passed over with its reason."""
    found = read(b"\x81\xa1v\x63" + codec.encode(make_measurement(1)))
    assert places(found)[0].startswith("F: record 1: byte 0: record version 99 is newer than")
    assert found[1] == make_measurement(1)


def test_bad_records_on_the_command_line(diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement) -> None:
    """Good ones are kept, and the status is 1."""
    path = tmp_path / "x.records"
    path.write_bytes(codec.encode(make_measurement(1)) + b"\xc1")
    result = diode("import", str(path))
    assert (result.code, result.out) == (1, "1 measurement with 3 timings added\n")
    assert result.err.startswith(f"{path}: record 2: byte ")
    path.write_bytes(b"\x89DIODE\r\n" + bytes(40))
    assert "the header is damaged, or this is no spool segment" in diode("import", str(path)).err
