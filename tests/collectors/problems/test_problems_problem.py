"""One problem: typed, described, and the record that Inductor will make of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from diode_collectors.problems.problem import LAYOUTS, SweepProblem, parse_dtype, parse_problem
from diode_store.errors import SettingsError
from diode_store.ops import standard_ops
from diode_store.records import TensorSpec
from inductor_events import events


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mm:512x768x1024", SweepProblem("mm", 512, 768, 1024)),
        ("addmm:1x2x3", SweepProblem("addmm", 1, 2, 3)),
        ("bmm:64x32x16:8", SweepProblem("bmm", 64, 32, 16, 8)),
        ("bmm:64x32x16", SweepProblem("bmm", 64, 32, 16, 1)),
        ("mm:8x8x8/nt", SweepProblem("mm", 8, 8, 8, layout="nt")),
        ("mm:8x8x8/fp16/tn", SweepProblem("mm", 8, 8, 8, dtype="float16", layout="tn")),
        ("baddbmm:8x8x8:2/tf32", SweepProblem("baddbmm", 8, 8, 8, 2, "float32", allow_tf32=True)),
    ],
)
def test_shapes_are_parsed(text: str, expected: SweepProblem) -> None:
    """A shape reads op, M, N, K, the batch, layout and dtype; what it prints can be typed again."""
    problem = parse_problem(text)
    assert problem == expected
    assert parse_problem(str(problem)) == problem


def test_what_is_not_typed_is_as_asked() -> None:
    """Layout and dtype of the options count where the shape says nothing, TF32 only for fp32."""
    problem = parse_problem("mm:8x8x8", dtype="float32", layout="nt", allow_tf32=True, name="typed")
    assert problem == SweepProblem("mm", 8, 8, 8, 1, "float32", "nt", allow_tf32=True)
    assert problem.name == "typed"
    assert parse_problem("mm:8x8x8/bf16/nn", dtype="float32", allow_tf32=True) == SweepProblem("mm", 8, 8, 8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("llama3-8b/qkv", "llama3-8b"), ("attention/d64/qk", "attention"), ("drawn", "drawn"), ("", None)],
)
def test_a_name_begins_with_the_family(name: str, expected: str | None) -> None:
    """The family is what stands before the first slash of the name; a problem that was typed has none."""
    assert SweepProblem("mm", 8, 8, 8, name=name).family == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mm:512x768", "is not a shape; write OP:MxNxK"),
        ("mm", "is not a shape"),
        ("mm:ax2x3", "is not a shape"),
        ("mm:1x2x3:4:5", "is not a shape"),
        ("conv:1x2x3", "'conv:1x2x3': unknown op 'conv'; known ops: mm, addmm, bmm, baddbmm, int_mm"),
        ("mm:1x2x3:4", "only bmm and baddbmm have"),
        ("mm:0x2x3", "sizes must be positive"),
        ("bmm:1x2x3:0", "sizes must be positive"),
        ("mm:1x2x3/int8", "'int8' is neither a layout nor a dtype; known: layouts nn, nt, tn, tt; dtypes bf16"),
    ],
)
def test_bad_shapes_say_what_was_expected(text: str, message: str) -> None:
    """Each mistake has a message of its own."""
    with pytest.raises(SettingsError, match=message):
        parse_problem(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layout": "ns"}, "unknown layout 'ns'; known layouts: nn, nt, tn, tt"),
        ({"allow_tf32": True}, "TF32 is a way to compute float32, not bfloat16"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], message: str) -> None:
    """No such problem exists."""
    with pytest.raises(SettingsError, match=message):
        SweepProblem("mm", 8, 8, 8, **arguments)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bf16", ("bfloat16", False)),
        ("fp16", ("float16", False)),
        ("float32", ("float32", False)),
        ("tf32", ("float32", True)),
    ],
)
def test_dtypes_have_short_names(name: str, expected: tuple[str, bool]) -> None:
    """Both the short name and torch's are understood; tf32 is fp32 computed in TF32."""
    assert parse_dtype(name) == expected


def test_unknown_dtypes_are_refused() -> None:
    """The message lists what there is."""
    with pytest.raises(SettingsError, match="unknown dtype 'int8'; known dtypes: bf16, fp16, fp32, tf32"):
        parse_dtype("int8")


def test_operations_and_bytes_are_counted() -> None:
    """Each multiplication and addition counts, and each element of the inputs and the output."""
    assert parse_problem("bmm:2x3x5:4").flops == 2 * 4 * 2 * 3 * 5
    assert parse_problem("mm:2x3x5/fp32").memory_bytes == 4 * (2 * 5 + 5 * 3 + 2 * 3)
    assert parse_problem("addmm:2x3x5/fp16").memory_bytes == 2 * (2 * 5 + 5 * 3 + 2 * 3 + 3)
    assert parse_problem("baddbmm:2x3x5:4/bf16").memory_bytes == 2 * 4 * (2 * 5 + 5 * 3 + 2 * 3 + 2 * 3)


def test_where_it_comes_from_makes_no_other_problem() -> None:
    """Two families that share a layer share its measurement."""
    assert SweepProblem("mm", 8, 8, 8, name="a") == SweepProblem("mm", 8, 8, 8, name="b")


@pytest.mark.quick(2)
@pytest.mark.parametrize(("op", "layout"), list(itertools.product(standard_ops(), LAYOUTS)))
def test_its_record_is_the_one_inductor_makes(op: str, layout: str) -> None:
    """A real compile of the tensors that a problem describes reports the same problem, so that it is found again."""
    problem = SweepProblem(op, 64, 96, 128, 2 if "bmm" in op else 1, "float32", layout)
    specs = [spec for spec in problem.problem().inputs if 0 not in spec.stride]
    inputs = [torch.empty_strided(spec.size, spec.stride) for spec in specs]
    if op == "addmm":
        inputs.insert(0, torch.zeros(96))
    [measurement] = events(getattr(torch, op), *inputs)
    assert measurement.problem == problem.problem()
    assert (measurement.problem.shape.op, measurement.problem.shape.layout) == (op, layout)


def test_tf32_is_part_of_its_record(request: pytest.FixtureRequest) -> None:
    """It is what Inductor says of fp32 when TF32 is allowed."""
    problem = SweepProblem("mm", 64, 96, 128, dtype="float32", allow_tf32=True)
    request.addfinalizer(lambda: torch.set_float32_matmul_precision("highest"))
    torch.set_float32_matmul_precision("high")
    [measurement] = events(torch.mm, torch.zeros(64, 128), torch.zeros(128, 96))
    assert measurement.problem == problem.problem()
    assert problem.problem().scalars == (("ALLOW_TF32", True),)


def test_a_bias_of_one_element_is_broadcast_along_both_dimensions() -> None:
    """Where N is 1, nothing tells the bias's own dimension from the one it is repeated along."""
    bias = SweepProblem("addmm", 64, 1, 32).problem().inputs[0]
    assert bias == TensorSpec("bfloat16", (64, 1), (0, 0))
