"""Operands of scaled and grouped products that torch would not take: one line each says what is wrong."""

from __future__ import annotations

import pytest

from diode_collectors.problems.problem import parse_problem
from diode_store.errors import DiodeError, RecordError, SettingsError
from diode_store.ops.grouping import group_sizes, skew_of
from diode_store.records import Problem, TensorSpec

A, B = TensorSpec("float8_e4m3fn", (16, 256), (256, 1)), TensorSpec("float8_e4m3fn", (256, 64), (1, 256))
BY_ROW = TensorSpec("float32", (16, 1), (1, 1)), TensorSpec("float32", (1, 64), (1, 1))
ROWS, EXPERTS = TensorSpec("bfloat16", (64, 128), (128, 1)), TensorSpec("bfloat16", (4, 128, 256), (32768, 256, 1))


def said(error: pytest.ExceptionInfo[DiodeError]) -> str:
    """Return the message, which is one line."""
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("op", "inputs", "text"),
    [
        (
            "scaled_mm",
            (A, B, TensorSpec("float32", (15, 1), (1, 1)), BY_ROW[1]),
            "scaled_mm: a scale of [15, 1] does not fit A of [16, 256]; expected one value, one for each row",
        ),
        (
            "scaled_mm",
            (A, B, BY_ROW[0], TensorSpec("float32", (64, 1), (1, 1))),
            "scaled_mm: a scale of [64, 1] does not fit B of [256, 64]; expected one value, one for each column",
        ),
        (
            "scaled_mm",
            (A, B, TensorSpec("int64", (16, 1), (1, 1)), BY_ROW[1]),
            "scaled_mm: the scale of A is 'int64'; expected float32 or float8_e8m0fnu or float8_e4m3fn",
        ),
        (
            "grouped_mm",
            (ROWS, EXPERTS, TensorSpec("int64", (4,), (1,))),
            "grouped_mm: the offsets are 'int64'; expected int32",
        ),
        (
            "grouped_mm",
            (ROWS, TensorSpec("bfloat16", (4, 64, 256), (16384, 256, 1)), TensorSpec("int32", (4,), (1,))),
            "grouped_mm: [64, 128] x [4, 64, 256] is not a grouped product",
        ),
        (
            "grouped_mm",
            (ROWS, EXPERTS, TensorSpec("int32", (0,), (1,))),
            "grouped_mm: sizes must be positive, not [0]",
        ),
    ],
)
def test_inputs_that_make_no_product(op: str, inputs: tuple[TensorSpec, ...], text: str) -> None:
    """The message names the operand and what was expected."""
    with pytest.raises(RecordError) as error:
        Problem.create(op, inputs, {"out_dtype": "bfloat16"} if op == "scaled_mm" else {})
    assert said(error).startswith(text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("grouped_mm:64x256x128:0", "of 0 groups"),
        ("grouped_mm:64x256x128:2000", "at most 1023 groups, not 2000"),
        ("grouped_mm:64x256x128:4/skew9", "a skew is from 0 to 8"),
        ("scaled_mm:16x100x128", "multiples of 16, not 100 and 128"),
        (
            "scaled_mm:16x64x256/bf16",
            "'bf16' is neither a layout nor a dtype; known: layouts nn, ",
        ),
        ("scaled_mm:16x64x256/e5m2", "takes e5m2 for A or for B, not for both"),
    ],
)
def test_typed_problems(text: str, wrong: str) -> None:
    """The message repeats what was typed."""
    with pytest.raises(SettingsError) as error:
        parse_problem(text)
    assert said(error).startswith(f"'{text}': ")
    assert wrong in said(error)


def test_empty_groups_are_groups() -> None:
    """Fewer rows than groups leave some empty, which is no error."""
    sizes = group_sizes(8, 4)
    assert (len(sizes), sum(sizes), min(sizes)) == (8, 4, 0)
    assert parse_problem("grouped_mm:4x256x128:8").problem().shape.m == 1
    assert skew_of([0, 0]) == 0


@pytest.mark.parametrize("sizes", [[], [4, -2, 6]])
def test_offsets_that_do_not_ascend(sizes: list[int]) -> None:
    """Sizes of groups are differences of offsets."""
    with pytest.raises(RecordError, match="their offsets must ascend"):
        skew_of(sizes)
