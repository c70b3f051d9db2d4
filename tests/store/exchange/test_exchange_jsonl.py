"""JSON Lines: what a good line becomes, and that nothing is lost on the way out."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from jsonl_rows import CONTEXT, ROW, TRITON_KWARGS, good, row_with, with_choice

from diode_store.candidates.names import kernel_config
from diode_store.exchange import jsonl
from diode_store.exchange.context import BadLine, ImportContext
from diode_store.exchange.inputs import open_binary
from diode_store.records import (
    Environment,
    Hardware,
    KernelConfig,
    Measurement,
    Metric,
    Outcome,
    Problem,
    Source,
    TensorSpec,
    Timing,
    TimingMethod,
)
from samples import EVERY_FIELD, H200

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement


def test_a_line_becomes_a_measurement() -> None:
    """Every field of a line arrives, names normalised, null as a failure, three times the best as an estimate."""
    measurement = good(ROW)
    assert measurement.hardware == H200
    assert measurement.environment == Environment()
    assert measurement.measured_at is None
    assert measurement.source is Source.IMPORT
    assert measurement.timing_method == TimingMethod("median", flush_l2=True, launch_hidden=True)
    assert measurement.problem == Problem.create(
        "mm", (TensorSpec("bfloat16", (64, 16), (16, 1)), TensorSpec("bfloat16", (16, 32), (1, 16)))
    )
    slow = KernelConfig(
        "triton::mm", 64, 16, 32, 8, 3, 4, allow_tf32=False, use_fast_accum=False, acc_type="tl.float32"
    )
    assert measurement.timings == (
        Timing(KernelConfig("aten::mm"), 10.5),
        Timing(slow, 31.75, Outcome.OK, is_estimate=True),
        Timing(replace(slow, num_warps=8), None, Outcome.FAILED_UNSPECIFIED),
    )


def test_three_times_the_best_is_no_estimate_yet() -> None:
    """The boundary itself is a median; only what is slower was given up."""
    choices = [{"template": "mm", "kwargs": {}, "runtime_us": us} for us in (10, 30, 30.001)]
    for position, choice in enumerate(choices):
        choice["template"] = ("mm", "bias_addmm", "addmm")[position]
    timings = good(row_with(choices=choices)).timings
    assert [timing.is_estimate for timing in timings] == [False, False, True]


def test_context_fills_in_what_the_line_leaves_out() -> None:
    """Hardware, environment, time, data set and the rest come from the context."""
    context = ImportContext(
        hardware=H200,
        environment=Environment(torch="2.11.0"),
        measured_at=datetime(2026, 11, 20, tzinfo=UTC),
        dataset="sampled",
        licence="Apache-2.0",
        search_space="EXHAUSTIVE",
        timing_method=TimingMethod(statistic="mean"),
    )
    measurement = good(ROW, context)
    assert measurement.environment.torch == "2.11.0"
    assert measurement.measured_at == datetime(2026, 11, 20, tzinfo=UTC)
    assert (measurement.dataset, measurement.licence) == ("sampled", "Apache-2.0")
    assert measurement.search_space == "EXHAUSTIVE"
    assert measurement.timing_method == TimingMethod(statistic="mean")


def test_what_a_line_says_wins_over_the_context() -> None:
    """A line that names its hardware and time keeps them, and null means that nobody knows."""
    other = {"vendor": "nvidia", "name": "NVIDIA H100", "arch": "sm_90", "multiprocessors": 114, "l2_bytes": 52428800}
    row = row_with(hardware=other, measured_at="2026-01-02T03:04:05+01:00", dataset=None, host="gpu-7")
    measurement = good(row, replace(CONTEXT, dataset="sampled", measured_at=datetime(2020, 1, 1, tzinfo=UTC)))
    assert measurement.hardware == Hardware("nvidia", "NVIDIA H100", "sm_90", 114, l2_bytes=52428800)
    assert measurement.measured_at == datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert measurement.dataset is None
    assert measurement.host == "gpu-7"


def test_hardware_may_be_the_name_of_a_known_device() -> None:
    """A name stands for the device in our table, with all its attributes."""
    hardware = good(row_with(hardware="h200"), ImportContext()).hardware
    assert (hardware.name, hardware.multiprocessors, hardware.l2_bytes) == ("NVIDIA H200", 132, 60 * 2**20)


def test_unknown_fields_of_a_line_are_kept() -> None:
    """What a newer writer adds goes to ``extra``."""
    assert good(row_with(power_cap_w=700)).extra == {"power_cap_w": 700}


def test_same_line_and_context_give_the_same_uid() -> None:
    """A uid is a hash of what was said, not of how it was written."""
    spaced = json.dumps(ROW, indent=None, separators=(" , ", " : "), sort_keys=True).replace("10.5", "10.50")
    [again] = jsonl.read([spaced.encode()], CONTEXT)
    assert isinstance(again, Measurement)
    assert again.uid == good(ROW).uid
    assert good(with_choice(runtime_us=39)).uid == good(with_choice(runtime_us=39.0)).uid


@pytest.mark.parametrize(
    "context",
    [
        replace(CONTEXT, hardware=replace(H200, multiprocessors=114)),
        replace(CONTEXT, environment=Environment(torch="2.12.0")),
        replace(CONTEXT, measured_at=datetime(2026, 11, 20, tzinfo=UTC)),
        replace(CONTEXT, dataset="other"),
    ],
    ids=["hardware", "environment", "measured_at", "dataset"],
)
def test_another_context_gives_another_uid(context: ImportContext) -> None:
    """The same numbers from elsewhere are another measurement."""
    assert good(ROW, context).uid != good(ROW).uid


def test_another_time_gives_another_uid() -> None:
    """Two runs of one problem are two measurements."""
    assert good(with_choice(runtime_us=10.25)).uid != good(ROW).uid


def test_uid_is_pinned() -> None:
    """Importing with a newer version must find what an older one stored."""
    assert good(ROW).uid.hex() == "cf8948328248d4a0f4ef497030575771"


def test_bmm_of_plain_matrices_is_an_mm() -> None:
    """Inductor lowers a batch of one to mm; the line's layout and sizes still agree."""
    assert good(row_with(op="bmm")).problem.key == good(ROW).problem.key


def test_padded_dimensions_are_accepted_and_remembered() -> None:
    """Inductor pads N = 31 to 32 and times that; what was asked for stays readable."""
    measurement = good(row_with(N=31))
    assert measurement.problem.shape.n == 32
    assert measurement.extra == {"unpadded": {"N": 31}}


def test_either_layout_letter_fits_a_vector() -> None:
    """A matrix with one column is row-major and transposed at once."""
    vector = row_with(
        K=1,
        layout="tn",
        inputs=[
            {"dtype": "bfloat16", "size": [64, 1], "stride": [1, 1]},
            {"dtype": "bfloat16", "size": [1, 32], "stride": [32, 1]},
        ],
    )
    assert good(vector).problem.shape.k == 1


def test_blank_lines_and_a_byte_order_mark_are_skipped() -> None:
    """Neither is a bad line, and line numbers still count the blanks."""
    lines = [b"\xef\xbb\xbf" + json.dumps(ROW).encode(), b"\n", b"  \r\n", b"{"]
    first, bad = jsonl.read(lines, CONTEXT)
    assert isinstance(first, Measurement)
    assert isinstance(bad, BadLine)
    assert bad.line == 4


def test_everything_survives_the_way_out_and_in(make_measurement: MakeMeasurement) -> None:
    """A measurement with every field set is the same after ``row_of`` and ``read``, whatever the context says."""
    config = kernel_config("triton_mm_persistent_tma", {**TRITON_KWARGS, "NUM_SMS": 132}, extra={"note": "x"})
    measurement = make_measurement(
        7,
        problem=Problem.create(
            "addmm",
            (
                TensorSpec("float16", (32,), (1,)),
                TensorSpec("float16", (64, 16), (16, 1)),
                TensorSpec("float16", (16, 32), (32, 1)),
            ),
            {"alpha": 0.5},
            {"seen_in": "bert"},
        ),
        timings=(
            Timing(config, 10.25, repeats=40, p10_us=10.0, p90_us=11.5),
            Timing(KernelConfig("aten::addmm"), 99.5, is_estimate=False),
            Timing(KernelConfig("aten::bias_addmm"), 12.5, is_estimate=True),
            Timing(KernelConfig("triton::mm", 16), None, Outcome.COMPILE_ERROR),
        ),
        **{
            **EVERY_FIELD,
            "timing_method": TimingMethod("min", flush_l2=False),
            "metrics": (Metric("spills", "B", (0.0, 8, None, None)),),
        },
    )
    line = json.dumps(jsonl.row_of(measurement)).encode()
    assert list(jsonl.read([line], ImportContext(hardware=replace(H200, name="other"), dataset="other"))) == [
        measurement
    ]


def test_what_a_measurement_does_not_say_is_not_filled_in(make_measurement: MakeMeasurement) -> None:
    """An exported line keeps its unknowns even if the importer's context knows better."""
    bare = make_measurement(environment=Environment(), measured_at=None, timing_method=TimingMethod())
    context = replace(CONTEXT, environment=Environment(torch="9"), measured_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert list(jsonl.read([json.dumps(jsonl.row_of(bare)).encode()], context)) == [bare]


def test_write_counts_what_it_writes(make_measurement: MakeMeasurement) -> None:
    """``write`` gives one line a measurement and tells how many there were."""
    stream = io.BytesIO()
    assert jsonl.write(stream, [make_measurement(1), make_measurement(2)]) == (2, 6)
    assert [item.uid[-1] for item in jsonl.read(io.BytesIO(stream.getvalue()), CONTEXT)] == [1, 2]  # type: ignore[union-attr]  # all are good


def test_real_lines(jsonl_path: Path) -> None:
    """Six measured problems read without a complaint; their nulls and slow choices are told apart."""
    with open_binary(str(jsonl_path)) as stream:
        read = list(jsonl.read(stream, CONTEXT))
    assert [item for item in read if isinstance(item, BadLine)] == []
    timings = [timing for item in read if isinstance(item, Measurement) for timing in item.timings]
    assert (len(read), len(timings)) == (6, 79)
    assert sum(timing.outcome is Outcome.FAILED_UNSPECIFIED for timing in timings) == 10
    assert sum(timing.is_estimate for timing in timings) == 22
