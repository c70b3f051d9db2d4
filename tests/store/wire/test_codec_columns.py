"""The tables of version 2 of the wire format: timings by column, configs as bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import samples
from diode_store.errors import CodecError
from diode_store.records import Outcome, Timing
from diode_store.wire import codec, record_tables
from diode_store.wire.timing_table import TimingTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_store.records import Measurement

SPREAD = samples.measurement(
    timings=(
        Timing(samples.triton_config(16), 10.5, repeats=24, p10_us=10.0, p90_us=11.0),
        Timing(samples.triton_config(32), 20.5, is_estimate=True, repeats=2, p10_us=20.0, p90_us=21.0),
        Timing(samples.triton_config(64), None, Outcome.TIMEOUT),
    )
)


def tables(measurement: Measurement) -> dict[str, Any]:
    """Return the fields of a record that hold its timings."""
    content = msgpack.unpackb(codec.encode(measurement))
    return {name: content[name] for name in record_tables.TABLE_FIELDS}


def decode_changed(change: Callable[[dict[str, Any]], object]) -> Measurement:
    """Decode a good record after ``change``."""
    record = msgpack.unpackb(codec.encode(SPREAD))
    change(record)
    return codec.decode(msgpack.packb(record))


def test_wire_format_is_pinned() -> None:
    """The bytes of version 2 never change either."""
    assert msgpack.unpackb(codec.encode(SPREAD))["v"] == 2
    assert tables(SPREAD) == {
        "config_columns": list(record_tables.CONFIG_TABLE),
        "configs": [
            msgpack.packb(["triton::mm", block_m, 64, 32, 8, 3, 4, False, None, "tl.float32", []])
            for block_m in (16, 32, 64)
        ],
        "timing_columns": ["config", "runtime_us", "outcome", "is_estimate", "repeats", "p10_us", "p90_us"],
        "timings": [
            None,
            [10.5, 20.5, None],
            ["ok", "ok", "timeout"],
            [False, True, False],
            [24, 2, None],
            [10.0, 20.0, None],
            [11.0, 21.0, None],
        ],
    }


def test_a_column_of_one_value_is_written_once() -> None:
    """It is read back into every row; True, 1 and 1.0 are different values."""
    measurement = samples.measurement(runtimes=(2.0, 2.0, 2.0))
    assert tables(measurement)["timings"] == [None, 2.0, "ok", False, None, None, None]
    assert codec.decode(codec.encode(measurement)) == measurement


def test_positions_need_not_be_in_order() -> None:
    """Another writer may list configs once for many timings, or in another order, and leave some out."""
    reordered = decode_changed(lambda record: record["timings"].__setitem__(0, [2, 0, 1]))
    assert [timing.config.block_m for timing in reordered.timings] == [64, 16, 32]

    def two_of_three(record: dict[str, Any]) -> None:
        record["timings"] = [[2, 0], [1.5, 2.5], "ok", False, None, None, None]

    fewer = decode_changed(two_of_three).timings
    assert list(fewer) == [Timing(samples.triton_config(64), 1.5), Timing(samples.triton_config(16), 2.5)]


def test_a_whole_number_is_a_time_too() -> None:
    """An unusual but right column passes after a closer look."""
    decoded = decode_changed(lambda record: record["timings"].__setitem__(1, [10, 20.5, None]))
    assert [timing.runtime_us for timing in decoded.timings] == [10, 20.5, None]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, [0, 1, 3], "timing 2: config must be a whole number from 0 to 2"),
        (0, [0, -1, 2], "timing 1: config must be"),
        (0, [0, True, 2], "timing 1: config must be"),
        (0, [0, 1, 1], "time each config once"),
        (0, 5, "timings.config must be an array"),
        (0, [], "must hold 0 values, not 3"),
        (1, [1.0, 2.0, 3.0], "timing 2: outcome timeout does not go with runtime 3.0"),
        (1, [1.0, None, None], "timing 1: outcome ok does not go with runtime None"),
        (1, [1.0, math.nan, None], "timing 1: runtime_us must be a finite"),
        (1, [1.0, math.inf, None], "timing 1: runtime_us must be a finite"),
        (1, [1.0, 0.0, None], "timing 1: runtime_us must be a finite"),
        (1, [1.0, 1e16, None], "timing 1: runtime_us must be a finite, positive number .* check its unit"),
        (1, [1.0, "2", None], "timing 1: runtime_us must be a finite"),
        (1, [1.0, 2.0], "timings.'runtime_us' must hold 3 values, not 2"),
        (2, ["ok", "fine", "timeout"], "timing 1: outcome must be one of ok, compile_error"),
        (2, ["ok", ["ok"], "timeout"], "timing 1: outcome must be one of"),
        (3, [False, 0, False], "timing 1: is_estimate must be true or false"),
        (4, [1, 0, None], "timing 1: repeats must be a whole number from 1"),
        (4, [1, 2**31, None], "timing 1: repeats must be a whole number from 1"),
        (4, 0, "timing 0: repeats must be a whole number from 1"),
        (5, [1.0, -1.0, None], "timing 1: p10_us must be a finite"),
        (6, [1.0, math.nan, None], "timing 1: p90_us must be a finite"),
    ],
)
def test_impossible_column_is_refused(column: int, value: object, message: str) -> None:
    """Each column is checked, and the message says which timing and why."""
    with pytest.raises(CodecError, match=message):
        decode_changed(lambda record: record["timings"].__setitem__(column, value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record["timings"].pop(), "timings must hold 7 values, not 6"),
        (lambda record: record.update(timings=3), "timings must be an array"),
        (lambda record: record["timing_columns"].__setitem__(6, "p10_us"), "names a column twice"),
        (lambda record: record["timing_columns"].__setitem__(0, "other"), "timing_columns has no config"),
        (lambda record: record["configs"].__setitem__(1, b"\xc1"), "not a msgpack record"),
        (lambda record: record["configs"].__setitem__(1, b""), "not a msgpack record"),
        (lambda record: record["configs"].__setitem__(1, "text"), "configs must hold bytes"),
        (lambda record: record["configs"].__setitem__(1, msgpack.packb(["aten::mm"])), r"configs\[1\] must hold 11"),
        (lambda record: record["configs"].__setitem__(1, record["configs"][0]), "time each config once"),
        (lambda record: record.update(configs=[]), "must hold 0 values, not 3"),
        (lambda record: record.update(configs=[], timings=[None, 1.0, "ok", False, 1, 1.0, 1.0]), "at least one"),
        (lambda record: record.update(configs=None), "configs must be an array"),
        (lambda record: record.update(configs=[5, 6, 7]), "configs must hold bytes"),
    ],
)
def test_broken_tables_are_refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
    """The message says what is wrong with the table."""
    with pytest.raises(CodecError, match=message):
        decode_changed(change)


def test_two_encodings_of_one_config_are_one_config() -> None:
    """A config whose arguments stand in another order, or as whole floats, is the same, timed twice."""

    def twice(record: dict[str, Any]) -> None:
        start = ["triton::mm", 16, 64, 32, 8, 3, 4, False, None, "tl.float32"]
        rows = ([["A", 1], ["B", 2]], [["B", 2.0], ["A", 1]])
        record["configs"][:2] = [msgpack.packb([*start, kwargs]) for kwargs in rows]

    with pytest.raises(CodecError, match="time each config once"):
        decode_changed(twice)


def test_unknown_columns_are_kept() -> None:
    """What a newer writer says of each timing is in the measurement's extra, a single value once for each row."""

    def add(record: dict[str, Any]) -> None:
        record["timing_columns"] += ["power_w", "pass"]
        record["timings"] += [[500, 501, None], 2]

    assert decode_changed(add).extra == {"timings": {"power_w": [500, 501, None], "pass": [2, 2, 2]}}


def test_a_table_is_like_its_tuple() -> None:
    """Equal to the tuple of its timings, from both sides, and as easy to take apart."""
    decoded = codec.decode(codec.encode(SPREAD)).timings
    assert isinstance(decoded, TimingTable)
    assert decoded == SPREAD.timings
    assert SPREAD.timings == decoded
    assert hash(decoded) == hash(SPREAD.timings)
    assert repr(decoded) == repr(SPREAD.timings)
    assert (decoded[1], decoded[-1], decoded[:2]) == (SPREAD.timings[1], SPREAD.timings[2], SPREAD.timings[:2])
    assert decoded != SPREAD.timings[:2]
    assert decoded != "timings"
    assert TimingTable.of(decoded) is decoded
