"""Decisions as bytes, beside measurements and beside what older and newer releases write."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hypothesis import given

import samples
from decided import EVERY_FIELD, decision
from diode_store.candidates.names import kernel_config
from diode_store.decisions import MOST_KEPT, KeptConfig
from diode_store.errors import CodecError, OtherKindError, RecordError, UnknownVersionError
from diode_store.wire import codec
from diode_store.wire.segment_layout import Header, end_to_bytes, frame_to_bytes, pack_payload
from diode_store.wire.segments import Reason, read_segment
from record_strategies import DECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from diode_store.decisions import DecisionRecord

VENDOR = kernel_config("mm", {})
VERSION_3: dict[str, Any] = {
    "v": 3,
    "kind": "decision",
    "uid": b"decision" + bytes(7) + b"\x01",
    "hardware": {"vendor": "nvidia", "name": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132},
    "environment": {
        "torch": "2.11.0+cu130",
        "triton": "3.6.0",
        "compute": "cuda 13.0",
        "driver": "580.95",
        "python": "3.12.3",
        "os": "unknown",
    },
    "problem": {"op": "mm", "inputs": [["bfloat16", [65, 128], [128, 1]], ["bfloat16", [128, 256], [256, 1]]]},
    "decided_at": "2026-11-20T12:30:00+00:00",
    "extra": {"note": "ä", "list": [1, 2.5, None]},
    "decided_by": "model",
    "reason": "a template is predicted fastest",
    "policy": "adaptive/3/1.1/model's",
    "mode": "adaptive",
    "candidates": 1401,
    "predicted_vendor_us": 12.5,
    "p_within_2pct": 0.75,
    "similar_to": "NVIDIA H200",
    "model_sha256": "a" * 64,
    "seconds": 0.0125,
    "observed": True,
    "failure": "CompilationError: größer\nas it is",
    "host": "gpu-7",
    "hook_version": 3,
    "config_columns": [
        *("template", "block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps", "allow_tf32"),
        *("use_fast_accum", "acc_type", "kwargs"),
    ],
    "configs": [
        msgpack.packb(["triton::mm", 64, 64, 32, 8, 3, 4, False, None, "tl.float32", []]),
        msgpack.packb(["aten::mm", None, None, None, None, None, None, None, None, None, []]),
    ],
    "predicted_us": [9.5, None],
}
SAME = decision(1, (samples.triton_config(), 9.5), (VENDOR, None), **EVERY_FIELD)


def changed(change: Callable[[dict[str, Any]], object]) -> DecisionRecord:
    """Decode a good record after ``change``."""
    content = msgpack.unpackb(codec.encode(SAME))
    change(content)
    record = codec.decode_record(msgpack.packb(content))
    assert not isinstance(record, codec.Measurement)
    return record


@given(DECISIONS)
def test_round_trip(written: DecisionRecord) -> None:
    """Whatever the hook may hand over comes back equal, with the same keys and the same extra values."""
    read = codec.decode_record(codec.encode(written))
    assert read == written
    assert not isinstance(read, codec.Measurement)
    assert (read.problem.key, read.environment.key) == (written.problem.key, written.environment.key)
    assert [config.key for config, _ in read.kept] == [config.key for config, _ in written.kept]


def test_version_3_is_read_for_ever() -> None:
    """A decision written by an earlier release is read by every later one."""
    assert msgpack.unpackb(codec.encode(SAME)) == VERSION_3
    assert codec.decode_record(msgpack.packb(VERSION_3)) == SAME


def test_little_is_needed() -> None:
    """What is absent has its default."""
    needed = ("v", "kind", "uid", "hardware", "problem", "decided_by", "reason", "policy", "mode", "decided_at")
    little = codec.decode_record(msgpack.packb({name: VERSION_3[name] for name in needed}))
    assert not isinstance(little, codec.Measurement)
    assert (little.kept, little.candidates, little.observed, little.failure, little.extra) == ((), 0, False, None, {})


@pytest.mark.parametrize("name", ["uid", "hardware", "problem", "decided_by", "reason", "policy", "mode", "decided_at"])
def test_what_is_missing_is_named(name: str) -> None:
    """A record without a field that it needs says which."""
    with pytest.raises(CodecError, match=f"the record of a decision has no {name}"):
        changed(lambda content: content.pop(name))


def test_unknown_keys_are_kept() -> None:
    """What a newer writer adds goes into ``extra``."""
    assert changed(lambda content: content.update(later=[1, {"b": b"\1"}])).extra == {
        **EVERY_FIELD["extra"],
        "later": [1, {"b": "01"}],
    }


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a time of the wrong sign": ({"predicted_vendor_us": -1.0}, "decision.predicted_vendor_us must be a finite"),
    "a time that is no number": ({"predicted_us": [1.0, float("nan")]}, r"predicted_us\[1\] must be a finite"),
    "a time in picoseconds": ({"predicted_us": [1e15, None]}, "check its unit"),
    "too few times": ({"predicted_us": [1.0]}, "predicted_us must hold 2 values, not 1"),
    "times without configs": ({"configs": []}, "predicted_us must hold 0 values, not 2"),
    "no times": ({"predicted_us": None}, "predicted_us must be an array"),
    "a probability of two": ({"p_within_2pct": 2}, "decision.p_within_2pct must be a number from 0 to 1, not 2"),
    "no probability": ({"p_within_2pct": float("nan")}, "must be a number from 0 to 1, not nan"),
    "time that runs back": ({"seconds": -0.1}, "decision.seconds must be a number from 0 to 1e"),
    "a flag in words": ({"observed": "yes"}, "decision.observed must be true or false"),
    "half a candidate": ({"candidates": 0.5}, "decision.candidates must be a whole number"),
    "more candidates than there can be": ({"candidates": 2**31}, "decision.candidates must be a whole number"),
    "a reason that is no text": ({"reason": 1}, "decision.reason must be text"),
    "words without end": ({"failure": "x" * 5000}, "decision.failure must be text of at most 4096"),
    "a time of day in words": ({"decided_at": "yesterday"}, "decided_at must be an ISO 8601 time, not 'yesterday'"),
    "a time of no zone": ({"decided_at": "2026-11-20T12:30:00"}, "decided_at must name its time zone"),
    "a short uid": ({"uid": b"1"}, "uid must be 16 bytes"),
    "hardware in words": ({"hardware": "H200"}, "hardware must be a map"),
    "a problem that is none": ({"problem": {"op": "sin", "inputs": []}}, "sin: expected 1 to 64 inputs, not 0"),
    "extra in words": ({"extra": "x"}, "extra must be a map"),
    "a kind that is no text": ({"kind": 7}, "kind must be text, not 7"),
    "an older version": ({"v": 2}, "unknown record version 2; this torch-diode reads version 3"),
    "no version": ({"v": None}, "unknown record version None"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_values_are_named(what: str) -> None:
    """One line says which field has which value, and what it must be."""
    change, message = BAD[what]
    with pytest.raises(CodecError, match=message) as error:
        changed(lambda content: content.update(change))
    assert "\n" not in str(error.value)
    assert not isinstance(error.value, UnknownVersionError)


def test_too_many_kernels_are_refused() -> None:
    """Neither written nor read is more than any list of candidates has."""
    with pytest.raises(RecordError, match="a decision may keep 10,000 kernels, not 10,001"):
        decision(1, *[(VENDOR, 1.0)] * (MOST_KEPT + 1))
    many = {"configs": VERSION_3["configs"][:1] * (MOST_KEPT + 1), "predicted_us": [1.0] * (MOST_KEPT + 1)}
    with pytest.raises(CodecError, match="a decision may keep 10,000 kernels, not 10,001"):
        changed(lambda content: content.update(many))


def test_what_cannot_be_read_back_is_not_written() -> None:
    """The writer, in whose process the mistake is, hears of it."""
    for wrong in ({"seconds": -1.0}, {"kept": (KeptConfig(VENDOR, float("inf")),)}, {"reason": "a\0"}):
        with pytest.raises(RecordError):
            codec.encode(decision(1, **wrong))
    with pytest.raises(RecordError, match="time zone"):
        decision(1, decided_at=datetime(2026, 11, 20))  # noqa: DTZ001 - what is wrong with it
    with pytest.raises(RecordError, match="uid must be 16 bytes"):
        decision(1, uid=b"")


def test_older_readers_refuse_it_as_newer() -> None:
    """A release that knows no kinds goes by the version: it keeps the record for a newer one, and says so."""
    as_they_see_it = msgpack.packb({name: value for name, value in VERSION_3.items() if name != "kind"})
    with pytest.raises(UnknownVersionError, match="record version 3 is newer than 2, the newest this torch-diode"):
        codec.decode_record(as_they_see_it)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "verdict"}, r"kind 'verdict' is not one that this torch-diode reads \(measurements, decision\)"),
        ({"kind": "verdict", "v": 4}, "record version 4 is newer than 3, the newest this torch-diode reads; upgrade"),
        ({"v": 4}, "record version 4 is newer than 3, the newest this torch-diode reads; upgrade it"),
    ],
)
def test_newer_kinds_and_versions_are_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """They are kept as a newer release's, which can read them."""
    payload = msgpack.packb({**VERSION_3, **change})
    with pytest.raises(UnknownVersionError, match=message) as error:
        codec.decode_record(payload)
    assert Reason.of(error.value) is Reason.NEWER_RECORD
    with pytest.raises(UnknownVersionError):
        codec.decode_head(payload)


def test_a_measurement_has_no_kind() -> None:
    """A record without a kind is a measurement, written and read as before there were kinds."""
    payload = codec.encode(samples.measurement(1))
    assert "kind" not in msgpack.unpackb(payload)
    assert msgpack.unpackb(payload)["v"] == codec.WIRE_VERSION == 2
    assert codec.decode_record(payload) == codec.decode(payload) == samples.measurement(1)


def test_who_asks_for_a_measurement_is_told(tmp_path: Path) -> None:
    """A decision never passes for a measurement."""
    payload = codec.encode(SAME)
    for read in (codec.decode, codec.decode_head):
        with pytest.raises(OtherKindError, match="it is the record of a decision, not a measurement"):
            read(payload)
    path = tmp_path / "a.seg"
    frame = frame_to_bytes(SAME.uid, pack_payload(payload, compress=True))
    path.write_bytes(Header(bytes(16), 0, compressed=True).to_bytes() + frame + end_to_bytes(1))
    [found] = read_segment(path)
    assert found.record() == SAME
    with pytest.raises(OtherKindError):
        found.measurement()


def test_a_decision_under_anothers_uid_is_refused(tmp_path: Path) -> None:
    """As with measurements, the frame's uid and the record's are the same."""
    path = tmp_path / "a.seg"
    frame = frame_to_bytes(bytes(16), pack_payload(codec.encode(SAME), compress=False))
    path.write_bytes(Header(bytes(16), 0, compressed=False).to_bytes() + frame + end_to_bytes(1))
    [found] = read_segment(path)
    with pytest.raises(CodecError, match="is not its frame's"):
        found.record()
