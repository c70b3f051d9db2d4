from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import zlib
from bisect import bisect
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from compare import assert_exactly_once
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import PROGRAM
from producing import produce, produced, uid_of

from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.spool.spool import Spool
from diode_store.errors import RecordError
from diode_store.warehouse.store import Store
from diode_store.wire import codec
from diode_store.wire.segment_layout import HEADER_BYTES, Header, end_to_bytes, frame_to_bytes, pack_payload
from diode_store.wire.segments import SegmentReader, bytes_of_file

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 1500 * 2**20


def shortest(count: int) -> list[bytes]:
    """Return the uids of some measurements with few timings."""
    uids = [uid_of(5, number) for number in range(200)]
    return sorted(uids, key=lambda uid: len(codec.encode(produced(uid))))[:count]


def frames_of(uids: list[bytes], *, compress: bool) -> list[bytes]:
    """Return a frame for each measurement."""
    return [frame_to_bytes(uid, pack_payload(codec.encode(produced(uid)), compress=compress)) for uid in uids]


def segment_of(frames: list[bytes], *, compress: bool, sealed: bool = True) -> bytes:
    """Return a segment."""
    header = Header(bytes(16), 0, compress).to_bytes()
    return b"".join((header, *frames, end_to_bytes(len(frames)) if sealed else b""))


@pytest.mark.parametrize("compress", [True, False])
def test_every_flipped_bit_costs_one_record_at_most(compress: bool) -> None:  # noqa: FBT001 - by name
    """Flip each bit of a segment in turn: it is noticed, no other record suffers, and no wrong one comes out."""
    uids = shortest(2)
    records = {uid: codec.encode(produced(uid)) for uid in uids}
    frames = frames_of(uids, compress=compress)
    content = segment_of(frames, compress=compress)
    starts = [HEADER_BYTES, HEADER_BYTES + len(frames[0]), HEADER_BYTES + sum(map(len, frames))]
    fd = os.memfd_create("segment")
    os.write(fd, content)
    for place, byte in enumerate(content):
        hit = uids[bisect(starts, place) - 1] if starts[0] <= place < starts[2] else None
        for bit in range(8):
            os.pwrite(fd, bytes([byte ^ 1 << bit]), place)
            found = list(SegmentReader(bytes_of_file(fd), sealed=True).frames())
            good = {frame.uid: frame.record_bytes() for frame in found if frame.error is None}
            assert good == {uid: record for uid, record in records.items() if uid != hit}
            assert any(frame.error for frame in found)
        os.pwrite(fd, bytes([byte]), place)
    os.close(fd)


def damaged(draw: Any, content: bytes) -> bytes:
    """Return bytes with some of what happens to files done to them."""
    for _ in range(draw(st.integers(1, 4))):
        start, length = draw(st.integers(0, len(content))), draw(st.integers(1, 200))
        end = min(start + length, len(content))
        ways = {
            "zeros": content[:start] + bytes(end - start) + content[end:],
            "noise": content[:start] + draw(st.binary(min_size=1, max_size=50)) + content[end:],
            "inserted": content[:start] + draw(st.binary(min_size=1, max_size=50)) + content[start:],
            "lost": content[:start] + content[end:],
            "twice": content[:end] + content[start:],
            "cut": content[: max(start, 1)],
            "moved": content[:start] + content[end:] + content[start:end],
        }
        content = ways[draw(st.sampled_from(sorted(ways)))]
    return content


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_reaches_no_whole_frame(
    tmp_path_factory: pytest.TempPathFactory, database_path: Path, data: st.DataObject
) -> None:
    """However segments are damaged: records whose frames are whole are stored, once, and none is made up."""
    folder = tmp_path_factory.mktemp("damage")
    database = folder / "warehouse.db"
    shutil.copy(database_path, database)
    (folder / "spool").mkdir()
    whole: set[bytes] = set()
    for number, suffix in enumerate((".seg", ".open")):
        uids = [uid_of(number, n) for n in range(4)]
        compress = data.draw(st.booleans())
        frames = frames_of(uids, compress=compress)
        content = damaged(data.draw, segment_of(frames, compress=compress, sealed=suffix == ".seg"))
        (folder / "spool" / f"{number}{suffix}").write_bytes(content)
        whole |= {uid for uid, frame in zip(uids, frames, strict=True) if frame in content}
    with Store.open(str(database)) as store:
        ingest_once(folder / "spool", store)
    assert Spool(folder / "spool").sealed() == Spool(folder / "spool").unsealed() == []
    assert_exactly_once(str(database), whole, produced, others=True)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=20),
    st.lists(st.integers(-2, 2) | st.none(), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1), max_size=2),
)


def mutated(draw: Any, value: Any, depth: int = 0) -> Any:
    """Return a value with one thing somewhere inside of it exchanged for junk, or gone, or there twice."""
    if not isinstance(value, dict | list) or not value or (depth and draw(st.integers(0, 3)) == 0):
        return draw(JUNK)
    if isinstance(value, dict):
        name = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 5)) == 0:
            return {key: inner for key, inner in value.items() if key != name}
        return {**value, name: mutated(draw, value[name], depth + 1)}
    place = draw(st.integers(0, len(value) - 1))
    if draw(st.integers(0, 5)) == 0:
        return value[:place] + value[place + 1 :] if draw(st.booleans()) else [*value, value[place]]
    return [*value[:place], mutated(draw, value[place], depth + 1), *value[place + 1 :]]


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_record_that_lies_is_refused_or_stored_whole(store: Store, data: st.DataObject) -> None:
    """Anything put anywhere into a record: refused in our words, or a record that survives writing and storing."""
    content = msgpack.unpackb(codec.encode(produced(uid_of(7, data.draw(st.integers(0, 20))))))
    payload = msgpack.packb(mutated(data.draw, content))
    said = ""
    try:
        measurement = codec.decode(payload)
        assert codec.decode(codec.encode(measurement)) == measurement
        store.write([measurement])
    except RecordError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1


def record(**changes: Any) -> dict[str, Any]:
    """Return the map of a good record, with some of it changed."""
    content: dict[str, Any] = msgpack.unpackb(codec.encode(produced(uid_of(8, 1))))
    return {**content, **changes}


def too_many_columns() -> bytes:
    """Return a record that names very many columns of very many timings, a few bytes for each."""
    content = record()
    row, place = msgpack.unpackb(content["configs"][0]), content["config_columns"].index("block_m")
    rows = [msgpack.packb([*row[:place], number, *row[place + 1 :]]) for number in range(50_000)]
    columns = [*content["timing_columns"], *(f"{number:x}" for number in range(50_000))]
    values = {"runtime_us": 1.5, "outcome": "ok", "is_estimate": False}
    return bytes(
        msgpack.packb({**content, "configs": rows, "timing_columns": columns, "timings": [*map(values.get, columns)]})
    )


BOMBS = {
    "zeros": lambda: zlib.compress(bytes(400 * 2**20)),
    "an array said to be long": lambda: b"\x81\xa1v\xdd\xff\xff\xff\xff",
    "arrays said to be long, in each other": lambda: b"\x81\xa1v" + b"\xdd\x00\x01\x80\x00" * 100_000,
    "a map said to be long": lambda: b"\xdf\xff\xff\xff\xff",
    "deep": lambda: b"\x81\xa1v" + b"\x91" * 1_000_000 + b"\x01",
    "deep in extra": lambda: msgpack.packb(record())[:-1] + b"\x81\xa1x" * 400 + b"\x01",
    "a text said to be long": lambda: b"\x81\xa1v\xdb\xff\xff\xff\xff",
    "an extension": lambda: b"\x81\xa1v\xc9\xff\xff\xff\xff\x01",
    "too many columns": too_many_columns,
    "a huge number of flags": lambda: msgpack.packb(record(flags=["x"] * 99_999)),
    "a million kwargs": lambda: msgpack.packb(record(configs=[msgpack.packb([["k", 1]] * 1_000_000)])),
}


def limit_memory() -> None:
    """Let an allocation beyond reason fail where it is made, in this process."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", BOMBS)
def test_no_record_takes_more_memory_than_it_may(
    tmp_path: Path, database_path: Path, database_url: str, name: str
) -> None:
    """A small frame that would unpack, or unfold, to very much goes to quarantine; its neighbours are stored."""
    payload = BOMBS[name]()
    compress = name == "zeros"
    good = [codec.encode(m) for m in produce(3, range(2))]
    payloads = [zlib.compress(data) if compress else data for data in good]
    frames = [frame_to_bytes(uid_of(3, number), data) for number, data in enumerate(payloads)]
    spool = tmp_path / "spool"
    spool.mkdir()
    content = segment_of([frames[0], frame_to_bytes(bytes(16), payload), frames[1]], compress=compress)
    (spool / "1.seg").write_bytes(content)
    done = subprocess.run(
        [PROGRAM, "--once", "--spool", spool, "--database", database_path],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit_memory,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr[-2000:]
    assert Spool(spool).status().quarantined == 1
    assert_exactly_once(database_url, [uid_of(3, 0), uid_of(3, 1)], produced)


def test_many_damaged_segments_cost_no_more_than_they_hold(tmp_path: Path, database_url: str) -> None:
    """Eighty segments with seeded damage in each: every whole frame is stored once, and nothing is left over."""
    rng = random.Random(11)  # noqa: S311 - the same again is what is wanted
    spool = tmp_path / "spool"
    spool.mkdir()
    whole: set[bytes] = set()
    for number in range(80):
        uids = [uid_of(100 + number, n) for n in range(3)]
        frames = frames_of(uids, compress=False)
        content = bytearray(segment_of(frames, compress=False))
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        (spool / f"{number:03}.seg").write_bytes(content)
        whole |= {uid for uid, frame in zip(uids, frames, strict=True) if frame in content}
    with Store.open(database_url) as store:
        report = ingest_once(spool, store)
    assert report.measurements == len(whole)
    assert report.segments == 80 - len(list((spool / "quarantine").glob("*.seg")))
    assert_exactly_once(database_url, whole, produced)
