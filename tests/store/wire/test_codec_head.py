"""The head of a record, read without its timings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from diode_store.errors import CodecError, UnknownVersionError
from diode_store.wire import codec, unpacking
from record_strategies import MEASUREMENTS

if TYPE_CHECKING:
    from diode_store.records import Measurement

EVERY = samples.measurement(**samples.EVERY_FIELD)
PAYLOAD = codec.encode(EVERY)


@given(MEASUREMENTS)
def test_it_says_what_the_whole_record_says(measurement: Measurement) -> None:
    """Every field of the head is the decoded measurement's, with the same keys."""
    head = codec.decode_head(codec.encode(measurement))
    assert {name: getattr(measurement, name) for name in vars(head)} == vars(head)
    assert head.problem.key == measurement.problem.key
    assert head.hardware.key == measurement.hardware.key
    assert head.environment.key == measurement.environment.key


def test_no_field_is_left_at_its_default() -> None:
    """A record that says everything has a head that does."""
    head = codec.decode_head(PAYLOAD)
    assert {name: getattr(EVERY, name) for name in vars(head)} == vars(head)
    assert (head.search_space, head.sample_seed, head.is_replay) == ("EXHAUSTIVE", 3, True)
    assert (head.choice_policy, head.flags, head.superseded_by) == ("hook:abc", ("throttled", "hot"), bytes(range(16)))


def test_the_tables_are_not_looked_at() -> None:
    """Whatever stands in the place of the tables costs nothing and matters to nobody."""
    content = msgpack.unpackb(PAYLOAD) | {"timings": {"deep": [[{}]]}, "configs": None}
    assert codec.decode_head(msgpack.packb(content)) == codec.decode_head(PAYLOAD)


@pytest.mark.quick(40)
@pytest.mark.parametrize("cut", range(0, len(PAYLOAD), 7))
def test_truncated_record_is_refused(cut: int) -> None:
    """A head is only read from a whole record."""
    with pytest.raises(CodecError):
        codec.decode_head(PAYLOAD[:cut])


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (PAYLOAD + b"\x00", "not a msgpack record: more bytes follow it"),
        (b"\x93\x01\x02\x03", "a record must be a map, not tuple"),
        (b"\x81\x81\xc0\xc0\xc0", "not a msgpack record: "),
        (msgpack.packb({"v": 0}), "unknown record version 0; this torch-diode reads version 2"),
        (msgpack.packb({"v": 2}), "the record has no 'uid'"),
        (msgpack.packb({**msgpack.unpackb(PAYLOAD), "source": "dream"}), "source must be one of feedback, "),
        (msgpack.packb({**msgpack.unpackb(PAYLOAD), "problem": 3}), "problem must be a map, not 3"),
        (b"\x81\xa1v" + b"\x91" * 5000 + b"\xc0", "not a msgpack record: "),
    ],
)
def test_what_is_no_record_is_refused(payload: bytes, message: str) -> None:
    """The message says what is wrong, as it does of a whole record."""
    with pytest.raises(CodecError) as raised:
        codec.decode_head(payload)
    assert str(raised.value).startswith(message)


def test_newer_version_is_refused_by_name() -> None:
    """A newer writer's record is no damage."""
    with pytest.raises(UnknownVersionError, match="record version 3 is newer than 2"):
        codec.decode_head(msgpack.packb({"v": 3}))


def test_oversized_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not even looked at."""
    monkeypatch.setattr(unpacking, "MAX_RECORD_BYTES", 10)
    with pytest.raises(CodecError, match=r"over the limit of 10$"):
        codec.decode_head(PAYLOAD)


@given(st.lists(st.tuples(st.integers(0, len(PAYLOAD) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes_never_crash(changes: list[tuple[int, int]]) -> None:
    """Damage ends in a head or in our error, never in another."""
    payload = bytearray(PAYLOAD)
    for position, value in changes:
        payload[position] = value
    try:
        codec.decode_head(bytes(payload))
    except CodecError:
        return
