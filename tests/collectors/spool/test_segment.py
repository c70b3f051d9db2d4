from __future__ import annotations

import io
import os
import struct
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spool_samples import frames_of, header_bytes, sample, segment_bytes, uid_of

from diode_store.errors import SegmentError
from diode_store.wire import segments
from diode_store.wire.segment_layout import (
    END_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    end_to_bytes,
    frame_to_bytes,
)
from diode_store.wire.segments import (
    Frame,
    Reason,
    SegmentReader,
    bytes_of_file,
    bytes_of_stream,
    read_segment,
)

if TYPE_CHECKING:
    from pathlib import Path

FRAME_MARKER = b"\xf5\xd1\x0d\xe5\xec\x7f\x1a\x01"


def read(content: bytes, *, sealed: bool = True) -> list[Frame]:
    """Read ``content`` as a file and as a stream, which must say the same; in memory, as some tests read thousands."""
    stream = SegmentReader(bytes_of_stream(Forward(content)), sealed=sealed)
    from_stream = list(stream.frames())
    fd = os.memfd_create("segment")
    try:
        os.write(fd, content)
        file = SegmentReader(bytes_of_file(fd), sealed=sealed)
        assert list(file.frames()) == from_stream
    finally:
        os.close(fd)
    assert (file.end, file.whole_bytes, file.torn_bytes) == (stream.end, stream.whole_bytes, stream.torn_bytes)
    assert file.end == len(content)
    return from_stream


class Forward(io.BytesIO):
    """A stream that can only be read on, as one that is being unpacked, and brings less than was asked for."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return a part of what was asked for."""
        return super().read(size and max(1, size // 3))

    def seek(self, *_: object) -> int:
        """Refuse."""
        raise io.UnsupportedOperation


def good(frames: list[Frame]) -> list[bytes | None]:
    """Return the uids of the whole frames."""
    return [frame.uid for frame in frames if frame.error is None]


def damage(frames: list[Frame]) -> list[tuple[int, Reason | None]]:
    """Return where the damage is, and of what kind."""
    return [(frame.offset, frame.reason) for frame in frames if frame.error is not None]


@pytest.mark.parametrize("compress", [True, False])
def test_whole_segment(compress: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    """Every frame comes back, in order, with its record."""
    frames = read(segment_bytes([1, 2, 3], compress=compress))
    assert good(frames) == [uid_of(1), uid_of(2), uid_of(3)]
    assert damage(frames) == []
    assert [frame.measurement() for frame in frames] == [sample(1), sample(2), sample(3)]


def test_read_segment_knows_by_the_name_whether_it_is_sealed(tmp_path: Path) -> None:
    """The end of ``*.open`` may be torn, that of ``*.seg`` may not."""
    torn = segment_bytes([1, 2], sealed=False)[:-1]
    for name, reasons in (("a.open", []), ("a.seg", [Reason.TRUNCATED])):
        path = tmp_path / name
        path.write_bytes(torn)
        frames = list(read_segment(path))
        assert good(frames) == [uid_of(1)]
        assert [frame.reason for frame in frames if frame.error] == reasons


def test_empty_sealed_segment() -> None:
    """A sealed segment without frames is whole."""
    assert read(segment_bytes([])) == []


def test_offsets_and_sizes_cover_the_file() -> None:
    """Offset and size say where a frame's bytes are."""
    content = segment_bytes([1, 2])
    first, second = read(content)
    assert first.offset == HEADER_BYTES
    assert second.offset == HEADER_BYTES + first.size
    assert content[second.offset : second.offset + second.size] == frames_of([2])[0]


@pytest.mark.parametrize("position", range(3))
def test_damaged_payload(position: int) -> None:
    """A frame that fails its CRC is reported with its offset; its neighbours are kept."""
    frames = frames_of([1, 2, 3])
    damaged = bytearray(frames[position])
    damaged[-1] ^= 1
    content = b"".join((header_bytes(), *frames[:position], bytes(damaged), *frames[position + 1 :], end_to_bytes(3)))
    offset = HEADER_BYTES + sum(len(frame) for frame in frames[:position])
    read_back = read(content)
    assert good(read_back) == [uid_of(n) for n in (1, 2, 3) if n != position + 1]
    assert damage(read_back) == [(offset, Reason.BAD_CRC)]
    assert read_back[position].error == "the frame's CRC does not match its bytes"
    assert read_back[position].size == len(damaged)


def test_damaged_length() -> None:
    """Behind a length that points past the file, the reader goes on at the next marker."""
    first, second, third = frames_of([1, 2, 3])
    broken = second[:24] + struct.pack(">I", 2**31) + second[28:]
    frames = read(header_bytes() + first + broken + third + end_to_bytes(3))
    assert good(frames) == [uid_of(1), uid_of(3)]
    assert damage(frames) == [(HEADER_BYTES + len(first), Reason.BAD_LENGTH)]


def test_damaged_marker() -> None:
    """A frame whose marker is damaged is one bad stretch up to the next marker."""
    first, second, third = frames_of([1, 2, 3])
    frames = read(header_bytes() + first + b"?" + second[1:] + third + end_to_bytes(3))
    assert good(frames) == [uid_of(1), uid_of(3)]
    assert damage(frames) == [(HEADER_BYTES + len(first), Reason.NO_MARKER)]


def test_garbage_between_frames() -> None:
    """Bytes that belong to no frame are reported and skipped, however many there are."""
    first, second = frames_of([1, 2])
    garbage = b"\xf5\xd1" * 1_500_000
    frames = read(header_bytes() + first + garbage + second + end_to_bytes(2))
    assert good(frames) == [uid_of(1), uid_of(2)]
    assert damage(frames) == [(HEADER_BYTES + len(first), Reason.NO_MARKER)]
    assert frames[1].size == len(garbage)


@pytest.mark.parametrize("distance", range(-9, 10))
def test_marker_across_a_scan_window(distance: int) -> None:
    """A marker is found wherever it lies against the borders of the windows that are searched."""
    (frame,) = frames_of([1])
    garbage = bytes(2**20 + 1 + distance)
    frames = read(header_bytes() + garbage + frame + end_to_bytes(1))
    assert good(frames) == [uid_of(1)]


def test_more_damage_than_anybody_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake frames cost no time without a bound: behind so many, or so large ones, the rest is one stretch."""
    (frame,) = frames_of([1])
    head = FRAME_MARKER + bytes(FRAME_BYTES - len(FRAME_MARKER))
    content = header_bytes() + frame + head * 50 + frame + end_to_bytes(2)
    assert len(damage(read(content))) == 50
    for name, most in (("MOST_DAMAGE", 10), ("MOST_LOOKED_AT_BYTES", -1)):
        with monkeypatch.context() as patched:
            patched.setattr(segments, name, most)
            frames = read(content)
        assert good(frames) == [uid_of(1)]
        assert len(frames) == 1 + max(most, 0) + 1
        assert (frames[-1].error or "").endswith("too much damage comes before; the rest is not read")


def test_two_damaged_frames_are_two_errors() -> None:
    """Each damaged frame is reported by itself."""
    first, second, third = (bytearray(frame) for frame in frames_of([1, 2, 3]))
    first[20] ^= 0x10
    second[-2] ^= 0x10
    frames = read(header_bytes() + bytes(first + second + third) + end_to_bytes(3))
    assert good(frames) == [uid_of(3)]
    assert damage(frames) == [(HEADER_BYTES, Reason.BAD_CRC), (HEADER_BYTES + len(first), Reason.BAD_CRC)]


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("offset", [0, 9, 11, 20, 39])
def test_damaged_header(offset: int, compress: bool) -> None:  # noqa: FBT001 - by name
    """Without a trustworthy header the frames are still read, compressed or not."""
    content = bytearray(segment_bytes([1, 2], compress=compress))
    content[offset] ^= 4
    frames = read(bytes(content))
    assert damage(frames) == [(0, Reason.BAD_HEADER)]
    assert [f.measurement().uid for f in frames if f.error is None] == [uid_of(1), uid_of(2)]


def test_newer_format_is_refused() -> None:
    """A segment of a later format is refused as a whole, by name."""
    content = header_bytes(version=2) + b"whatever comes next"
    with pytest.raises(SegmentError, match=r"^spool format 2 is not 1, .*; upgrade torch-diode$"):
        read(content)


@pytest.mark.parametrize("content", [b"", b"x", b"not a segment at all" * 50, header_bytes()[:-1]])
def test_no_segment(content: bytes) -> None:
    """A file that is no segment gives one error that covers all of it."""
    (error,) = read(content)
    assert error.error is not None
    assert error.size == len(content)


def test_sealed_segment_cut_at_every_byte() -> None:
    """Wherever a sealed segment is cut, whole frames are kept and exactly one error says that it was cut."""
    content = segment_bytes([1, 2])
    borders = {HEADER_BYTES: 0, HEADER_BYTES + len(frames_of([1])[0]): 1, len(content) - END_BYTES: 2}
    for length in range(len(content)):
        frames = read(content[:length])
        kept = max((count for border, count in borders.items() if border <= length), default=0)
        assert good(frames) == [uid_of(1), uid_of(2)][:kept]
        (last,) = [frame for frame in frames if frame.error is not None]
        if 0 < length < HEADER_BYTES:
            assert last.reason is Reason.BAD_HEADER
        else:
            assert last.reason is Reason.TRUNCATED
            assert "cut short" in str(last.error)
            assert last.offset + last.size == length


def test_unsealed_segment_cut_at_every_byte() -> None:
    """A torn tail of an unsealed segment is no error: its record was never acknowledged."""
    content = segment_bytes([1, 2, 3], sealed=False)
    sizes = [len(frame) for frame in frames_of([1, 2, 3])]
    borders = [HEADER_BYTES + sum(sizes[: i + 1]) for i in range(3)]
    for length in range(HEADER_BYTES, len(content) + 1):
        frames = read(content[:length], sealed=False)
        assert good(frames) == [uid_of(n) for n in (1, 2, 3) if borders[n - 1] <= length]
        assert damage(frames) == []


def test_unsealed_segment_reports_damage_before_its_tail() -> None:
    """Damage with a whole frame behind it is no torn tail."""
    first, second, third = frames_of([1, 2, 3])
    frames = read(header_bytes() + first + second[:-5] + third + b"torn", sealed=False)
    assert good(frames) == [uid_of(1), uid_of(3)]
    assert damage(frames) == [(HEADER_BYTES + len(first), Reason.BAD_CRC)]


def test_unsealed_segment_keeps_a_last_frame_that_fails_its_check() -> None:
    """A last frame of full length is no unfinished write, so it is reported rather than cut off."""
    first, second = frames_of([1, 2])
    frames = read(header_bytes() + first + second[:-1] + b"?", sealed=False)
    assert damage(frames) == [(HEADER_BYTES + len(first), Reason.BAD_CRC)]


def test_frames_cut_out_are_noticed() -> None:
    """A segment that lost a frame exactly at its borders does not pass for whole."""
    first, _, third = frames_of([1, 2, 3])
    frames = read(header_bytes() + first + third + end_to_bytes(3))
    assert good(frames) == [uid_of(1), uid_of(3)]
    assert [frame.error for frame in frames if frame.error] == ["the end mark counts 3 frames, but 2 are there"]


def test_bytes_behind_the_end_mark() -> None:
    """What somebody appended to a sealed segment is reported."""
    frames = read(segment_bytes([1]) + b"appended")
    assert good(frames) == [uid_of(1)]
    assert [frame.reason for frame in frames if frame.error] == [Reason.TRUNCATED]


@pytest.mark.long
def test_every_flipped_bit_is_noticed() -> None:
    """No single flipped bit goes unnoticed, makes up a record, or costs more than one frame."""
    content = segment_bytes([1, 2])
    expected = {uid_of(1): sample(1), uid_of(2): sample(2)}
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        frames = read(bytes(flipped))
        assert damage(frames), f"bit {bit} went unnoticed"
        kept = [frame for frame in frames if frame.error is None]
        assert len(kept) >= 1
        assert all(frame.measurement() == expected[frame.uid or b""] for frame in kept)


@given(data=st.data())
def test_any_damage_is_survived(data: st.DataObject) -> None:
    """Whatever stretch is overwritten, cut out or inserted, frames outside of it come back and nothing is made up."""
    frames = frames_of([1, 2, 3, 4])
    content = b"".join((header_bytes(), *frames, end_to_bytes(4)))
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 400)))
    inserted = data.draw(st.binary(max_size=200))
    read_back = read(content[:start] + inserted + content[stop:])
    offsets = [HEADER_BYTES + sum(len(f) for f in frames[:i]) for i in range(4)]
    untouched = [
        uid_of(i + 1)
        for i in range(4)
        if offsets[i] + len(frames[i]) <= start or (offsets[i] >= stop and not inserted.endswith(FRAME_MARKER[:1]))
    ]
    uids = good(read_back)
    assert set(untouched) <= set(uids)
    assert set(uids) <= {uid_of(n) for n in (1, 2, 3, 4)}
    if content[:start] + inserted + content[stop:] != content:
        assert damage(read_back)


@given(payloads=st.lists(st.binary(max_size=300) | st.just(FRAME_MARKER * 3), max_size=6))
def test_any_payload_round_trips(payloads: list[bytes]) -> None:
    """Frames hold any bytes, markers included."""
    content = b"".join(
        (header_bytes(compress=False), *(frame_to_bytes(bytes(16), p) for p in payloads), end_to_bytes(len(payloads)))
    )
    frames = read(content)
    assert [frame.payload for frame in frames] == payloads
    assert damage(frames) == []


def compressed_frame(payload: bytes) -> Frame:
    """Return a frame that holds ``payload`` and says that it is compressed."""
    return Frame(40, 32 + len(payload), bytes(16), payload, compressed=True)


def test_decompression_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload that unpacks to more than a record may have is refused without unpacking it."""
    monkeypatch.setattr("diode_store.wire.segment_layout.MAX_RECORD_BYTES", 1000)
    assert compressed_frame(zlib.compress(bytes(1000))).record_bytes() == bytes(1000)
    with pytest.raises(SegmentError, match="unpacks to more than 1,000 bytes"):
        compressed_frame(zlib.compress(bytes(1001))).record_bytes()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"no zlib", "does not unpack"),
        (zlib.compress(b"x" * 100)[:-3], "not one whole zlib stream"),
        (zlib.compress(b"x") + b"more", "not one whole zlib stream"),
        (b"", "not one whole zlib stream"),
    ],
)
def test_bad_compression(payload: bytes, message: str) -> None:
    """A payload that is not one whole zlib stream is refused."""
    with pytest.raises(SegmentError, match=message):
        compressed_frame(payload).record_bytes()


def test_damage_has_no_record() -> None:
    """Asking damage for its record says where it is and what is wrong."""
    (error,) = read(b"rubbish")
    with pytest.raises(SegmentError, match=r"^offset 0: the header is damaged"):
        error.record_bytes()
