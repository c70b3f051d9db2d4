from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spool_samples import frames_of, header_bytes, kept, put, sample, segment_bytes, segment_of, stored, uid_of

from diode_collectors.ingest import ingest as ingest_module
from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.ingest.report import IngestReport
from diode_collectors.spool.spool import Spool
from diode_store.errors import RecordError
from diode_store.warehouse.database import make_engine
from diode_store.warehouse.store import Store, WriteReport
from diode_store.wire import codec
from diode_store.wire.segment_layout import HEADER_BYTES, end_to_bytes, frame_to_bytes, pack_payload
from diode_store.wire.segments import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diode_store.records import Measurement


def reason(directory: Path, name: str) -> dict[str, object]:
    """Return what the quarantine says about one of its files."""
    content: dict[str, object] = json.loads((directory / "quarantine" / f"{name}.reason.json").read_text())
    return content


def test_damage_goes_to_quarantine(directory: Path, store: Store) -> None:
    """The bytes of a damaged frame are kept with the reason beside them; the good ones are ingested."""
    first, second, third = frames_of([1, 2, 3])
    broken = second[:-1] + bytes([second[-1] ^ 1])
    put(directory, "a.seg", header_bytes() + first + broken + third + end_to_bytes(3))
    report = ingest_once(directory, store)
    offset = HEADER_BYTES + len(first)
    assert (report.segments, report.measurements, report.rejected) == (1, 2, 1)
    assert report.rejected_by_reason == {"bad_crc": 1}
    (rejection,) = report.rejections
    assert str(rejection) == (
        f"a.seg at offset {offset}: the frame's CRC does not match its bytes; "
        "what is left of it is in the quarantine; measure again what it held"
    )
    assert kept(directory) == [f"a@{offset}.bin", f"a@{offset}.bin.reason.json"]
    assert (directory / "quarantine" / f"a@{offset}.bin").read_bytes() == broken
    assert reason(directory, f"a@{offset}.bin")["message"] == report.rejections[0].message
    assert stored(store) == [1, 3]
    assert Spool(directory).sealed() == []


def test_a_truncated_sealed_segment(directory: Path, store: Store) -> None:
    """A sealed segment that was cut is an error; its whole frames are ingested."""
    put(directory, "a.seg", segment_bytes([1, 2, 3])[:-60])
    report = ingest_once(directory, store)
    assert (report.measurements, report.rejected_by_reason) == (2, {"truncated": 1})
    assert "cut short" in report.rejections[0].message
    assert stored(store) == [1, 2]


def test_a_file_that_is_no_segment(directory: Path, store: Store) -> None:
    """A stray file is moved out of the way as it is, and the others are ingested."""
    put(directory, "a.seg", b"#!/bin/sh\n" * 100)
    put(directory, "b.seg", segment_bytes([1]))
    report = ingest_once(directory, store)
    assert (report.segments, report.measurements, report.rejected_by_reason) == (2, 1, {"bad_header": 1})
    assert (directory / "quarantine" / "a.seg").read_bytes() == b"#!/bin/sh\n" * 100
    assert Spool(directory).sealed() == []


def test_another_file_of_the_same_name_keeps_its_place(directory: Path, store: Store) -> None:
    """Segments of one name, from two machines say, are both kept; the same one again is kept once."""
    newer, damaged = header_bytes(version=2) + b"future", segment_bytes([1, 2])
    for content in (newer, newer + b"!", newer):
        put(directory, "a.seg", content)
        ingest_once(directory, store)
    assert [name for name in kept(directory) if name.endswith(".seg")] == ["a.seg", "a~2.seg"]
    assert (directory / "quarantine" / "a~2.seg").read_bytes() == newer + b"!"
    assert reason(directory, "a~2.seg")["segment"] == "a.seg"
    for flipped in (1, 2, 1):
        put(directory, "b.seg", damaged[:60] + bytes([damaged[60] ^ flipped]) + damaged[61:])
        ingest_once(directory, store)
    assert [name for name in kept(directory) if name.endswith(".bin")] == ["b@40.bin", "b@40~2.bin"]


def test_a_segment_of_a_newer_format(directory: Path, store: Store) -> None:
    """A segment of a later torch-diode waits in quarantine, and the message says what to do."""
    put(directory, "a.seg", header_bytes(version=2) + b"future")
    put(directory, "b.seg", segment_bytes([1]))
    report = ingest_once(directory, store)
    assert report.measurements == 1
    assert str(report.rejections[0]) == (
        "a.seg at offset 0: spool format 2 is not 1, the one this torch-diode reads; upgrade torch-diode; "
        "then move it from the quarantine back into the spool"
    )
    assert kept(directory) == ["a.seg", "a.seg.reason.json"]


def test_a_record_of_a_newer_version_can_come_back(directory: Path, store: Store) -> None:
    """A frame whose record is too new is kept as a segment that can be moved back into the spool."""
    content = msgpack.unpackb(codec.encode(sample(2)))
    newer = msgpack.packb({**content, "v": codec.WIRE_VERSION + 1})
    put(directory, "a.seg", segment_of([(uid_of(1), codec.encode(sample(1))), (uid_of(2), newer)]))
    report = ingest_once(directory, store)
    assert report.rejected_by_reason == {"newer_record": 1}
    (name,) = [name for name in kept(directory) if name.endswith(".seg")]
    (directory / "quarantine" / name).rename(directory / name)
    assert ingest_once(directory, store).rejected_by_reason == {"newer_record": 1}
    assert name.replace(".seg", "@40.seg") in kept(directory)


@pytest.mark.parametrize(
    ("payload", "expected", "message"),
    [
        (b"\xc1", Reason.BAD_RECORD, "not a msgpack record"),
        (b"", Reason.BAD_RECORD, "not a msgpack record"),
        (msgpack.packb([1]), Reason.BAD_RECORD, "a record must be a map, not tuple"),
        (msgpack.packb({"v": 2}), Reason.BAD_RECORD, "the record has no"),
        (msgpack.packb({"v": "1"}), Reason.BAD_RECORD, "unknown record version '1'"),
        (codec.encode(sample(9)), Reason.BAD_RECORD, "is not its frame's"),
    ],
)
def test_a_whole_frame_that_is_no_record(
    directory: Path, store: Store, payload: bytes, expected: Reason, message: str
) -> None:
    """A frame whose bytes arrived but make no record is kept as a segment; its neighbours are ingested."""
    put(directory, "a.seg", segment_of([(uid_of(1), payload), (uid_of(2), codec.encode(sample(2)))]))
    report = ingest_once(directory, store)
    assert (report.measurements, report.rejected_by_reason) == (1, {expected.value: 1})
    assert message in report.rejections[0].message
    assert kept(directory) == ["a@40.seg", "a@40.seg.reason.json"]


def test_a_payload_that_does_not_unpack(directory: Path, store: Store) -> None:
    """Bad compression is a bad record, not a crash."""
    frame = frame_to_bytes(uid_of(1), b"not zlib")
    put(directory, "a.seg", header_bytes(compress=True) + frame + frames_of([2])[0] + end_to_bytes(2))
    report = ingest_once(directory, store)
    assert (report.measurements, report.rejected_by_reason) == (1, {"bad_compression": 1})


def test_a_decompression_bomb(directory: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small payload that unpacks to far too much is refused."""
    bomb = pack_payload(bytes(10_000), compress=True)
    monkeypatch.setattr("diode_store.wire.segment_layout.MAX_RECORD_BYTES", 9_999)
    put(directory, "a.seg", header_bytes() + frame_to_bytes(uid_of(1), bomb) + end_to_bytes(1))
    report = ingest_once(directory, store)
    assert "unpacks to more than 9,999 bytes" in report.rejections[0].message


class PickyStore(Store):
    """A store whose database cannot hold one of the samples."""

    def write(self, measurements: Iterable[Measurement]) -> WriteReport:
        """Refuse the whole batch, as a store does, if sample 2 is in it."""
        batch = list(measurements)
        if uid_of(2) in {measurement.uid for measurement in batch}:
            raise RecordError("a value of the batch cannot be stored: too large")
        return super().write(batch)


def test_a_value_the_database_refuses(directory: Path, database_url: str) -> None:
    """One record that no database can hold does not take its batch with it."""
    put(directory, "a.seg", segment_bytes([1, 2, 3]))
    with PickyStore(make_engine(database_url)) as store:
        report = ingest_once(directory, store)
        assert stored(store) == [1, 3]
    assert (report.segments, report.measurements, report.rejected_by_reason) == (1, 2, {"bad_record": 1})
    assert report.rejections[0].message.startswith("a value of the batch cannot be stored: too large; ")
    assert reason(directory, kept(directory)[0])["uid"] == uid_of(2).hex()
    assert len(kept(directory)) == 2


def test_many_rejections_are_counted_and_few_are_listed(
    directory: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rejection counts and is kept, but a report stays small."""
    monkeypatch.setattr(ingest_module, "LISTED_REJECTIONS", 5)
    put(directory, "a.seg", segment_of((uid_of(n), b"") for n in range(12)))
    report = ingest_once(directory, store)
    assert (report.rejected, len(report.rejections), len(kept(directory))) == (12, 5, 24)


def test_an_unreadable_segment_is_left_and_told(directory: Path, store: Store) -> None:
    """A segment that cannot be opened stays, and the others are ingested."""
    (directory / "a.seg").mkdir()
    put(directory, "b.seg", segment_bytes([1]))
    report = ingest_once(directory, store)
    assert report.measurements == 1
    assert report.unreadable == (f"{directory}/a.seg: cannot be read: it is not a regular file; move it away",)
    assert (directory / "a.seg").exists()


def test_a_link_is_left_and_told(directory: Path, store: Store, tmp_path: Path) -> None:
    """Sealed or not, wherever it leads: what it leads to is not the spool's, to be read, sealed or moved."""
    elsewhere = put(tmp_path, "elsewhere", segment_bytes([2], sealed=False))
    for name, target in (("a.seg", "nowhere"), ("b.open", "nowhere"), ("c.seg", elsewhere), ("d.open", elsewhere)):
        (directory / name).symlink_to(target)
    put(directory, "e.seg", segment_bytes([1]))
    for dry_run in (True, False):
        report = ingest_once(directory, store, dry_run=dry_run)
        assert report.measurements == 1
        assert sorted(report.unreadable) == [
            f"{directory}/{name}: cannot be read: it is a link; move it away"
            for name in ("a.seg", "b.open", "c.seg", "d.open")
        ]
    assert {path.name for path in directory.iterdir()} == {"a.seg", "b.open", "c.seg", "d.open"}
    assert elsewhere.read_bytes() == segment_bytes([2], sealed=False)


def test_a_segment_in_quarantine_is_private(directory: Path, store: Store) -> None:
    """Whatever mode it was put in with."""
    put(directory, "a.seg", header_bytes(version=2)).chmod(0o644)
    assert ingest_once(directory, store).rejected == 1
    assert oct((directory / "quarantine" / "a.seg").stat().st_mode & 0o777) == "0o600"


def test_an_unsealed_segment_of_a_newer_format_is_left_and_told(directory: Path, store: Store) -> None:
    """What a newer writer left unsealed can only be sealed by a newer torch-diode."""
    path = put(directory, "a.open", header_bytes(version=2) + b"future")
    message = f"{path}: spool format 2 is not 1, the one this torch-diode reads; upgrade torch-diode"
    assert ingest_once(directory, store) == IngestReport(unreadable=(message,))
    assert ingest_once(directory, store, dry_run=True) == IngestReport(unreadable=(message,))
    assert path.exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_spool_holds(tmp_path_factory: pytest.TempPathFactory, store: Store, data: st.DataObject) -> None:
    """Any bytes under a segment's name end ingested or in quarantine; the spool is empty and no record is made up."""
    directory = tmp_path_factory.mktemp("spool")
    content = bytearray(segment_bytes([1, 2, 3]))
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
        content[position] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(content)))
    name = data.draw(st.sampled_from(["a.seg", "a.open"]))
    put(directory, name, bytes(content[:cut]))
    report = ingest_once(directory, store)
    assert Spool(directory).sealed() == Spool(directory).unsealed() == []
    assert report.unreadable == ()
    assert set(stored(store)) <= {1, 2, 3}
    assert report.rejected * 2 == len(kept(directory))


def test_what_is_kept_is_told_with_its_reason(directory: Path, store: Store) -> None:
    """The newest first; where the reason was lost or makes no sense, that is said."""
    put(directory, "a.seg", header_bytes(version=2))
    assert ingest_once(directory, store).rejected == 1
    for name, reason in (("lost.bin", None), ("odd.bin", "[1]"), ("broken.bin", "{"), ("dateless.bin", "{}")):
        (directory / "quarantine" / name).write_bytes(b"12345")
        if reason is not None:
            (directory / "quarantine" / f"{name}.reason.json").write_text(reason)
    newest, *others = Spool(directory).quarantined()
    assert (newest.name, newest.reason, newest.bytes) == ("a.seg", "newer_format", len(header_bytes(version=2)))
    assert newest.message.startswith("spool format 2 is not 1")
    assert newest.kept_since is not None
    assert datetime.now(UTC).replace(tzinfo=None) - newest.kept_since < timedelta(minutes=5)
    assert [(each.name, each.bytes, each.reason, each.message, each.kept_since) for each in others] == [
        (f"{name}.bin", 5, "unknown", "", None) for name in ("odd", "lost", "dateless", "broken")
    ]
