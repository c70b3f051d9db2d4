"""Upstream's data sets as measurements, and measurements as upstream's data sets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch_diode_files import CONFIG, FAILING, SLOW, dataset, timed

from diode_store.candidates.names import kernel_config
from diode_store.devices.known import with_known_attributes
from diode_store.exchange.context import BadLine, ImportContext
from diode_store.exchange.foreign.torch_diode import dataset_of, measurements_of
from diode_store.exchange.foreign.torch_diode_types import Dataset, MMShape, TritonGEMMConfig
from diode_store.records import (
    Hardware,
    Measurement,
    Metric,
    Outcome,
    Problem,
    Source,
    TensorSpec,
    Timing,
    TimingMethod,
)
from samples import ENVIRONMENT, H200, MEASURED_AT, matmul, measurement, triton_config

CONTEXT = ImportContext(environment=ENVIRONMENT, measured_at=MEASURED_AT, dataset="theirs", licence="MIT")
KWARGS = {"BLOCK_M": 64, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_M": 8, "num_stages": 3, "num_warps": 4}
FLAGS = {"ALLOW_TF32": False, "USE_FAST_ACCUM": False, "ACC_TYPE": "tl.float32"}
DEVICE = Hardware("acme", "Acme 1", "a1", 7)


def read(data: dict[str, Any], context: ImportContext = CONTEXT) -> list[Measurement | BadLine]:
    """Return what a data set's content holds."""
    return list(measurements_of(Dataset.from_dict(data), context))


def good(data: dict[str, Any], context: ImportContext = CONTEXT) -> Measurement:
    """Return the one measurement of a data set's content."""
    (found,) = read(data, context)
    assert isinstance(found, Measurement), found
    return found


def reason(data: dict[str, Any], context: ImportContext = CONTEXT) -> str:
    """Return what is wrong with the one problem of a data set's content."""
    (found,) = read(data, context)
    assert isinstance(found, BadLine)
    return found.at("FILE")


def test_a_problem_becomes_a_measurement() -> None:
    """Milliseconds become microseconds, Infinity a failure; the context says the rest."""
    found = good(dataset())
    assert found == Measurement(
        uid=found.uid,
        hardware=with_known_attributes(H200),
        environment=ENVIRONMENT,
        problem=matmul(64, 32, 48, "float16"),
        timings=(
            Timing(kernel_config("triton_mm", {**KWARGS, **FLAGS, "num_warps": 8}), 20.0),
            Timing(kernel_config("triton_mm", {**KWARGS, **FLAGS, "num_stages": 5}), None, Outcome.FAILED_UNSPECIFIED),
            Timing(kernel_config("triton_mm", {**KWARGS, **FLAGS}), 10.5),
        ),
        source=Source.IMPORT,
        measured_at=MEASURED_AT,
        timing_method=TimingMethod(),
        dataset="theirs",
        licence="MIT",
        extra={"assumed": ["inputs are row-major"]},
    )


def test_the_same_problem_has_the_same_uid() -> None:
    """Importing twice adds nothing; another time, device or environment makes another measurement."""
    uids = {
        good(dataset()).uid,
        good(dataset(), CONTEXT).uid,
        good(dataset(timed(CONFIG, 0.01))).uid,
        good(dataset(hardware="NVIDIA B200")).uid,
        good(dataset(), replace(CONTEXT, dataset="ours")).uid,
    }
    assert len(uids) == 4


@pytest.mark.parametrize(
    ("op", "batch", "sizes"),
    [
        ("mm", 1, [(64, 48), (48, 32)]),
        ("addmm", 1, [(64, 32), (64, 48), (48, 32)]),
        ("bmm", 4, [(4, 64, 48), (4, 48, 32)]),
        ("baddbmm", 4, [(4, 64, 32), (4, 64, 48), (4, 48, 32)]),
        ("mm_plus_mm", 1, [(64, 48), (48, 32), (64, 48), (48, 32)]),
    ],
)
def test_inputs_of_each_op(op: str, batch: int, sizes: list[tuple[int, ...]]) -> None:
    """Row-major ones, the bias first, with their batch."""
    shape = {"B": batch, "out_size": [batch, 64, 32]}
    problem = good(dataset(op=op, **shape)).problem
    assert problem.op == op
    assert [spec.size for spec in problem.inputs] == sizes
    assert {spec.stride[-1] for spec in problem.inputs} == {1}
    assert problem.shape.layout == "nn"


@pytest.mark.parametrize(
    ("op", "name", "template", "assumed"),
    [
        ("mm", "triton_mm", "triton::mm", None),
        ("mm", "triton_mm_17", "triton::mm", None),
        ("mm", "triton_mm_persistent_tma", "triton::mm_persistent_tma", None),
        ("addmm", "addmm_config", "triton::mm", "addmm_config is triton::mm"),
        ("bmm", "bmm_config", "triton::bmm", "bmm_config is triton::bmm"),
        ("mm", "triton_config_3", "triton::mm", "triton_config_3 is triton::mm"),
    ],
)
def test_templates_by_name(op: str, name: str, template: str, assumed: str | None) -> None:
    """A name that is no template's stands for the op's own, and the measurement says so."""
    found = good(dataset(timed({**CONFIG, "name": name}, 0.01), op=op))
    assert found.timings[0].config.template == template
    assert found.extra["assumed"] == sorted([*([assumed] if assumed else []), "inputs are row-major"])


def test_other_dtypes_of_the_output() -> None:
    """They make another problem, as they do in a record."""
    problem = good(dataset(M_dtype="int8", K_dtype="int8", out_dtype="int32", op="int_mm")).problem
    assert dict(problem.scalars) == {"out_dtype": "int32"}
    assert [spec.dtype for spec in problem.inputs] == ["int8", "int8"]


def test_tf32_is_part_of_the_problem() -> None:
    """A kernel that may use it was compiled where it was asked for."""
    floats = dict.fromkeys(("M_dtype", "K_dtype", "out_dtype"), "float32")
    problem = good(dataset(timed({**CONFIG, "ALLOW_TF32": True}, 0.01), **floats)).problem
    assert dict(problem.scalars) == {"ALLOW_TF32": True}


def test_a_config_that_was_timed_again() -> None:
    """Each round is a measurement of its own, so that no timing is lost."""
    entries = [timed(CONFIG, 0.01), timed(SLOW, 0.02), timed(CONFIG, 0.011), timed(CONFIG, 0.012), timed(FAILING, 1)]
    found = read(dataset(*entries))
    assert all(isinstance(item, Measurement) for item in found)
    runtimes = [[timing.runtime_us for timing in item.timings] for item in found if isinstance(item, Measurement)]
    assert runtimes == [[10.0, 20.0, 1000.0], [11.0], [12.0]]
    assert len({item.uid for item in found if isinstance(item, Measurement)}) == 3


def test_an_output_of_another_layout_is_kept() -> None:
    """Some of upstream's shapes have one; a problem has no place for it."""
    found = good(dataset(out_size=[1, 32, 64], out_stride=[2048, 64, 1]))
    assert {name: found.extra[name] for name in ("out_size", "out_stride")} == {
        "out_size": [1, 32, 64],
        "out_stride": [2048, 64, 1],
    }


def test_hardware_by_name() -> None:
    """A known device by its name or alias; what the file calls it is kept."""
    found = good(dataset(hardware="h200"))
    assert (found.hardware.name, found.extra["hardware_name"]) == ("NVIDIA H200", "h200")


def test_hardware_of_the_context() -> None:
    """It stands for a file's only name, and beside others for one that no device or several are known by."""
    context = replace(CONTEXT, hardware=DEVICE)
    assert good(dataset(hardware="my_gpu"), context).hardware == DEVICE
    assert good(dataset(hardware="NVIDIA H100"), context).hardware == DEVICE
    assert good(dataset(hardware="acme 1"), context).hardware == DEVICE
    assert good(dataset(hardware="NVIDIA H200"), context).hardware == DEVICE
    two = dataset(hardware="NVIDIA H200")
    two["hardware"]["my_gpu"] = two["hardware"]["NVIDIA H200"]
    assert [item.hardware.name for item in read(two, context) if isinstance(item, Measurement)] == [
        "NVIDIA H200",
        "Acme 1",
    ]


def test_hardware_of_the_warehouse() -> None:
    """A device that the warehouse knows need not be described again."""
    assert good(dataset(hardware="ACME 1"), replace(CONTEXT, devices=(DEVICE,))).hardware == DEVICE


def test_two_unknown_names_are_not_one_device() -> None:
    """The context's device cannot be both."""
    data = dataset(hardware="gpu a")
    data["hardware"]["gpu b"] = data["hardware"]["gpu a"]
    found = read(data, replace(CONTEXT, hardware=DEVICE))
    assert [item.line for item in found if isinstance(item, BadLine)] == [1, 2]
    assert "nor by 1 others of the file, and they cannot all be Acme 1; split the file" in found[0].reason  # type: ignore[union-attr]


WHERE = "FILE: hardware 'NVIDIA H200', op {}, problem 1: "


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            dataset(hardware="my_gpu"),
            "FILE: hardware 'my_gpu', op 'mm', problem 1: no device is known by this name; give --hardware NAME",
        ),
        (dataset(op="conv"), WHERE.format("'conv'") + "unknown op 'conv'; known ops: addmm, "),
        (dataset(B=4), WHERE.format("'mm'") + "mm has no batch, but B is 4; name the op bmm or baddbmm"),
        (dataset(timed(SLOW, 1), timed(CONFIG, 0)), WHERE.format("'mm'") + "config 2: time must be positive"),
        (dataset(timed(CONFIG, float("nan"))), WHERE.format("'mm'") + "config 1: time must be positive milliseconds"),
        (dataset(timed(CONFIG, 1e300)), WHERE.format("'mm'") + "config 1: time x 1000 "),
        (dataset(timed({**CONFIG, "block_m": -1}, 1)), WHERE.format("'mm'") + "config 1: BLOCK_M must be"),
        (dataset(timed({**CONFIG, "block_m": 2**60}, 1)), WHERE.format("'mm'")),
        (dataset(M=2**40, K=2**40, op="bmm"), WHERE.format("'bmm'")),
    ],
    ids=range(9),
)
def test_bad_problems(data: dict[str, Any], expected: str) -> None:
    """Where it is, what is wrong and what to do, in one line."""
    said = reason(data)
    assert said.startswith(expected)
    assert "; " in said
    assert "\n" not in said


def test_a_problem_without_timings() -> None:
    """There is nothing to import, and that is said."""
    data = dataset()
    (solution,) = data["hardware"]["NVIDIA H200"]["operation"]["mm"]["solution"].values()
    solution["timed_configs"].clear()
    assert reason(data) == WHERE.format("'mm'") + "no config was timed; remove the problem"


def test_measurements_as_a_data_set() -> None:
    """Microseconds become milliseconds, a failure Infinity; the vendor's kernel has no place and is counted."""
    data, not_held = dataset_of([measurement(runtimes=(10.5, 20.25, None))])
    dtypes = dict.fromkeys(("M_dtype", "K_dtype", "out_dtype"), "bfloat16")
    shape = MMShape(B=1, M=64, N=256, K=128, **dtypes, out_size=(1, 64, 256), out_stride=(64 * 256, 256, 1))
    assert list(data.problems) == [("NVIDIA H200", "mm", shape)]
    timings = [(found.config, found.time) for found in data.problems["NVIDIA H200", "mm", shape].timed_configs]
    config: dict[str, Any] = {**CONFIG, "block_m": 16, "block_n": 64, "EVEN_K": True}
    assert timings == [
        (TritonGEMMConfig(**config), 0.02025),
        (TritonGEMMConfig(**{**config, "block_m": 32}), float("inf")),
    ]
    assert not_held.timings == 2
    assert not_held.lines() == [
        "1 timings left out: vendor kernels (a data set holds Triton kernels only)",
        "1 timings written without the reason of the failure",
    ]


def test_a_measurement_comes_back() -> None:
    """What a data set can hold is the same after a round trip."""
    problem = Problem.create(
        "baddbmm",
        (
            TensorSpec("float16", (3, 64, 32), (2048, 32, 1)),
            TensorSpec("float16", (3, 64, 16), (1024, 16, 1)),
            TensorSpec("float16", (3, 16, 32), (512, 32, 1)),
        ),
    )
    config = kernel_config("triton::bmm", {**KWARGS, **FLAGS})
    timings = (Timing(config, 12.5), Timing(replace(config, num_warps=8), None, Outcome.FAILED_UNSPECIFIED))
    given = measurement(problem=problem, timings=timings)
    data, not_held = dataset_of([given])
    assert not_held.lines() == []
    (found,) = measurements_of(data, ImportContext(environment=ENVIRONMENT, measured_at=MEASURED_AT))
    assert isinstance(found, Measurement)
    assert (found.problem, found.timings) == (problem, timings)


def test_everything_a_data_set_cannot_hold_is_counted() -> None:
    """Nothing is lost in silence."""
    transposed = Problem.create(
        "addmm",
        (
            TensorSpec("float16", (32,), (1,)),
            TensorSpec("float16", (64, 16), (16, 1)),
            TensorSpec("float16", (16, 32), (1, 16)),
        ),
        {"beta": 0.5},
    )
    scaled = Problem.create(
        "scaled_mm",
        (
            TensorSpec("float8_e4m3fn", (64, 16), (16, 1)),
            TensorSpec("float8_e4m3fn", (16, 32), (32, 1)),
            TensorSpec("float32", (), ()),
            TensorSpec("float32", (), ()),
        ),
        {"out_dtype": "bfloat16"},
    )
    flagged = {"timings": (Timing(triton_config(), 10.0, repeats=3),), "flags": ("throttled",)}
    tma = triton_config(NUM_SMS=132)
    _, not_held = dataset_of(
        [
            measurement(problem=transposed, timings=(Timing(tma, 10.0, is_estimate=True),)),
            measurement(**flagged, metrics=(Metric("spills", "B", (0.0,)),)),
            measurement(problem=scaled),
            measurement(timings=(Timing(kernel_config("decompose_k", {"k_split": 4}), 9.0),)),
        ]
    )
    assert not_held.timings == 2
    assert dict(not_held.left_out) == {
        "decompose_k is not a Triton kernel with a tile": 1,
        "the format has no field for the dimensions of scaled_mm": 3,
    }
    assert dict(not_held.measurements_without) == {
        "strides of inputs that are not row-major": 1,
        "scalars without a field": 1,
        "their flags": 1,
        "their metrics": 1,
    }
    assert dict(not_held.timings_without) == {
        "the mark of an estimate": 1,
        "kernel arguments without a field": 1,
        "repeats and percentiles": 1,
    }


def test_replays_are_left_out() -> None:
    """A data set cannot mark them, and a reader would take them for a second measurement."""
    data, not_held = dataset_of([measurement(), measurement(1, is_replay=True)])
    assert [shape.M for _, _, shape in data.problems] == [64]
    assert "3 timings left out: replays of cached timings" in not_held.left_out_lines()
    assert not_held.timings == 2
