"""Records to bytes and back: one self-contained msgpack map per measurement, or per decision of the hook.

Only this package knows the wire format. Layout of a measurement, version 2::

    {"v": 2, "uid": bin16, "hardware": {...}, "environment": {...}, "problem": {...},
     "config_columns": [...], "configs": [bin, ...],
     "timing_columns": ["config", "runtime_us", ...], "timings": [[0, ...], [39.4, ...], ...],
     "source": "import", "metrics": [["spills", "B", [0, ...]], ...], ...}

Timings point into the table of configs. Each config is msgpack inside a bin, so that a reader decodes equal bytes once.
Timings hold one array per column, which decodes faster than one per timing. A single value instead of an array
applies to every row, and null for ``config`` counts up from 0. A metric is its name, its unit and its values, which
are a column like those of the timings. Absent optional fields are left out.

Records keep unknown values in ``extra``, as JSON. Unknown keys of a map go to the ``extra`` of its record. Unknown keys
of ``timing_method`` and ``device_state``, and unknown timing columns (under ``timings``), go to the ``extra`` of the
measurement.

A record of another kind names its ``kind``. Version numbers of other kinds follow those of measurements, so that a
reader without kinds refuses such a record as newer and keeps it. ``decision_map`` describes decisions, the only other
kind.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar, cast

import msgpack

from diode_store.decisions import DecisionRecord
from diode_store.errors import CodecError, OtherKindError, RecordError, UnknownVersionError
from diode_store.records import (
    STOCK_POLICY,
    DeviceState,
    Environment,
    Hardware,
    Measurement,
    Problem,
    Source,
    TimingMethod,
)
from diode_store.values import checks
from diode_store.values.checks import microseconds as check_microseconds
from diode_store.wire.decision_map import DECISION, DECISION_VERSION, decision_of, map_of
from diode_store.wire.record_parts import (
    NIL,
    codec_errors,
    environment_of,
    hardware_of,
    is_empty,
    moment,
    plain,
    problem_of,
    uid,
)
from diode_store.wire.record_tables import TABLE_FIELDS, read_metrics, read_tables, write_metrics, write_tables
from diode_store.wire.unpacking import MAX_ITEMS, MAX_RECORD_BYTES, Interned, read_map

__all__ = [
    "MAX_ITEMS",
    "MAX_RECORD_BYTES",
    "WIRE_VERSION",
    "Record",
    "RecordHead",
    "check_microseconds",
    "decode",
    "decode_head",
    "decode_record",
    "encode",
]

WIRE_VERSION = 2
"""Version of a measurement's record; readers refuse any other."""

Record = Measurement | DecisionRecord
"""Any record."""

_Shallow = TypeVar("_Shallow", TimingMethod, DeviceState)

_SOURCES = {source.value: source for source in Source}
_small = partial(checks.integer, least=0, most=checks.INT32)
_SHALLOW_CHECKS: dict[str, checks.Check] = {
    "statistic": checks.text,
    "flush_l2": checks.flag,
    "launch_hidden": checks.flag,
    "regime": checks.text,
    "sm_clock_mhz": _small,
    "memory_clock_mhz": _small,
    "temperature_c": partial(checks.integer, least=-checks.INT32, most=checks.INT32),
    "throttle_reasons": checks.text,
    "foreign_processes": _small,
}
_SCALAR_CHECKS: dict[str, checks.Check] = {
    "host": checks.text,
    "device_uuid": checks.text,
    "sweep_id": checks.text,
    "collector_version": checks.text,
    "is_replay": checks.flag,
    "search_space": checks.text,
    "sample_seed": checks.integer,
    "choice_policy": checks.text,
    "family": checks.text,
    "dataset": checks.text,
    "licence": checks.text,
    "superseded_by": uid,
}
_STRUCTURED_FIELDS = ("v", "uid", "hardware", "environment", "problem", "source", "measured_at", "timing_method")
_REPEATED_FIELDS = frozenset({"hardware", "environment", "problem", "timing_method", "device_state"})
_NO_MEASUREMENT = "it is the record of a decision, not a measurement"
_KNOWN_FIELDS = frozenset(
    (*_SCALAR_CHECKS, *_STRUCTURED_FIELDS, *TABLE_FIELDS, "device_state", "flags", "metrics", "extra")
)


def encode(record: Record) -> bytes:
    """Return ``record`` as one msgpack map.

    Raises:
        RecordError: ``decode_record`` would not read the bytes back: a time is not finite and positive, an outcome does
            not fit its time, a value has the wrong type, or the record is too large.
    """
    content = map_of(record) if isinstance(record, DecisionRecord) else _content(record)
    kept = {name: value for name, value in content.items() if not (is_empty(value) or value is False)}
    try:
        payload = cast("bytes", msgpack.packb(kept))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RecordError(f"a value of the record cannot be stored: {error}") from error
    decode_record(payload)
    return payload


def _content(measurement: Measurement) -> dict[str, Any]:
    return {
        "v": WIRE_VERSION,
        "uid": measurement.uid,
        "hardware": plain(measurement.hardware),
        "environment": plain(measurement.environment),
        "problem": plain(measurement.problem),
        "source": measurement.source,
        "measured_at": measurement.measured_at.isoformat() if measurement.measured_at else None,
        "timing_method": plain(measurement.timing_method),
        "device_state": plain(measurement.device_state),
        "flags": list(measurement.flags),
        "extra": dict(measurement.extra),
        "metrics": write_metrics(measurement.metrics),
        **{name: getattr(measurement, name) for name in _SCALAR_CHECKS},
        **write_tables(measurement.timings),
    }


def decode_record(payload: bytes) -> Record:
    """Return the record in ``payload``, of whichever kind.

    Raises:
        UnknownVersionError: a newer writer's record, or a record of an unknown kind.
        CodecError: anything else that is not one whole, valid record; the message says why.
    """
    content = read_map(payload, _REPEATED_FIELDS)
    with codec_errors():
        kind = _checked_kind(content)
        return decision_of(content) if kind == DECISION else _measurement(content)


def decode(payload: bytes) -> Measurement:
    """Return the measurement in ``payload``.

    Raises:
        OtherKindError: a record of another kind.
        CodecError: not one whole, valid record, or a newer writer's.
    """
    record = decode_record(payload)
    if isinstance(record, DecisionRecord):
        raise OtherKindError(_NO_MEASUREMENT)
    return record


@dataclass(frozen=True)
class RecordHead:
    """Fields of a measurement's record other than its timings and metrics."""

    uid: bytes
    hardware: Hardware
    environment: Environment
    problem: Problem
    source: Source
    is_replay: bool
    search_space: str | None
    sample_seed: int | None
    choice_policy: str
    timing_method: TimingMethod
    flags: tuple[str, ...]
    superseded_by: bytes | None


def decode_head(payload: bytes) -> RecordHead:
    """Return the head of the measurement in ``payload``; skipping the tables makes this many times as fast.

    Raises:
        CodecError: as for ``decode``, except for errors in the tables.
    """
    content = read_map(payload, _REPEATED_FIELDS, skipped=(*TABLE_FIELDS, "metrics"))
    with codec_errors():
        if _checked_kind(content) == DECISION:
            raise OtherKindError(_NO_MEASUREMENT)
        return _head(content)


def _checked_kind(content: dict[str, Any]) -> str | None:
    """Return the kind of a record that this version reads; None for a measurement."""
    version, kind = content.get("v"), content.get("kind")
    newest = WIRE_VERSION if kind is None else DECISION_VERSION
    if type(version) is int and version > newest:
        raise UnknownVersionError(
            f"record version {version} is newer than {newest}, the newest this torch-diode reads; upgrade it"
        )
    if kind is not None and checks.text("kind", kind) != DECISION:
        raise UnknownVersionError(
            f"kind {checks.shown(kind)} is not one that this torch-diode reads (measurements, {DECISION}); upgrade it"
        )
    if type(version) is not int or version < newest:
        raise CodecError(f"unknown record version {checks.shown(version)}; this torch-diode reads version {newest}")
    return kind


def _measurement(content: dict[str, Any]) -> Measurement:
    timings, unknown_columns = read_tables(content)
    method, unknown_method = _timing_method(content.get("timing_method", NIL))
    state, unknown_state = _device_state(content.get("device_state", NIL))
    unknown = {"timing_method": unknown_method, "device_state": unknown_state, "timings": unknown_columns}
    kept = {name: value for name, value in unknown.items() if value}
    measured_at = content.get("measured_at")
    return Measurement(
        uid=uid("uid", content["uid"]),
        hardware=hardware_of(content["hardware"]),
        environment=environment_of(content.get("environment", NIL)),
        problem=problem_of(content["problem"]),
        timings=timings,
        source=checks.member("source", _SOURCES, content["source"]),
        measured_at=None if measured_at is None else moment("measured_at", measured_at),
        timing_method=method,
        device_state=state,
        flags=_flags(content),
        extra=checks.json_map("extra", kept) | checks.extra_fields(content, _KNOWN_FIELDS),
        metrics=read_metrics(content, len(timings)),
        **checks.fields("record", content, _SCALAR_CHECKS),
    )


def _head(content: dict[str, Any]) -> RecordHead:
    scalars = {"choice_policy": STOCK_POLICY, **checks.fields("record", content, _SCALAR_CHECKS)}
    return RecordHead(
        uid=uid("uid", content["uid"]),
        hardware=hardware_of(content["hardware"]),
        environment=environment_of(content.get("environment", NIL)),
        problem=problem_of(content["problem"]),
        source=checks.member("source", _SOURCES, content["source"]),
        is_replay=scalars.get("is_replay", False),
        search_space=scalars.get("search_space"),
        sample_seed=scalars.get("sample_seed"),
        choice_policy=scalars["choice_policy"],
        timing_method=_timing_method(content.get("timing_method", NIL))[0],
        flags=_flags(content),
        superseded_by=scalars.get("superseded_by"),
    )


def _flags(content: dict[str, Any]) -> tuple[str, ...]:
    return tuple(checks.text("flags", flag) for flag in checks.array("flags", content.get("flags") or ()))


def _shallow(kind: type[_Shallow], name: str, values: dict[str, Any] | None) -> tuple[_Shallow, dict[str, Any]]:
    """Return a record without structure, and the unknown part of its map."""
    values = values or {}
    known = {f.name for f in fields(kind)}
    checked = checks.fields(name, values, {n: check for n, check in _SHALLOW_CHECKS.items() if n in known})
    return kind(**checked), checks.extra_fields(values, known)


_timing_method = Interned(partial(_shallow, TimingMethod, "timing_method"))
_device_state = Interned(partial(_shallow, DeviceState, "device_state"))
