"""What a data set holds, counted."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import samples
from diode_collectors.sweep.statistics import COLUMNS, print_statistics, statistics_of
from diode_store.records import Outcome, Problem, TensorSpec, Timing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from diode_store.records import Measurement

TRITON = samples.triton_config(64)
OTHER = samples.triton_config(128)
VENDOR = samples.measurement().timings[0].config
BMM = Problem.create(
    "bmm",
    (TensorSpec("float16", (4, 8, 16), (128, 16, 1)), TensorSpec("float16", (4, 16, 32), (512, 32, 1))),
)


def measured(uid: int, *timings: Timing, problem: int = 0, **overrides: Any) -> Measurement:
    """Return a measurement of a numbered problem."""
    return replace(samples.measurement(problem), uid=uid.to_bytes(16), timings=timings, **overrides)


MEASUREMENTS = [
    measured(1, Timing(VENDOR, 10.0), Timing(TRITON, 9.0), Timing(OTHER, None, Outcome.OUT_OF_RESOURCES)),
    measured(2, Timing(VENDOR, 8.0), Timing(TRITON, 30.0, is_estimate=True)),  # the same problem again
    measured(3, Timing(VENDOR, 10.0), Timing(TRITON, 5.0), problem=1),
    measured(4, Timing(TRITON, 1.0), problem=1, flags=("throttled", "hot")),
    measured(5, Timing(TRITON, 1.0), problem=2, flags=("hot",)),
    measured(6, Timing(TRITON, 1.0), problem=3, is_replay=True),
    measured(7, Timing(VENDOR, None, Outcome.TIMEOUT), Timing(TRITON, None, Outcome.OUT_OF_RESOURCES), problem=4),
    measured(8, Timing(VENDOR, 4.0), problem=BMM.shape.m, hardware=samples.H100_PCIE),
]


def test_counts_by_hardware_and_op() -> None:
    """Each op of each device model by itself: an estimate, a flag or a replay wins nothing."""
    statistics = statistics_of([*MEASUREMENTS, MEASUREMENTS[0], replace(MEASUREMENTS[7], uid=b"9" * 16, problem=BMM)])
    assert [(op.hardware, op.arch, op.op) for op in statistics.ops] == [
        ("NVIDIA H100 PCIe", "sm_90", "bmm"),
        ("NVIDIA H100 PCIe", "sm_90", "mm"),
        ("NVIDIA H200", "sm_90", "mm"),
    ]
    h200 = statistics.ops[2]
    assert (h200.problems, h200.measurements, h200.configs, h200.timings) == (5, 7, 3, 12)
    assert h200.failures == {"out_of_resources": 2, "timeout": 1}
    assert list(h200.failures) == ["out_of_resources", "timeout"]
    assert (h200.failed, h200.estimates, h200.replays) == (3, 1, 1)
    assert (h200.flagged, h200.flagged_measurements) == ({"hot": 2, "throttled": 1}, 2)
    assert h200.fastest_templates == {"aten::mm": 1, "triton::mm": 1}
    assert (statistics.problems, statistics.measurements, statistics.timings) == (7, 9, 14)
    assert (statistics.failures, statistics.estimates) == (3, 1)
    assert (statistics.flagged_measurements, statistics.duplicates) == (2, 1)


def test_one_device_whatever_else_is_known_of_it() -> None:
    """Attributes that only some records fill in make no second device."""
    known = replace(samples.H200, l2_bytes=60 * 2**20)
    statistics = statistics_of([MEASUREMENTS[0], replace(MEASUREMENTS[2], hardware=known)])
    assert [op.problems for op in statistics.ops] == [2]


def test_nothing() -> None:
    """An empty data set is no error."""
    statistics = statistics_of([])
    assert (statistics.ops, statistics.problems, statistics.rows()) == ((), 0, [])


def test_the_bundled_data(bundled: Sequence[Measurement]) -> None:
    """Its README's figures."""
    statistics = statistics_of(bundled)
    assert (statistics.problems, statistics.measurements, statistics.timings) == (1_247, 1_247, 104_350)
    assert (statistics.failures, statistics.estimates, statistics.flagged_measurements) == (0, 38_255, 0)
    assert {op.op: op.problems for op in statistics.ops} == {"mm": 834, "bmm": 205, "addmm": 183, "baddbmm": 25}
    assert sum(sum(op.fastest_templates.values()) for op in statistics.ops) == 1_247


def test_memory_does_not_grow_with_the_timings() -> None:
    """Two thousand measurements of one problem take no more than its configs and their uids."""

    def many() -> Iterator[Measurement]:
        for number in range(2000):
            yield measured(number, *(Timing(config, 10.0 + number) for config in (VENDOR, TRITON, OTHER)))

    tracemalloc.start()
    statistics = statistics_of(many())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert statistics.timings == 6000
    assert peak < 1_000_000


def test_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A row an op, then what failed, what was flagged and which templates win."""
    print_statistics(statistics_of(MEASUREMENTS))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == list(COLUMNS)
    assert lines[2].split() == ["NVIDIA", "H200", "mm", "5", "7", "3", "12", "3", "1", "2"]
    assert lines[3:] == [
        "NVIDIA H100 PCIe mm fastest: aten::mm 100% (1)",
        "NVIDIA H200 mm failures: out_of_resources 2, timeout 1",
        "NVIDIA H200 mm flags: hot 2, throttled 1",
        "NVIDIA H200 mm fastest: aten::mm 50% (1), triton::mm 50% (1)",
    ]


def test_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything, by the names of the fields."""
    print_statistics(statistics_of(MEASUREMENTS), as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["problems"], printed["timings"]) == (6, 13)
    assert printed["ops"][1]["fastest_templates"] == {"aten::mm": 1, "triton::mm": 1}
