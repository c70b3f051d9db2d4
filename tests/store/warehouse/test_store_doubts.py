"""The store names impossible values, and uids that come back with other content."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import samples
from diode_store.records import Outcome, Timing
from diode_store.warehouse.store import WriteReport
from diode_store.wire import codec

if TYPE_CHECKING:
    from conftest import MakeMeasurement
    from diode_store.records import Measurement
    from diode_store.warehouse.store import Store

LARGE = samples.matmul(4096, 4096, 4096)
PLACE = "NVIDIA H200, mm bf16 4096x4096x4096 nn"
SMALL = "NVIDIA H200, mm bf16 64x256x128 nn"
CHANGES: dict[str, dict[str, Any]] = {
    "a time": {"runtimes": (10.5, 20.26, None)},
    "a failure": {"runtimes": (10.5, None, None)},
    "a config": {"runtimes": (10.5, 20.25)},
    "the problem": {"problem": samples.matmul(65, 256, 128)},
    "the device": {"hardware": samples.H100},
    "the software": {"environment": replace(samples.ENVIRONMENT, torch="2.12.0")},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_known_uid_with_other_content_is_returned(
    any_store: Store, make_measurement: MakeMeasurement, what: str
) -> None:
    """Whatever differs; the first stays, whether it came before or in the same batch."""
    first, other = make_measurement(), make_measurement(**CHANGES[what])
    assert any_store.write([first, other]) == WriteReport(1, 0, 3, contradictions=(other,))
    assert any_store.write([other, first]) == WriteReport(0, 1, 0, contradictions=(other,))


def test_what_may_change_later_is_no_other_content(any_store: Store, make_measurement: MakeMeasurement) -> None:
    """Flags and a successor are marked in the warehouse, and a record on the wire has its configs in any order."""
    first = make_measurement()
    any_store.write([first])
    again = replace(first, flags=("hot",), superseded_by=bytes(16), timings=first.timings[::-1])
    assert any_store.write([again, codec.decode(codec.encode(first))]) == WriteReport(0, 2, 0)


@pytest.mark.parametrize(
    ("changes", "doubts"),
    [
        (
            {"problem": LARGE, "runtimes": (0.2, 20.25, None)},
            f"{PLACE}, aten::mm: 0.2 us is under a tenth of the roofline, 141 us; it may be in milliseconds",
        ),
        (
            {"timings": (Timing(samples.triton_config(), 20.0, Outcome.OK, p10_us=99.0, p90_us=1.0),)},
            f"{SMALL}, triton::mm: p10 of 99 us is above p90 of 1 us",
        ),
        (
            {"measured_at": datetime(1969, 7, 20, tzinfo=UTC)},
            f"{SMALL}: measured_at is 1969-07-20 00:00:00+00:00, so that the clock there was off",
        ),
        ({}, None),
    ],
)
def test_impossible_values_are_kept_and_named(
    any_store: Store, make_measurement: MakeMeasurement, changes: dict[str, Any], doubts: str | None
) -> None:
    """The record may come from memory or from its bytes; a replay says nothing again."""
    measurement: Measurement = make_measurement(**changes)
    decoded = codec.decode(codec.encode(replace(measurement, uid=bytes(15) + b"x")))
    expected = (doubts,) if doubts else ()
    assert any_store.write([measurement]) == WriteReport(1, 0, len(measurement.timings), doubts=expected)
    assert any_store.write([decoded]).doubts == expected
    assert any_store.write([measurement]).doubts == ()
