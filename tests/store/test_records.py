from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import samples
from diode_store.errors import RecordError
from diode_store.records import (
    CONFIG_COLUMNS,
    Environment,
    KernelConfig,
    Measurement,
    Outcome,
    Problem,
    ProblemShape,
    Source,
    TensorSpec,
    Timing,
)
from diode_store.values.keys import content_key
from diode_store.wire.codec import decode, encode

A = TensorSpec("bfloat16", (64, 128), (128, 1))
B = TensorSpec("bfloat16", (128, 256), (256, 1))
BATCHED_A = TensorSpec("float16", (4, 64, 128), (8192, 128, 1))
BATCHED_B = TensorSpec("float16", (4, 128, 256), (32768, 1, 128))


def test_every_field_is_in_the_sample() -> None:
    """The sample that other tests send through wire, warehouse, cache and files leaves no field at its default."""
    identity = {"uid", "hardware", "environment", "problem", "timings", "measured_at"}
    assert {field.name for field in fields(Measurement)} - identity == set(samples.EVERY_FIELD)
    plain, full = samples.measurement(), samples.measurement(**samples.EVERY_FIELD)
    assert [name for name in samples.EVERY_FIELD if getattr(plain, name) == getattr(full, name)] == []


def test_content_keys_are_pinned() -> None:
    """Keys made by any release on any machine are the same, or one kernel becomes two in every warehouse."""
    assert samples.H200.key.hex() == "10fd15ddbe5435d61b2cb5a74ace4e4d"
    assert samples.ENVIRONMENT.key.hex() == "74c2404469bc9cc72f397762241a08f8"
    assert samples.matmul(64, 256, 128).key.hex() == "ac7c98050fe0c78b3f144ff0ce8d2faf"
    assert samples.triton_config(64).key.hex() == "5c49e74ce4f0420180dc6a41bce47470"


def test_content_key_depends_on_kind_version_and_content() -> None:
    """Equal contents of two kinds, or of two encodings, have different keys; the order of a mapping does not count."""
    keys = {content_key("a", 1, [1]), content_key("b", 1, [1]), content_key("a", 2, [1]), content_key("a", 1, [2])}
    assert len(keys) == 4
    assert content_key("a", 1, {"x": 1, "y": 2}) == content_key("a", 1, {"y": 2, "x": 1})


def test_attributes_are_no_identity() -> None:
    """What is filled in later, and what a newer version adds, leaves the key alone."""
    assert replace(samples.H200, l2_bytes=1, extra={"new": 1}).key == samples.H200.key
    assert replace(samples.ENVIRONMENT, template_hashes={"a": "b"}).key == samples.ENVIRONMENT.key
    assert replace(samples.matmul(1, 2, 3), extra={"new": 1}).key == samples.matmul(1, 2, 3).key
    assert replace(samples.triton_config(), extra={"new": 1}).key == samples.triton_config().key


@pytest.mark.parametrize("column", [name for name in CONFIG_COLUMNS if name != "template"])
def test_every_config_column_is_identity(column: str) -> None:
    """A config that differs in one column is another config."""
    value: Any = {"acc_type": "tl.float32", "allow_tf32": True, "use_fast_accum": True}.get(column, 7)
    assert KernelConfig("triton::mm", **{column: value}).key != KernelConfig("triton::mm").key


def test_environment_that_nobody_named() -> None:
    """An environment without a word about it is unknown in every part."""
    assert Environment().torch == Environment().os == "unknown"


def test_problem_shape() -> None:
    """B, M, N, K, dtype and layout are derived from the inputs."""
    assert Problem.create("mm", (A, B)).shape == ProblemShape("mm", "bfloat16", 1, 64, 256, 128, "nn")
    assert Problem.create("bmm", (BATCHED_A, BATCHED_B)).shape == ProblemShape("bmm", "float16", 4, 64, 256, 128, "nt")


@pytest.mark.parametrize(
    ("dtype", "scalars", "expected"),
    [
        ("float32", {"ALLOW_TF32": True}, "tf32"),
        ("float32", {"ALLOW_TF32": False}, "float32"),
        ("float32", {}, "float32"),
        ("float16", {"ALLOW_TF32": True}, "float16"),
    ],
)
def test_arithmetic(dtype: str, scalars: dict[str, bool], expected: str) -> None:
    """What was asked of float32 is part of the shape; to other dtypes TF32 means nothing."""
    shape = Problem.create("mm", (A._replace(dtype=dtype), B._replace(dtype=dtype)), scalars).shape
    assert (shape.arithmetic, shape.tf32, shape.dtype) == (expected, expected == "tf32", dtype)


@pytest.mark.parametrize(
    ("stride", "letter"), [((256, 1), "n"), ((1, 128), "t"), ((512, 2), "s"), ((1, 1), "n"), ((0, 1), "n")]
)
def test_layout_letter(stride: tuple[int, int], letter: str) -> None:
    """Row-major is n, column-major t, anything else s."""
    assert Problem.create("mm", (A, TensorSpec("bfloat16", (128, 256), stride))).shape.layout == f"n{letter}"


@pytest.mark.parametrize(
    ("bias", "stride"),
    [
        (TensorSpec("bfloat16", (256,), (1,)), (0, 1)),
        (TensorSpec("bfloat16", (1, 256), (256, 1)), (0, 1)),
        (TensorSpec("bfloat16", (64, 1), (1, 1)), (1, 0)),
        (TensorSpec("bfloat16", (64, 256), (256, 1)), (256, 1)),
    ],
)
def test_bias_becomes_the_view_that_templates_see(bias: TensorSpec, stride: tuple[int, int]) -> None:
    """A bias has the output's size and stride 0 where it is repeated, whoever reports it."""
    problem = Problem.create("addmm", (bias, A, B))
    assert problem.inputs[0] == TensorSpec("bfloat16", (64, 256), stride)
    assert problem.shape == ProblemShape("addmm", "bfloat16", 1, 64, 256, 128, "nn")


def test_bias_of_a_batch_is_broadcast() -> None:
    """A baddbmm's bias gets the batch dimension too."""
    bias = TensorSpec("float16", (256,), (1,))
    assert Problem.create("baddbmm", (bias, BATCHED_A, BATCHED_B)).inputs[0].stride == (0, 0, 1)


def test_bmm_of_matrices_is_an_mm() -> None:
    """Inductor lowers a batch of one to mm; both reports are one problem."""
    assert Problem.create("bmm", (A, B)) == Problem.create("mm", (A, B))
    assert Problem.create("bmm", (BATCHED_A, BATCHED_B)).op == "bmm"


def test_default_scalars_are_dropped() -> None:
    """Saying alpha=1 and saying nothing is the same; any other value, and any other scalar, is kept sorted."""
    bias = TensorSpec("bfloat16", (256,), (1,))
    plain = Problem.create("addmm", (bias, A, B))
    assert Problem.create("addmm", (bias, A, B), {"alpha": 1.0, "beta": 1}) == plain
    scaled = Problem.create("addmm", (bias, A, B), {"beta": 0, "alpha": 2.0, "ALLOW_TF32": None, "OUT": "bf16"})
    assert scaled.scalars == (("OUT", "bf16"), ("alpha", 2), ("beta", 0))
    assert scaled.key != plain.key


@pytest.mark.parametrize("alpha", [2.0**63, -(2.0**122), 1e300])
def test_whole_numbers_beyond_64_bits_stay_floats(alpha: float) -> None:
    """As an int, no record could hold one: a measurement that was read could not be written again."""
    bias = TensorSpec("bfloat16", (256,), (1,))
    problem = Problem.create("addmm", (bias, A, B), {"alpha": alpha})
    assert [type(value) for _, value in problem.scalars] == [float]
    measurement = replace(samples.measurement(), problem=problem)
    assert decode(encode(measurement)) == measurement
    assert Problem.create("addmm", (bias, A, B), {"alpha": 2.0**62}).scalars == (("alpha", 2**62),)


def test_dtypes_are_different_problems() -> None:
    """bf16 and fp16 are timed apart."""
    assert samples.matmul(64, 64, 64).key != samples.matmul(64, 64, 64, "float16").key


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        ("no op", (A, B), "'no op' is not the name of an op"),
        ("mm", (A,), "mm needs at least 2 inputs, not 1"),
        ("addmm", (A, B), "addmm needs at least 3 inputs, not 2"),
        ("mm", (A, A), r"mm: \[64, 128\] x \[64, 128\] is not a matrix product"),
        ("bmm", (BATCHED_A, B), "is not a matrix product"),
        ("mm", (A, TensorSpec("bfloat16", (128,), (1,))), "is not a matrix product"),
        ("mm", (BATCHED_A, BATCHED_B), "an input has 3 dimensions; at most 2"),
        ("mm", (A, TensorSpec("bfloat16", (128, 256), (1,))), "2 sizes but 1 strides"),
        ("mm", (A, TensorSpec("bfloat16", (128, 0), (1, 1))), r"sizes must be positive, not \[128, 0\]"),
    ],
)
def test_what_is_no_matrix_product(op: str, inputs: tuple[TensorSpec, ...], message: str) -> None:
    """Inputs that do not fit are refused with what they are."""
    with pytest.raises(RecordError, match=message):
        Problem.create(op, inputs)


def test_records_are_immutable() -> None:
    """A record that crossed a border cannot change behind anyone's back."""
    with pytest.raises(FrozenInstanceError):
        samples.H200.name = "other"  # type: ignore[misc]


def test_vendor_kernels() -> None:
    """ATen's kernels are configs like any other, and know what they are."""
    assert KernelConfig("aten::mm").is_vendor
    assert not samples.triton_config().is_vendor


def test_true_is_not_one() -> None:
    """Configs and problems are equal when their keys are, and these tell True from 1."""
    yes, one = (KernelConfig("triton::mm", 64, kwargs=(("EVEN_K", value),)) for value in (True, 1))
    assert (yes == one, yes.key == one.key, len({yes, one})) == (False, False, 2)
    with_yes, with_one = (replace(samples.matmul(64, 64, 64), scalars=(("alpha", value),)) for value in (True, 1))
    assert (with_yes == with_one, with_yes.key == with_one.key, len({with_yes, with_one})) == (False, False, 2)
    assert yes == KernelConfig("triton::mm", 64, kwargs=(("EVEN_K", True),))
    assert yes != replace(yes, extra={"a": 1})
    assert (yes == "triton::mm", with_yes == "mm") == (False, False)


def test_equal_configs_hash_equal() -> None:
    """Configs built apart are one key of a dict."""
    assert {samples.triton_config(64): 1}[samples.triton_config(64)] == 1
    assert samples.triton_config(64) != samples.triton_config(128)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"uid": b"short"}, "uid must be 16 bytes, not b'short'"),
        ({"uid": "0123456789abcdef"}, "uid must be 16 bytes"),
        ({"measured_at": datetime(2026, 11, 20)}, "measured_at must name its time zone"),  # noqa: DTZ001 - the point
        ({"timings": ()}, "at least one timing"),
        ({"timings": (Timing(KernelConfig("aten::mm"), 1.0),) * 2}, "time each config once"),
        ({"flags": ("noisy,hot",)}, "a flag is a word without a comma, not 'noisy,hot'"),
        ({"flags": ("",)}, "a flag is a word"),
    ],
)
def test_impossible_measurement(overrides: dict[str, Any], message: str) -> None:
    """What no reader could mend is refused where it is made."""
    with pytest.raises(RecordError, match=message):
        samples.measurement(**overrides)


def test_times_of_any_zone() -> None:
    """The same moment in two zones is one moment."""
    there = samples.MEASURED_AT.astimezone(timezone(timedelta(hours=-7)))
    assert samples.measurement(measured_at=there) == samples.measurement()


def test_measurement_defaults() -> None:
    """A measurement that says no more than it must is a stock, first-hand one."""
    timings = (Timing(KernelConfig("aten::mm"), 1.0),)
    made = Measurement(bytes(16), samples.H200, samples.ENVIRONMENT, samples.matmul(1, 1, 1), timings, Source.FEEDBACK)
    assert (made.is_replay, made.choice_policy, made.flags, made.superseded_by) == (False, "stock", (), None)
    assert timings[0] == (KernelConfig("aten::mm"), 1.0, Outcome.OK, False, None, None, None)
