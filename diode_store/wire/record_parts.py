"""Parts that records of every kind share on the wire: the device, the software, the problem and single values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from typing import Any

from diode_store.errors import CodecError, RecordError
from diode_store.records import Environment, Hardware, Problem, TensorSpec
from diode_store.values import checks
from diode_store.values.keys import KEY_BYTES
from diode_store.wire.unpacking import Interned

NIL = b"\xc0"
"""The value of an absent field."""


def uid(what: str, value: object) -> bytes:
    """Return ``value`` if it is a uid.

    Raises:
        CodecError: ``value`` is no uid.
    """
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise CodecError(f"{what} must be {KEY_BYTES} bytes, not {checks.shown(value)}")
    return value


_count = partial(checks.integer, least=1)
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


@contextmanager
def codec_errors() -> Iterator[None]:
    """Turn any error of Python about malformed content into one of ours.

    Raises:
        CodecError: instead of any of them.
    """
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


def moment(what: str, value: object) -> datetime:
    """Return the time that ``value`` says, in UTC.

    Raises:
        RecordError: ``value`` is no ISO 8601 time with its zone.
    """
    try:
        found = datetime.fromisoformat(checks.text(what, value))
    except ValueError as error:
        raise CodecError(f"{what} must be an ISO 8601 time, not {checks.shown(value)}") from error
    if found.tzinfo is None:
        raise CodecError(f"{what} must name its time zone: {found.isoformat()}")
    try:
        return found.astimezone(UTC)
    except OverflowError:
        raise CodecError(f"{what} is no time of the calendar in UTC: {checks.shown(value)}") from None


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


def is_empty(value: object) -> bool:
    """Return whether a field with this value is left out."""
    return value is None or (isinstance(value, (Mapping, list, tuple)) and not value)


def plain(record: Any) -> dict[str, Any]:
    """Return a dataclass as a map without its absent or empty fields."""
    values = ((f.name, getattr(record, f.name)) for f in fields(record))
    return {name: value for name, value in values if not is_empty(value)}


hardware_of = Interned(_hardware)
environment_of = Interned(_environment)
problem_of = Interned(_problem)
