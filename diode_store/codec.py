"""Records to bytes and back: one self-contained msgpack map per measurement.

This is the only module that knows the wire format. Layout of version 1::

    {"v": 1, "uid": bin16, "hardware": {...}, "environment": {...}, "problem": {...},
     "config_columns": [...], "configs": [[...], ...],
     "timing_columns": ["config", "runtime_us", ...], "timings": [[0, 39.4, ...], ...],
     "source": "import", ...}

Configs are a table of their own that timings point into, and both tables name their columns once: a map per
timing costs 3 to 10 times as much to decode. Absent optional fields are left out. Keys and columns that this
version does not know are kept in ``extra``.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgpack

from diode_store.errors import CodecError, RecordError, UnknownVersionError
from diode_store.records import (
    CONFIG_COLUMNS,
    DeviceState,
    Environment,
    Hardware,
    KernelConfig,
    Measurement,
    Outcome,
    Problem,
    Source,
    TensorSpec,
    Timing,
    TimingMethod,
)

WIRE_VERSION = 1
MAX_RECORD_BYTES = 64 * 2**20
"""Larger payloads are refused before they are decoded."""
MAX_ITEMS = 1_000_000
"""Most elements of one array or map inside a record."""

_Shallow = TypeVar("_Shallow", TimingMethod, DeviceState)

_CONFIG_COLUMNS = [*CONFIG_COLUMNS, "kwargs"]
_TIMING_COLUMNS = ["config", *(name for name in Timing._fields if name != "config")]
_HARDWARE_FIELDS = tuple(f.name for f in fields(Hardware))
_ENVIRONMENT_FIELDS = tuple(f.name for f in fields(Environment))
_SCALAR_FIELDS = (
    "host",
    "device_uuid",
    "sweep_id",
    "collector_version",
    "is_replay",
    "search_space",
    "sample_seed",
    "choice_policy",
    "dataset",
    "licence",
    "superseded_by",
)
_STRUCTURED_FIELDS = ("v", "uid", "hardware", "environment", "problem", "source", "measured_at", "timing_method")
_TABLE_FIELDS = ("config_columns", "configs", "timing_columns", "timings")
_KNOWN_FIELDS = frozenset((*_SCALAR_FIELDS, *_STRUCTURED_FIELDS, *_TABLE_FIELDS, "device_state", "flags", "extra"))


def encode(measurement: Measurement) -> bytes:
    """Return ``measurement`` as one msgpack map.

    Raises:
        RecordError: a runtime that is not finite and positive, or an outcome that does not fit it.
    """
    index: dict[KernelConfig, int] = {}
    timings = [(index.setdefault(t.config, len(index)), *t[1:]) for t in measurement.timings]
    _check_timings(timings)
    scalars = {name: getattr(measurement, name) for name in _SCALAR_FIELDS}
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
        **scalars,
    }
    kept = {name: value for name, value in content.items() if value is not None and value not in ({}, [], False)}
    columns = [*_CONFIG_COLUMNS, "extra"] if any(config.extra for config in index) else _CONFIG_COLUMNS
    kept["config_columns"] = columns
    kept["configs"] = [[getattr(config, name) for name in columns] for config in index]
    kept["timing_columns"] = _TIMING_COLUMNS
    kept["timings"] = timings
    try:
        return cast("bytes", msgpack.packb(kept))
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"a value of the record cannot be stored: {error}") from error


def decode(payload: bytes) -> Measurement:
    """Return the measurement that ``payload`` holds.

    Raises:
        UnknownVersionError: a newer writer's record.
        CodecError: anything else that is not one whole, valid record; the message says what is wrong.
    """
    content = _unpack(payload)
    try:
        return _measurement(content)
    except CodecError:
        raise
    except RecordError as error:
        raise CodecError(str(error)) from error
    except KeyError as error:
        raise CodecError(f"the record has no {error.args[0]!r}") from error
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise CodecError(f"a field of the record has the wrong type: {error}") from error


def _unpack(payload: bytes) -> dict[str, Any]:
    if len(payload) > MAX_RECORD_BYTES:
        raise CodecError(f"a record of {len(payload):,} bytes is over the limit of {MAX_RECORD_BYTES:,}")
    try:
        content = msgpack.unpackb(
            payload,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
            use_list=False,
            strict_map_key=True,
        )
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not a msgpack record: {error or type(error).__name__}") from error
    if not isinstance(content, dict):
        raise CodecError(f"a record must be a map, not {type(content).__name__}")
    version = content.get("v")
    if version != WIRE_VERSION or isinstance(version, bool):
        if isinstance(version, int) and version > WIRE_VERSION:
            raise UnknownVersionError(
                f"record version {version} is newer than {WIRE_VERSION}, the newest this torch-diode reads; upgrade it"
            )
        raise CodecError(f"unknown record version {version!r}; this torch-diode reads version {WIRE_VERSION}")
    return content


def _measurement(content: dict[str, Any]) -> Measurement:
    unknown = {name: value for name, value in content.items() if name not in _KNOWN_FIELDS}
    measured_at = content.get("measured_at")
    optional = {name: content[name] for name in _SCALAR_FIELDS if name in content}
    _check_optional(optional)
    return Measurement(
        uid=content["uid"],
        hardware=_hardware(content["hardware"]),
        environment=_environment(content.get("environment", {})),
        problem=_problem(content["problem"]),
        timings=_timings(content),
        source=Source(content["source"]),
        measured_at=datetime.fromisoformat(measured_at).astimezone(UTC) if measured_at else None,
        timing_method=_shallow(TimingMethod, content.get("timing_method", {})),
        device_state=_shallow(DeviceState, content.get("device_state", {})),
        flags=tuple(_text("flags", flag) for flag in content.get("flags", ())),
        extra={**content.get("extra", {}), **unknown},
        **optional,
    )


def _hardware(content: dict[str, Any]) -> Hardware:
    known = {name: content[name] for name in _HARDWARE_FIELDS if name in content and name != "extra"}
    for name in ("vendor", "name", "arch"):
        _text(f"hardware.{name}", known[name])
    for name in set(known) - {"vendor", "name", "arch"}:
        _count(f"hardware.{name}", known[name])
    return Hardware(**known, extra=_with_unknown(content, _HARDWARE_FIELDS))


def _environment(content: dict[str, Any]) -> Environment:
    known = {name: content[name] for name in _ENVIRONMENT_FIELDS if name in content and name != "extra"}
    for name in set(known) - {"template_hashes"}:
        _text(f"environment.{name}", known[name])
    known["template_hashes"] = {
        _text("template", uid): _text("template hash", digest)
        for uid, digest in known.get("template_hashes", {}).items()
    }
    return Environment(**known, extra=_with_unknown(content, _ENVIRONMENT_FIELDS))


def _problem(content: dict[str, Any]) -> Problem:
    inputs = tuple(
        TensorSpec(
            _text("dtype", dtype),
            tuple(_count("size", size) for size in sizes),
            tuple(_integer("stride", stride) for stride in strides),
        )
        for dtype, sizes, strides in content["inputs"]
    )
    scalars = {_text("scalar", name): _scalar(name, value) for name, value in content.get("scalars", ())}
    extra = _with_unknown(content, ("op", "inputs", "scalars", "extra"))
    return Problem.create(_text("op", content["op"]), inputs, scalars, extra)


@lru_cache(maxsize=100_000)
def _interned_config(columns: tuple[str, ...], row: tuple[Any, ...]) -> KernelConfig:
    """Build each distinct config once: records repeat the same few thousand."""
    values = dict(zip(columns, row, strict=True))
    _text("template", values["template"])
    for name in ("block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps"):
        if values.get(name) is not None:
            _integer(name, values[name])
    known = {name: values[name] for name in CONFIG_COLUMNS if name in values}
    kwargs = tuple(sorted((_text("kwarg", name), _scalar(name, value)) for name, value in values.get("kwargs") or ()))
    return KernelConfig(**known, kwargs=kwargs)


def _configs(content: dict[str, Any]) -> list[KernelConfig]:
    columns = content["config_columns"]
    plain = tuple(name for name in columns if name in _CONFIG_COLUMNS)
    if plain == columns:
        return [_interned_config(columns, row) for row in content["configs"]]
    positions = [columns.index(name) for name in plain]
    configs = []
    for row in content["configs"]:
        config = _interned_config(plain, tuple(row[i] for i in positions))
        values = dict(zip(columns, row, strict=True))
        unknown = {n: v for n, v in values.items() if n not in {*plain, "extra"} and v is not None}
        extra = {**(values.get("extra") or {}), **unknown}
        configs.append(replace(config, extra=extra) if extra else config)
    return configs


def _timings(content: dict[str, Any]) -> tuple[Timing, ...]:
    configs = _configs(content)
    columns = content["timing_columns"]
    rows = content["timings"]
    if not rows:
        raise CodecError("the record has no timings")
    if columns != tuple(_TIMING_COLUMNS):
        positions = {name: i for i, name in enumerate(columns)}
        defaults = {"outcome": "ok", "is_estimate": False}
        rows = [
            tuple(row[positions[n]] if n in positions else defaults.get(n) for n in _TIMING_COLUMNS) for row in rows
        ]
    _check_timings(rows)
    outcomes = {outcome.value: outcome for outcome in Outcome}
    if min(row[0] for row in rows) < 0:
        raise CodecError("a timing points before the first config")
    return tuple(Timing(configs[row[0]], row[1], outcomes[row[2]], *row[3:]) for row in rows)


def _check_timings(rows: Any) -> None:
    """Check what SQL could not: that numbers are finite and positive and fit their outcome."""
    outcomes = frozenset(Outcome)
    for position, (config, runtime_us, outcome, is_estimate, repeats, *spread) in enumerate(rows):
        if outcome not in outcomes:
            raise RecordError(f"timing {position}: unknown outcome {outcome!r}")
        if (outcome == "ok") != (runtime_us is not None):
            raise RecordError(f"timing {position}: outcome {outcome!s} does not go with runtime {runtime_us!r}")
        if type(config) is not int or type(is_estimate) is not bool:
            raise RecordError(f"timing {position}: config must be a whole number and is_estimate true or false")
        if repeats is not None and (type(repeats) is not int or repeats < 1):
            raise RecordError(f"timing {position}: repeats must be a positive whole number, not {repeats!r}")
        if runtime_us is not None:
            check_microseconds(f"timing {position}: runtime_us", runtime_us)
        for value in spread:
            if value is not None:
                check_microseconds(f"timing {position}: percentile", value)


def check_microseconds(what: str, value: object) -> float:
    """Return ``value`` if it is a time: a finite, positive number.

    Raises:
        RecordError: it is not; the message begins with ``what``.
    """
    if type(value) not in (float, int) or not math.isfinite(cast("float", value)) or cast("float", value) <= 0:
        raise RecordError(f"{what} must be a finite, positive number of microseconds, not {value!r}")
    return cast("float", value)


def _check_optional(optional: dict[str, Any]) -> None:
    for name, value in optional.items():
        if name == "is_replay":
            good = isinstance(value, bool)
        elif name == "sample_seed":
            good = type(value) is int
        elif name == "superseded_by":
            good = isinstance(value, bytes)
        else:
            good = isinstance(value, str)
        if not good:
            raise CodecError(f"{name} has the wrong type: {value!r}")


def _plain(record: Any) -> dict[str, Any]:
    """Return a dataclass as a map without its absent or empty fields."""
    values = ((f.name, getattr(record, f.name)) for f in fields(record))
    return {name: value for name, value in values if value is not None and value not in ({}, (), [])}


def _shallow(kind: type[_Shallow], content: dict[str, Any]) -> _Shallow:
    known = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in content.items() if name in known})


def _with_unknown(content: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    return {**content.get("extra", {}), **{name: value for name, value in content.items() if name not in known}}


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise CodecError(f"{what} must be text, not {value!r}")
    return value


def _integer(what: str, value: object) -> int:
    if type(value) is not int:
        raise CodecError(f"{what} must be a whole number, not {value!r}")
    return value


def _count(what: str, value: object) -> int:
    if _integer(what, value) < 1:
        raise CodecError(f"{what} must be at least 1, not {value!r}")
    return cast("int", value)


def _scalar(what: str, value: object) -> bool | int | float | str:
    if not isinstance(value, (bool, int, float, str)) or (isinstance(value, float) and not math.isfinite(value)):
        raise CodecError(f"{what} must be a finite number, text or true/false, not {value!r}")
    return value
