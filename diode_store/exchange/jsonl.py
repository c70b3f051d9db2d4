"""JSON Lines: one problem per line, with every kernel that was timed for it.

A benchmark script would write a line such as::

    {"op": "mm", "dtype": "bf16", "B": 1, "M": 64, "N": 32, "K": 16, "layout": "nt",
     "inputs": [{"dtype": "bfloat16", "size": [64, 16], "stride": [16, 1]}, ...],
     "choices": [{"template": "triton_mm", "kwargs": {"BLOCK_M": 64, ...}, "runtime_us": 9.1}, ...]}

``inputs`` describes the measured operands; the reader checks the other dimensions against it. A ``runtime_us`` of null
is a failure. A choice slower than ``ESTIMATE_FACTOR`` times its problem's best counts as an estimate. Benchmark scripts
that write this format drop such a choice after a first look.

Our own export (``row_of``) adds ``uid``, ``hardware`` and the measurement's other fields to the line. To a choice it
adds ``outcome``, ``is_estimate`` and ``repeats``. A line's own values count; missing ones come from the context.
``metrics`` is ``[[name, unit, [a value or null for each choice]], ...]``. An op that this version does not know needs
``op``, ``inputs`` and ``choices`` only.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from dataclasses import asdict, replace
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any, NoReturn

import msgpack

from diode_store.candidates.names import SHORT_DTYPES, kernel_config
from diode_store.errors import HardwareError, RecordError, first_line
from diode_store.exchange.bounds import MAX_LINE_BYTES, MAX_LINE_VALUES, bounded_lines, check_json
from diode_store.exchange.context import ESTIMATE_FACTOR, NO_HARDWARE, BadLine, ImportContext, with_remedy
from diode_store.exchange.jsonl_checks import (
    check_shape,
    digest,
    problem_of,
    require,
    time_with_zone,
    type_name,
    typed,
    unstorable,
)
from diode_store.ops import OPS
from diode_store.records import (
    CONFIG_COLUMNS,
    Hardware,
    KernelConfig,
    Measurement,
    Source,
    Timing,
    TimingMethod,
)
from diode_store.values.checks import shown
from diode_store.values.keys import KEY_BYTES, content_key
from diode_store.wire import codec
from diode_store.wire.record_tables import tables_of_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from diode_store.records import ProblemShape

__all__ = ["ESTIMATE_FACTOR", "TIMING_METHOD", "BadLine", "ImportContext", "measurement_of", "read", "row_of", "write"]

_Rows = tuple[list[str], list[list[Any]], list[str], list[list[Any]]]
"""Columns and rows of the configs, then columns and rows of the timings."""
LINE_VERSION = 1
"""Version of the line format, which has a row for each choice."""
TIMING_METHOD = TimingMethod(statistic="median", flush_l2=True, launch_hidden=True)
"""Timing method of ``runtime_us``, unless the line or the context says otherwise."""

_PROBLEM_FIELDS = ("op", "dtype", "B", "M", "N", "K", "layout", "inputs", "choices")
_OF_ANY_OP = ("op", "inputs", "choices")
"""Fields that a line of an unknown op must have."""
_OPTIONAL_PROBLEM_FIELDS = ("scalars", "problem_extra", "dimensions")
_SPREAD = ("repeats", "p10_us", "p90_us")
_CHOICE_FIELDS = frozenset({"template", "kwargs", "runtime_us", "outcome", "is_estimate", *_SPREAD, "extra"})
_TIMING = re.compile(r"^timing (\d+): ")
_CONTEXT_FIELDS = ("measured_at", "dataset", "licence", "search_space")


def read(stream: Iterable[bytes], context: ImportContext) -> Iterator[Measurement | BadLine]:
    """Yield the measurement of each line of ``stream``, or a report of the bad line.

    Bad lines do not affect good ones, and blank lines are skipped. A line without a uid gets a hash of its content and
    the context, so that the same line always becomes the same measurement.
    """
    lines = bounded_lines(stream)
    number = 0
    while True:
        number += 1
        try:
            line = next(lines)
        except StopIteration:
            return
        except (OSError, EOFError, zlib.error) as error:
            yield BadLine(number, f"the file breaks off here ({error}); get a whole copy of it")
            return
        if line is None:
            yield BadLine(number, f"the line is longer than {MAX_LINE_BYTES:,} bytes; split its choices")
            continue
        if not line.strip():
            continue
        try:
            yield measurement_of(parse(line), context)
        except RecordError as error:
            yield BadLine(number, with_remedy(str(error), "correct or remove the line"))


def parse(line: bytes) -> dict[str, Any]:
    """Return the JSON object of ``line``; whole floats become ints, so that 39.0 and 39 are equal.

    Raises:
        RecordError: the line holds no JSON object.
    """
    check_json(line, MAX_LINE_VALUES)
    try:
        row = json.loads(line.decode("utf-8-sig").strip(), parse_constant=_refuse_constant, parse_float=_number)
    except json.JSONDecodeError as error:
        raise RecordError(f"malformed JSON at column {error.colno}: {error.msg}; correct or remove the line") from error
    except RecursionError as error:
        raise RecordError("not JSON text: it is nested too deeply; correct or remove the line") from error
    except ValueError as error:
        raise RecordError(f"not JSON text: {first_line(error)}; correct or remove the line") from error
    return dict(typed(row, dict, "a line", "a JSON object"))


def measurement_of(row: Mapping[str, Any], context: ImportContext) -> Measurement:
    """Return the measurement described by ``row``, one line's object.

    Raises:
        RecordError: a field is missing, has the wrong type or contradicts another; the message names it.
    """
    op = row.get("op", "")
    require(row, _OF_ANY_OP if isinstance(op, str) and op and op not in OPS else _PROBLEM_FIELDS)
    content = {**_metadata(row, context), "problem": problem_of(row)}
    measurement = _validated(content, _rows(row["choices"]), row)
    asked = check_shape(row, measurement.problem)
    if asked:
        measurement = replace(measurement, extra={**measurement.extra, "unpadded": asked})
    return measurement if "uid" in row else replace(measurement, uid=_uid(row, measurement))


def write(
    stream: IO[bytes],
    measurements: Iterable[Measurement],
    on_progress: Callable[[float], None] = lambda _measurements: None,
) -> tuple[int, int]:
    """Write each measurement as a line; return the numbers of measurements and timings."""
    count = timings = 0
    for measurement in measurements:
        line = json.dumps(row_of(measurement), separators=(",", ":"), ensure_ascii=False)
        stream.write(line.encode() + b"\n")
        count += 1
        timings += len(measurement.timings)
        on_progress(1)
    return count, timings


def row_of(measurement: Measurement) -> dict[str, Any]:
    """Return the object of the line that ``read`` turns back into ``measurement``."""
    content = msgpack.unpackb(codec.encode(measurement))
    tables = {"problem", "config_columns", "configs", "timing_columns", "timings"}
    said = {name: value for name, value in content.items() if name not in tables} | {"v": LINE_VERSION}
    # Write empty values too, so that the reader's context does not replace them.
    said |= {name: content.get(name) for name in ("environment", "timing_method", *_CONTEXT_FIELDS)}
    said |= {name: said[name].hex() for name in ("uid", "superseded_by") if name in said}
    problem = measurement.problem
    optional = {"scalars": dict(problem.scalars), "problem_extra": dict(problem.extra)}
    return {
        "op": problem.op,
        **(_shape_of(problem.shape) if problem.is_known else {}),
        "inputs": [spec._asdict() for spec in problem.inputs],
        "choices": [_choice(timing) for timing in measurement.timings],
        **{name: value for name, value in optional.items() if value},
        **said,
    }


def _shape_of(shape: ProblemShape) -> dict[str, Any]:
    return {
        "dtype": SHORT_DTYPES.get(shape.dtype, shape.dtype),
        **{letter: getattr(shape, letter.lower()) for letter in "BMNK"},
        "layout": shape.layout,
        **({"dimensions": dict(shape.dimensions)} if shape.dimensions else {}),
    }


def kwargs_of(config: KernelConfig) -> dict[str, Any]:
    """Return the keyword arguments of ``config`` with the names that Triton templates use."""
    named = ((name, getattr(config, name)) for name in CONFIG_COLUMNS if name != "template")
    columns = {name if name.startswith("num_") else name.upper(): value for name, value in named}
    return {name: value for name, value in columns.items() if value is not None} | dict(config.kwargs)


def _choice(timing: Timing) -> dict[str, Any]:
    config = timing.config
    choice = {"template": config.template, "kwargs": kwargs_of(config), "runtime_us": timing.runtime_us}
    choice |= {"outcome": timing.outcome.value, "is_estimate": timing.is_estimate}
    choice |= {name: getattr(timing, name) for name in _SPREAD if getattr(timing, name) is not None}
    return {**choice, "extra": dict(config.extra)} if config.extra else choice


def _refuse_constant(text: str) -> NoReturn:
    raise RecordError(f"{text} is not a JSON number; a time is finite and positive, or null for a failure")


def _number(text: str) -> int | float:
    value = float(text)
    if not math.isfinite(value):
        raise RecordError(f"{text} is too large; a time is finite and positive, or null for a failure")
    return int(value) if value.is_integer() else value


def _metadata(row: Mapping[str, Any], context: ImportContext) -> dict[str, Any]:
    """Return everything but problem and timings in the wire format: values of ``row``, else of the context."""
    if row.get("v", LINE_VERSION) != LINE_VERSION:
        raise RecordError(
            f"record version {shown(row['v'])} is newer than {LINE_VERSION}, the newest a line has; upgrade torch-diode"
        )
    others = {*_PROBLEM_FIELDS, *_OPTIONAL_PROBLEM_FIELDS}
    content = {
        "source": Source.IMPORT,
        "environment": asdict(context.environment),
        "timing_method": asdict(context.timing_method or TIMING_METHOD),
        "measured_at": context.measured_at.isoformat() if context.measured_at else None,
        **{name: getattr(context, name) for name in _CONTEXT_FIELDS if name != "measured_at"},
        **{name: value for name, value in row.items() if name not in others},
        "hardware": _hardware(row.get("hardware"), context),
        "uid": digest("uid", row["uid"]) if "uid" in row else bytes(KEY_BYTES),
        "v": codec.WIRE_VERSION,
    }
    said = {name: value for name, value in content.items() if value is not None}
    if "superseded_by" in said:
        said["superseded_by"] = digest("superseded_by", said["superseded_by"])
    if "measured_at" in said:
        said["measured_at"] = time_with_zone("measured_at", said["measured_at"])
    return said


def _hardware(said: object, context: ImportContext) -> Any:
    """Return the hardware in the wire format; a name means a known device."""
    if said is not None and not isinstance(said, str):
        return said
    device = context.hardware if said is None else _known_device(said)
    if device is None:
        raise RecordError(NO_HARDWARE)
    return {name: value for name, value in asdict(device).items() if value is not None}


def _known_device(name: str) -> Hardware:
    from diode_store.devices.known import require_device

    try:
        return require_device(name)
    except HardwareError as error:
        raise RecordError(str(error)) from error


def _rows(choices: object) -> _Rows:
    """Return the wire format's config and timing tables as rows."""
    rows = [_checked_choice(i, choice) for i, choice in enumerate(typed(choices, list, "choices", "a list"))]
    if not rows:
        raise RecordError("choices is empty: a problem needs at least one timing")
    configs = [_config(i, row) for i, row in enumerate(rows)]
    runtimes = [_runtime(i, row) for i, row in enumerate(rows)]
    limit = ESTIMATE_FACTOR * min((us for us in runtimes if us is not None), default=math.inf)
    timings = []
    for i, (row, runtime_us) in enumerate(zip(rows, runtimes, strict=True)):
        outcome = row.get("outcome") or ("failed_unspecified" if runtime_us is None else "ok")
        gave_up = runtime_us is not None and runtime_us > limit
        timings.append([i, runtime_us, outcome, row.get("is_estimate", gave_up), *(row.get(n) for n in _SPREAD)])
    names = [*CONFIG_COLUMNS, "kwargs", *(["extra"] if any(config.extra for config in configs) else [])]
    columns = ["config", "runtime_us", "outcome", "is_estimate", *_SPREAD]
    return names, [[getattr(config, name) for name in names] for config in configs], columns, timings


def _checked_choice(position: int, choice: object) -> dict[str, Any]:
    where = f"choices[{position}]"
    row: dict[str, Any] = typed(choice, dict, where, "an object")
    require(row, ("template", "runtime_us"), f"{where}.")
    typed(row["template"], str, f"{where}.template", "a template's name")
    unknown = row.keys() - _CHOICE_FIELDS
    if unknown:
        raise RecordError(f"{where} has unknown fields: {', '.join(sorted(unknown))}; remove them")
    return row


def _config(position: int, row: Mapping[str, Any]) -> KernelConfig:
    where = f"choices[{position}]"
    kwargs = typed(row.get("kwargs") or {}, dict, f"{where}.kwargs", "an object")
    typed(row.get("extra") or {}, dict, f"{where}.extra", "an object")
    try:
        if any(isinstance(value, (dict, list)) for value in kwargs.values()) or "extra" in row:
            return kernel_config(row["template"], kwargs, row.get("extra"))
        return _interned(row["template"], tuple(kwargs.items()), tuple(map(type, kwargs.values())))
    except RecordError as error:
        raise RecordError(f"{where}: {error}") from error


@lru_cache(maxsize=100_000)
def _interned(template: str, kwargs: tuple[tuple[str, Any], ...], _types: tuple[type, ...]) -> KernelConfig:
    """Build each distinct config once; ``_types`` tells 1 from true, which are equal as keys."""
    return kernel_config(template, dict(kwargs))


def _runtime(position: int, row: Mapping[str, Any]) -> float | None:
    value = row["runtime_us"]
    if value is None:
        return None
    if isinstance(value, (str, list, dict, bool)):
        raise RecordError(f"choices[{position}].runtime_us must be a number of microseconds, not {type_name(value)}")
    return float(codec.check_microseconds(f"choices[{position}].runtime_us", value))


def _validated(content: dict[str, Any], tables: _Rows, row: Mapping[str, Any]) -> Measurement:
    """Return the measurement of ``row``, checked by the wire codec."""
    try:
        return codec.decode(msgpack.packb(content | tables_of_rows(*tables)))
    except RecordError as error:
        # The codec's messages say timing; a line has choices.
        raise RecordError(_TIMING.sub(r"choices[\1].", str(error)).removeprefix("record.")) from error
    except (TypeError, ValueError, OverflowError) as error:
        # The value that no record can hold came from the line, or from an option for all lines.
        what = unstorable(row) or unstorable(content) or f"a value cannot be stored: {error}"
        raise RecordError(what) from error


def _uid(row: Mapping[str, Any], measurement: Measurement) -> bytes:
    measured_at = measurement.measured_at.isoformat() if measurement.measured_at else None
    context = [measurement.hardware.key.hex(), measurement.environment.key.hex(), measured_at, measurement.dataset]
    return content_key("jsonl", 1, [row, context])
