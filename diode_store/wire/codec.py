"""Records to bytes and back: one self-contained msgpack map per measurement.

This is the only module that knows the wire format. Layout of version 2::

    {"v": 2, "uid": bin16, "hardware": {...}, "environment": {...}, "problem": {...},
     "config_columns": [...], "configs": [bin, ...],
     "timing_columns": ["config", "runtime_us", ...], "timings": [[0, ...], [39.4, ...], ...],
     "source": "import", ...}

Configs are a table of their own that timings point into; each row is msgpack inside a bin, which a reader that has
seen the same bytes need not decode again. Timings are an array a column; one value instead of an array stands in every
row, and null for ``config`` counts up from 0. Version 1 had arrays of rows in both places: a row a timing costs three
times as much to decode, a map a timing 3 to 10 times as much as that. Absent optional fields are left out. What this
version does not know is kept in ``extra``, which holds JSON: keys of a map in that record's ``extra``, unknown keys of
``timing_method`` and ``device_state`` under these names and unknown timing columns under ``timings`` in the
measurement's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar, cast

import msgpack

from diode_store import checks
from diode_store.checks import microseconds as check_microseconds
from diode_store.errors import CodecError, RecordError, UnknownVersionError
from diode_store.keys import KEY_BYTES
from diode_store.records import (
    STOCK_POLICY,
    DeviceState,
    Environment,
    Hardware,
    Measurement,
    Problem,
    Source,
    TensorSpec,
    TimingMethod,
)
from diode_store.wire.record_tables import TABLE_FIELDS, read_tables, write_tables
from diode_store.wire.unpacking import MAX_ITEMS, MAX_RECORD_BYTES, Interned, read_map

__all__ = [
    "MAX_ITEMS",
    "MAX_RECORD_BYTES",
    "WIRE_VERSION",
    "RecordHead",
    "check_microseconds",
    "decode",
    "decode_head",
    "encode",
]

WIRE_VERSION = 2
"""What is written; every version from 1 on is read."""

_Shallow = TypeVar("_Shallow", TimingMethod, DeviceState)

_SOURCES = {source.value: source for source in Source}


def _uid(what: str, value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise CodecError(f"{what} must be {KEY_BYTES} bytes, not {checks.shown(value)}")
    return value


_count = partial(checks.integer, least=1)
_small = partial(checks.integer, least=0, most=checks.INT32)
_HARDWARE_CHECKS: dict[str, checks.Check] = {
    "vendor": checks.text,
    "name": checks.text,
    "arch": checks.text,
    "multiprocessors": partial(checks.integer, least=1, most=checks.INT32),
    "l2_bytes": _count,
    "shared_memory_per_block_bytes": _count,
    "memory_bytes": _count,
    "memory_bandwidth_bytes_per_s": _count,
    "max_clock_mhz": partial(checks.integer, least=1, most=checks.INT32),
}
_ENVIRONMENT_CHECKS: dict[str, checks.Check] = dict.fromkeys(
    ("torch", "triton", "compute", "driver", "python", "os"), checks.text
)
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
    "superseded_by": _uid,
}
_STRUCTURED_FIELDS = ("v", "uid", "hardware", "environment", "problem", "source", "measured_at", "timing_method")
_NIL = b"\xc0"
"""The value of an absent field."""
_REPEATED_FIELDS = frozenset({"hardware", "environment", "problem", "timing_method", "device_state"})
_KNOWN_FIELDS = frozenset((*_SCALAR_CHECKS, *_STRUCTURED_FIELDS, *TABLE_FIELDS, "device_state", "flags", "extra"))


def encode(measurement: Measurement) -> bytes:
    """Return ``measurement`` as one msgpack map.

    Raises:
        RecordError: ``decode`` would not read it back, because of a runtime that is not finite and positive, an
            outcome that does not fit it, a value of the wrong type, or its size.
    """
    try:
        payload = cast("bytes", msgpack.packb(_content(measurement)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RecordError(f"a value of the record cannot be stored: {error}") from error
    decode(payload)
    return payload


def _content(measurement: Measurement) -> dict[str, Any]:
    content = {
        "v": WIRE_VERSION,
        "uid": measurement.uid,
        "hardware": _plain(measurement.hardware),
        "environment": _plain(measurement.environment),
        "problem": _plain(measurement.problem),
        "source": measurement.source,
        "measured_at": measurement.measured_at.isoformat() if measurement.measured_at else None,
        "timing_method": _plain(measurement.timing_method),
        "device_state": _plain(measurement.device_state),
        "flags": list(measurement.flags),
        "extra": dict(measurement.extra),
        **{name: getattr(measurement, name) for name in _SCALAR_CHECKS},
        **write_tables(measurement.timings),
    }
    return {name: value for name, value in content.items() if not (_is_empty(value) or value is False)}


def decode(payload: bytes) -> Measurement:
    """Return the measurement that ``payload`` holds.

    Raises:
        UnknownVersionError: a newer writer's record.
        CodecError: anything else that is not one whole, valid record; the message says what is wrong.
    """
    content = read_map(payload, _REPEATED_FIELDS, raw_arrays=("configs",))
    _check_version(content.get("v"))
    with _codec_errors():
        return _measurement(content)


@dataclass(frozen=True)
class RecordHead:
    """What a record says of its measurement, without the timings."""

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
    """Return what ``payload`` says of its measurement; the tables are skipped, which makes it many times as fast.

    Raises:
        UnknownVersionError: a newer writer's record.
        CodecError: as for ``decode``, but what the tables hold is not looked at.
    """
    content = read_map(payload, _REPEATED_FIELDS, skipped=TABLE_FIELDS)
    _check_version(content.get("v"))
    with _codec_errors():
        return _head(content)


@contextmanager
def _codec_errors() -> Iterator[None]:
    """Turn whatever Python raises for malformed content into one of our errors."""
    try:
        yield
    except CodecError:
        raise
    except RecordError as error:
        raise CodecError(str(error)) from error
    except KeyError as error:
        raise CodecError(f"the record has no {checks.shown(error.args[0])}") from error
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        # Python's message here is about our code, not about the record; it stays in the chain.
        raise CodecError("a field of the record has the wrong type") from error


def _check_version(version: object) -> None:
    if type(version) is int and version > WIRE_VERSION:
        raise UnknownVersionError(
            f"record version {version} is newer than {WIRE_VERSION}, the newest this torch-diode reads; upgrade it"
        )
    if type(version) is not int or version < 1:
        raise CodecError(
            f"unknown record version {checks.shown(version)}; this torch-diode reads versions 1 to {WIRE_VERSION}"
        )


def _measurement(content: dict[str, Any]) -> Measurement:
    timings, unknown_columns = read_tables(content, content["v"])
    method, unknown_method = _timing_method(content.get("timing_method", _NIL))
    state, unknown_state = _device_state(content.get("device_state", _NIL))
    unknown = {"timing_method": unknown_method, "device_state": unknown_state, "timings": unknown_columns}
    kept = {name: value for name, value in unknown.items() if value}
    return Measurement(
        uid=_uid("uid", content["uid"]),
        hardware=_interned_hardware(content["hardware"]),
        environment=_interned_environment(content.get("environment", _NIL)),
        problem=_interned_problem(content["problem"]),
        timings=timings,
        source=checks.member("source", _SOURCES, content["source"]),
        measured_at=_measured_at(content.get("measured_at")),
        timing_method=method,
        device_state=state,
        flags=_flags(content),
        extra=checks.json_map("extra", kept) | checks.extra_fields(content, _KNOWN_FIELDS),
        **checks.fields("record", content, _SCALAR_CHECKS),
    )


def _head(content: dict[str, Any]) -> RecordHead:
    scalars = {"choice_policy": STOCK_POLICY, **checks.fields("record", content, _SCALAR_CHECKS)}
    return RecordHead(
        uid=_uid("uid", content["uid"]),
        hardware=_interned_hardware(content["hardware"]),
        environment=_interned_environment(content.get("environment", _NIL)),
        problem=_interned_problem(content["problem"]),
        source=checks.member("source", _SOURCES, content["source"]),
        is_replay=scalars.get("is_replay", False),
        search_space=scalars.get("search_space"),
        sample_seed=scalars.get("sample_seed"),
        choice_policy=scalars["choice_policy"],
        timing_method=_timing_method(content.get("timing_method", _NIL))[0],
        flags=_flags(content),
        superseded_by=scalars.get("superseded_by"),
    )


def _flags(content: dict[str, Any]) -> tuple[str, ...]:
    return tuple(checks.text("flags", flag) for flag in checks.array("flags", content.get("flags") or ()))


def _measured_at(value: object) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(checks.text("measured_at", value))
    except ValueError as error:
        raise CodecError(f"measured_at must be an ISO 8601 time, not {checks.shown(value)}") from error
    if moment.tzinfo is None:
        raise CodecError(f"measured_at must name its time zone: {moment.isoformat()}")
    return moment.astimezone(UTC)


def _hardware(content: dict[str, Any]) -> Hardware:
    known = checks.fields("hardware", content, _HARDWARE_CHECKS)
    checks.require("hardware", known, ("vendor", "name", "arch", "multiprocessors"))
    return Hardware(**known, extra=checks.extra_fields(content, _HARDWARE_CHECKS))


def _environment(content: dict[str, Any] | None) -> Environment:
    content = content or {}
    known = checks.fields("environment", content, _ENVIRONMENT_CHECKS)
    hashes = checks.json_map("template_hashes", content.get("template_hashes") or {})
    return Environment(
        **known,
        template_hashes={checks.text("template", uid): checks.text("hash", digest) for uid, digest in hashes.items()},
        extra=checks.extra_fields(content, {*_ENVIRONMENT_CHECKS, "template_hashes"}),
    )


def _problem(content: dict[str, Any]) -> Problem:
    op = checks.fields("problem", content, {"op": checks.text}).get("op")
    checks.require("problem", content, ("op", "inputs"))
    specs = (checks.array(f"inputs[{i}]", spec, 3) for i, spec in enumerate(checks.array("inputs", content["inputs"])))
    inputs = tuple(
        TensorSpec(
            checks.text("dtype", dtype),
            tuple(_count("size", size) for size in checks.array("sizes", sizes)),
            tuple(checks.integer("stride", stride) for stride in checks.array("strides", strides)),
        )
        for dtype, sizes, strides in specs
    )
    pairs = [checks.array("a scalar", pair, 2) for pair in checks.array("scalars", content.get("scalars") or ())]
    scalars = {
        checks.text("scalar", name): checks.scalar(f"scalar {checks.shown(name)}", value) for name, value in pairs
    }
    extra = checks.extra_fields(content, {"op", "inputs", "scalars"})
    return Problem.create(checks.text("op", op), inputs, scalars, extra)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, (Mapping, list, tuple)) and not value)


def _plain(record: Any) -> dict[str, Any]:
    """Return a dataclass as a map without its absent or empty fields."""
    values = ((f.name, getattr(record, f.name)) for f in fields(record))
    return {name: value for name, value in values if not _is_empty(value)}


def _shallow(kind: type[_Shallow], name: str, values: dict[str, Any] | None) -> tuple[_Shallow, dict[str, Any]]:
    """Return a record without structure, and what of its map this version does not know."""
    values = values or {}
    known = {f.name for f in fields(kind)}
    checked = checks.fields(name, values, {n: check for n, check in _SHALLOW_CHECKS.items() if n in known})
    return kind(**checked), checks.extra_fields(values, known)


_interned_hardware = Interned(_hardware)
_interned_environment = Interned(_environment)
_interned_problem = Interned(_problem)
_timing_method = Interned(partial(_shallow, TimingMethod, "timing_method"))
_device_state = Interned(partial(_shallow, DeviceState, "device_state"))
