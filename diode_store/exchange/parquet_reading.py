"""Read measurements from the Parquet files of ``diode_store.exchange.parquet``, which have one row per timing.

The rows of a measurement are adjacent. The first row has the measurement's own fields. Columns that follow from others
(``m``, ``layout``, ``is_vendor`` …) are checked if present, and unknown columns are ignored.
"""

from __future__ import annotations

import io
import json
import zlib
from typing import IO, TYPE_CHECKING, Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq

from diode_store.errors import RecordError, first_line
from diode_store.exchange.bounds import read_whole
from diode_store.exchange.context import BadLine
from diode_store.exchange.jsonl_checks import check_dimensions, digest
from diode_store.exchange.parquet import COLUMNS, REQUIRED
from diode_store.records import CONFIG_COLUMNS
from diode_store.values.checks import shown
from diode_store.values.times import with_zone
from diode_store.warehouse import record_fields
from diode_store.wire import codec
from diode_store.wire.record_tables import tables_of_rows
from diode_store.wire.unpacking import MAX_ITEMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from diode_store.records import Measurement, Problem

_ROWS_AT_ONCE = 20_000
_UID = "measurement_uid"
_REMEDY = "make the file with `diode export`"
_HARDWARE = tuple(name for name in record_fields.HARDWARE if name != "name")  # its column is called hardware
_TIMING = ("runtime_us", "outcome", "is_estimate", "repeats", "p10_us", "p90_us")
_CHECKED = ("dtype", "b", "m", "n", "k", "layout", "tf32")


class BadRow(BadLine):
    """Rows that are not a measurement; ``line`` is the number of the first row, from 1, or 0 for the whole file."""

    def at(self, file: str) -> str:
        """Return ``FILE: row N: reason``."""
        return f"{file}: row {self.line}: {self.reason}" if self.line else f"{file}: {self.reason}"


def read(stream: IO[bytes]) -> Iterator[Measurement | BadLine]:
    """Yield the measurements of a Parquet file, or a report of bad rows or of the bad file."""
    try:
        # Readers start at the end of a Parquet file, so a stream without seeking, such as a pipe, is read whole.
        file = pq.ParquetFile(stream if _is_seekable(stream) else io.BytesIO(read_whole(stream)))
        wrong = list(_wrong_columns(file.schema_arrow))
        if wrong:
            yield BadRow(0, f"{'; '.join(wrong)}; {_REMEDY}")
            return
        names = [name for name in file.schema_arrow.names if name in COLUMNS]
        yield from _measurements(file.iter_batches(_ROWS_AT_ONCE, columns=names))
    except RecordError as error:
        yield BadRow(0, str(error))
    except MemoryError:  # Arrow's memory error is also an ArrowException
        raise
    except (OSError, EOFError, zlib.error, pa.ArrowException, UnicodeError) as error:
        yield BadRow(0, f"it is not a whole Parquet file ({first_line(error)}); get a whole copy of it")


def _is_seekable(stream: IO[bytes]) -> bool:
    # gzip seeks by unpacking from the beginning.
    return isinstance(stream, io.BufferedReader) and stream.seekable()


def _wrong_columns(schema: pa.Schema) -> Iterator[str]:
    missing = [name for name in REQUIRED if name not in schema.names]
    if missing:
        yield f"no column {', '.join(missing)}"
    for name, kind in COLUMNS.items():
        for number in schema.get_all_field_indices(name):
            found = schema.field(number).type
            if not kind.holds(found):
                yield f"column {name} must hold {kind.told}, not {found}"
        if len(schema.get_all_field_indices(name)) > 1:
            yield f"column {name} occurs twice"


def _measurements(batches: Iterable[pa.RecordBatch]) -> Iterator[Measurement | BadLine]:
    seen: set[str] = set()
    for number, rows in _groups(batches):
        uid = rows[0][_UID]
        if uid in seen:
            yield BadRow(number, "the rows of a measurement are apart; sort the file by measurement_uid")
            continue
        seen.add(uid)
        try:
            yield _measurement(rows)
        except RecordError as error:
            yield BadRow(number, str(error) if "; " in str(error) else f"{error}; {_REMEDY}")


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the rows of each measurement with the number of the first row."""
    held: list[dict[str, Any]] = []
    first = number = 1
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            if held and row[_UID] != held[0][_UID]:
                yield first, held
                held, first = [], number
            held.append(row)
            number += 1
            if len(held) > MAX_ITEMS:
                raise RecordError(f"row {first}: a measurement of more than {MAX_ITEMS:,} timings; split it")
    if held:
        yield first, held


def _measurement(rows: list[dict[str, Any]]) -> Measurement:
    row = rows[0]
    content = {
        "v": codec.WIRE_VERSION,
        "uid": digest(_UID, row[_UID]),
        "hardware": {"name": row["hardware"], **_said(row, _HARDWARE), "extra": _json(row, "hardware_extra", {})},
        "environment": _environment(row),
        "problem": _problem(row),
        "measured_at": _time(row.get("measured_at")),
        "timing_method": _said(row, record_fields.TIMING_METHOD),
        "device_state": _said(row, record_fields.DEVICE_STATE),
        "flags": row["flags"].split(",") if row.get("flags") else None,
        "extra": _json(row, "measurement_extra", {}),
        "metrics": _metrics(rows),
        **_said(row, ("source", *record_fields.MEASUREMENT)),
    }
    said = {name: value for name, value in content.items() if value is not None}
    try:
        measurement = codec.decode(msgpack.packb(said | _tables(rows)))
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"a value cannot be stored: {first_line(error)}") from error
    _check_shape(row, measurement.problem)
    return measurement


def _environment(row: Mapping[str, Any]) -> dict[str, Any]:
    extra = _json(row, "environment_extra", {})
    return {
        **_said(row, record_fields.ENVIRONMENT),
        "template_hashes": _json(row, "template_hashes", {}),
        "extra": extra,
    }


def _problem(row: Mapping[str, Any]) -> dict[str, Any]:
    extra = _json(row, "problem_extra", {})
    return {"op": row["op"], "inputs": _json(row, "inputs", []), "scalars": _json(row, "scalars", []), "extra": extra}


def _tables(rows: list[dict[str, Any]]) -> dict[str, Any]:
    configs = (
        [*(row.get(name) for name in CONFIG_COLUMNS), _json(row, "kwargs", []), _json(row, "config_extra", {})]
        for row in rows
    )
    timings = ([i, *(_default(name, row.get(name)) for name in _TIMING)] for i, row in enumerate(rows))
    return tables_of_rows([*CONFIG_COLUMNS, "kwargs", "extra"], configs, ["config", *_TIMING], timings)


def _metrics(rows: list[dict[str, Any]]) -> list[list[Any]] | None:
    """Return the metrics of a measurement's rows as columns; a row has JSON, ``{name: {"value": …, "unit": …}}``."""
    if all(row.get("metrics") is None for row in rows):
        return None
    found: dict[str, list[Any]] = {}
    for place, row in enumerate(rows):
        for name, metric in _json(row, "metrics", {}).items():
            if not isinstance(metric, dict) or metric.keys() != {"value", "unit"}:
                raise RecordError(f"metrics.{shown(name)} must be a value and a unit, not {shown(metric)}")
            column = found.setdefault(name, [name, metric["unit"], [None] * len(rows)])
            if column[1] != metric["unit"]:
                raise RecordError(f"metrics.{shown(name)} has the units {shown(column[1])} and {shown(metric['unit'])}")
            column[2][place] = metric["value"]
    return list(found.values())


def _default(name: str, value: Any) -> Any:
    return False if name == "is_estimate" and value is None else value


def _said(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name) is not None}


def _json(row: Mapping[str, Any], name: str, empty: Any) -> Any:
    """Return a column's parsed JSON text, with the type of ``empty``; ``empty`` itself if there is no value."""
    text = row.get(name)
    if text is None:
        return empty
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"column {name} is not JSON: {first_line(error)}; {_REMEDY}") from error
    if value is None:
        return empty
    if type(value) is not type(empty):
        raise RecordError(f"column {name} must hold {'an object' if empty == {} else 'a list'} as JSON")
    return value


def _time(moment: datetime | None) -> str | None:
    return with_zone(moment).isoformat() if moment is not None else None


def _check_shape(row: Mapping[str, Any], problem: Problem) -> None:
    if not problem.is_known:
        return
    check_dimensions(_json(row, "dimensions", {}) or None, problem)
    for name in _CHECKED:
        stated, found = row.get(name), getattr(problem.shape, name)
        if stated is not None and stated != found:
            raise RecordError(f"{name} = {stated!r} contradicts the inputs, which make it {found!r}")
