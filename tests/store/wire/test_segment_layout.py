"""The bytes of a spool segment, which its writers and its readers share."""

from __future__ import annotations

import zlib

import pytest

from diode_store.errors import RecordError
from diode_store.wire import codec
from diode_store.wire.segment_layout import (
    END_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
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


def flipped(raw: bytes) -> list[bytes]:
    """Return ``raw`` with each of its bits flipped in turn."""
    return [(int.from_bytes(raw) ^ 1 << bit).to_bytes(len(raw)) for bit in range(8 * len(raw))]


def test_format_is_pinned() -> None:
    """The bytes of format 1 never change: old segments must stay readable."""
    header = Header(bytes(range(16)), 258, compressed=True).to_bytes()
    assert header.hex() == "8944494f44450d0a00010001000102030405060708090a0b0c0d0e0f0000000000000102c47a4b1a"
    assert frame_to_bytes(bytes(range(16)), b"payload").hex() == (
        "f5d10de5ec7f1a01000102030405060708090a0b0c0d0e0f0000000759f830657061796c6f6164"
    )
    assert end_to_bytes(3).hex() == "f5d10de5ec7f1a020000000000000003cfe6bb8f"
    assert (HEADER_BYTES, FRAME_BYTES, END_BYTES) == (40, 32, 20)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("version", [1, 2, 65_535])
def test_header_comes_back(version: int, *, compressed: bool) -> None:
    """Of a newer format too, so that a reader can refuse it by its number."""
    header = Header(b"w" * 16, 2**63, compressed, version)
    assert Header.of(header.to_bytes()) == header


def test_damaged_header_is_none() -> None:
    """Whichever bit is wrong, and wherever it is cut off."""
    raw = Header(b"w" * 16, 7, compressed=True).to_bytes()
    assert [Header.of(wrong) for wrong in flipped(raw)] == [None] * 8 * HEADER_BYTES
    assert [Header.of(raw[:length]) for length in range(HEADER_BYTES)] == [None] * HEADER_BYTES


def test_end_mark_comes_back() -> None:
    """It says how many frames stand before it, and says nothing once a bit is wrong or a byte is missing."""
    assert [frames_counted(end_to_bytes(count)) for count in (0, 1, 2**40)] == [0, 1, 2**40]
    raw = end_to_bytes(3)
    assert [frames_counted(wrong) for wrong in flipped(raw)] == [None] * 8 * END_BYTES
    assert [frames_counted(raw[:length]) for length in range(END_BYTES)] == [None] * END_BYTES


def test_frame_is_checked_as_a_whole() -> None:
    """Its head names the uid and the length; a wrong bit in the head or in the payload fails the check."""
    raw = frame_to_bytes(b"u" * 16, b"payload")
    head, payload = raw[:FRAME_BYTES], raw[FRAME_BYTES:]
    assert frame_head(head) == (b"u" * 16, len(payload))
    assert is_whole_frame(head, payload)
    assert not any(is_whole_frame(wrong, payload) for wrong in flipped(head))
    assert not any(is_whole_frame(head, wrong) for wrong in flipped(payload))


def test_payload_comes_back() -> None:
    """Unpacking is the other half of packing."""
    assert unpack_payload(pack_payload(b"record" * 100, compress=True)) == b"record" * 100


def test_too_large_a_record_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer does not write what no reader would read."""
    monkeypatch.setattr("diode_store.wire.segment_layout.MAX_RECORD_BYTES", 100)
    assert pack_payload(bytes(100), compress=False) == bytes(100)
    with pytest.raises(RecordError, match="101 bytes is over the limit of 100; split its timings"):
        pack_payload(bytes(101), compress=False)


def test_incompressible_records_fit_a_frame() -> None:
    """The largest record fits the largest payload even if zlib cannot make it smaller."""
    overhead = len(zlib.compress(b"", 0)) + 5 * (codec.MAX_RECORD_BYTES // 16_000 + 1)
    assert codec.MAX_RECORD_BYTES + overhead <= MAX_PAYLOAD_BYTES
