"""Rows of ``timings`` and ``metric_values`` in PostgreSQL's binary COPY format, the fastest input for a server.

Layout: a signature, then for each row the number of its fields and for each field its length and its bytes, all
big-endian; a NULL has length -1 and no bytes. ``struct`` packs a whole row at once, several times as fast as a
driver that converts value by value.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from diode_store.records import Outcome
from diode_store.warehouse import schema
from diode_store.warehouse.drivers.binding import unstorable

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
COLUMNS = tuple(column.name for column in schema.timings.columns if column.name != "extra")
"""The columns of a row, in its order."""

TimingRow = tuple[int, int, float | None, str, int, int | None, float | None, float | None]
"""One row of ``timings``, in the order of its columns, without ``extra``."""

METRIC_COLUMNS = tuple(column.name for column in schema.metric_values.columns)
MetricRow = tuple[int, int, int, float]
"""One row of ``metric_values``, in the order of its columns."""

_FORMATS = ("q", "q", "d", "", "b", "i", "d", "d")
_NULL = struct.pack(">i", -1)
# What every row begins with: the number of its fields, and the length of the first one.
_START = struct.pack(">hi", len(COLUMNS), 8)
# An outcome that is ok, and the length of the next field.
_OK = struct.pack(">i2si", 2, b"ok", 1)
_NULLS = 3 * _NULL

# The three kinds of row that come by the million.
_WHOLE = struct.Struct(">6sq iq id 10sb ii id id").pack
_TIME_ONLY = struct.Struct(">6sq iq id 10sb 12s").pack
_FAILURE = struct.Struct(">6sq iq").pack
_METRIC = struct.Struct(">6sq iq iq id").pack
_METRIC_START = struct.pack(">hi", len(METRIC_COLUMNS), 8)


def packed(rows: Sequence[TimingRow]) -> bytes:
    """Return rows in the binary COPY format, without header and trailer.

    Raises:
        RecordError: a number is too large for its column, or no number.
    """
    whole, time_only, failure, failures = _WHOLE, _TIME_ONLY, _FAILURE, _FAILURES
    start, ok, nulls = _START, _OK, _NULLS
    try:
        return b"".join(
            [
                whole(start, number, 8, config, 8, us, ok, guess, 4, repeats, 8, p10, 8, p90)
                if p90 is not None and p10 is not None and repeats is not None and us is not None and outcome == "ok"
                else _any_row(number, config, us, outcome, guess, repeats, p10, p90)
                if p90 is not None or p10 is not None or repeats is not None
                else failure(start, number, 8, config) + failures[outcome, guess]
                if us is None
                else time_only(start, number, 8, config, 8, us, ok, guess, nulls)
                if outcome == "ok"
                else _any_row(number, config, us, outcome, guess, repeats, p10, p90)
                for number, config, us, outcome, guess, repeats, p10, p90 in rows
            ]
        )
    except (struct.error, OverflowError) as error:
        raise unstorable(str(error)) from error


def packed_metrics(rows: Sequence[MetricRow]) -> bytes:
    """Return rows of ``metric_values`` in the same format."""
    pack, start = _METRIC, _METRIC_START
    return b"".join([pack(start, number, 8, config, 8, metric, 8, value) for number, config, metric, value in rows])


def _any_row(*row: float | str | None) -> bytes:
    """Pack a row of any outcome, whichever of its values are NULL."""
    fields = (_field(value, format_) for value, format_ in zip(row, _FORMATS, strict=True))
    return struct.pack(">h", len(COLUMNS)) + b"".join(fields)


def _field(value: float | str | None, format_: str) -> bytes:
    if value is None:
        return _NULL
    content = value.encode() if isinstance(value, str) else struct.pack(f">{format_}", value)
    return struct.pack(">i", len(content)) + content


# What follows the ids of a timing that failed, by outcome and is_estimate.
_FAILURES = {
    (outcome.value, guess): _NULL + _field(outcome.value, "") + _field(guess, "b") + _NULLS
    for outcome in Outcome
    for guess in (0, 1)
}
