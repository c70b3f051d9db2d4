"""The warehouse's examples as a stream."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from diode_store.candidates.names import kernel_config
from diode_store.query import analytics
from diode_store.records import Environment, Outcome, Timing
from diode_trainer.data import streaming

if TYPE_CHECKING:
    from conftest import MakeMeasurement
    from diode_store.warehouse.store import Store

VENDOR = kernel_config("mm", {})
FAST, SLOW = (kernel_config("triton_mm", {"BLOCK_M": block, "num_warps": 4}) for block in (64, 128))


@pytest.mark.parametrize("rows_a_batch", [1, 2, 3, 5, 7, 100])
def test_batches_may_end_anywhere(rows_a_batch: int) -> None:
    """Cases of 3, 1, 5 and 2 rows come whole, however the batches are cut."""
    case_id = np.repeat([1, 2, 3, 7], [3, 1, 5, 2])
    table = pa.table({"case_id": case_id, "config_id": np.arange(11), "runtime_us": [1.0] * 10 + [None]})
    batches = table.to_batches(max_chunksize=rows_a_batch)
    reader = pa.RecordBatchReader.from_batches(table.schema, batches)
    found = list(streaming._cases(reader))
    assert [rows["case_id"].tolist() for rows in found] == [[1] * 3, [2], [3] * 5, [7] * 2]
    assert [n for rows in found for n in rows["config_id"].tolist()] == list(range(11))
    assert found[-1]["runtime_us"].tolist() == [1.0, np.inf]


def test_no_batches() -> None:
    """An empty warehouse gives no examples."""
    table = pa.table({"case_id": pa.array([], pa.int32()), "runtime_us": pa.array([], pa.float64())})
    empty = pa.RecordBatchReader.from_batches(table.schema, [])
    assert list(streaming._cases(empty)) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("timings_at_once", [5_000_000, 4, 1])
def test_examples_come_problem_by_problem(
    store: Store,
    database_url: str,
    make_measurement: MakeMeasurement,
    monkeypatch: pytest.MonkeyPatch,
    timings_at_once: int,
) -> None:
    """In the order of hardware, environment and problem; a pair's median is its mean, a failure takes for ever.

    All at once, in two parts, and in more parts than there are cases.
    """
    monkeypatch.setattr(streaming, "_TIMINGS_AT_ONCE", timings_at_once)
    times = (Timing(VENDOR, 100.0), Timing(FAST, 80.0), Timing(SLOW, None, Outcome.OUT_OF_RESOURCES))
    again = (Timing(VENDOR, 120.0), Timing(FAST, 9.0, is_estimate=True))
    newer = Environment(torch="2.13.0")
    store.write(
        [
            make_measurement(1, timings=times),
            make_measurement(2, timings=times[:1], problem=make_measurement(9).problem),
            make_measurement(3, timings=again, problem=make_measurement(1).problem),
        ]
    )
    store.write([make_measurement(4, timings=again, problem=make_measurement(1).problem, environment=newer)])
    with closing(analytics.connect(database_url)) as connection:
        found = list(streaming.stream_examples(connection, "", []))
        some = list(streaming.stream_examples(connection, "WHERE environment_id = ?", [2]))
    found.sort(
        key=lambda e: (e.environment, e.shape.m)
    )  # which of two new problems gets the lower id is their keys' affair
    assert [(e.environment, e.shape.m) for e in found] == [("1", 65), ("1", 73), ("2", 65)]
    runtimes = [
        sorted(zip(e.is_vendor.tolist(), e.runtime_us.tolist(), e.is_estimate.tolist(), strict=True)) for e in found
    ]
    assert runtimes == [
        [(False, 80.0, False), (False, np.inf, False), (True, 110.0, False)],
        [(True, 100.0, False)],
        [(False, 9.0, True), (True, 120.0, False)],
    ]
    assert [len(e) for e in some] == [2]
    assert {e.hardware.name for e in found} == {"NVIDIA H200"}
