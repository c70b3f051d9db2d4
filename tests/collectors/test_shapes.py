"""Problems typed or drawn."""

from __future__ import annotations

import pytest

from diode_collectors.shapes import SweepProblem, parse_dtype, parse_shape, random_problems
from diode_store.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mm:512x768x1024", SweepProblem("mm", 512, 768, 1024, 1, "bfloat16")),
        ("addmm:1x2x3", SweepProblem("addmm", 1, 2, 3, 1, "bfloat16")),
        ("bmm:64x32x16:8", SweepProblem("bmm", 64, 32, 16, 8, "bfloat16")),
        ("bmm:64x32x16", SweepProblem("bmm", 64, 32, 16, 1, "bfloat16")),
    ],
)
def test_shapes_are_parsed(text: str, expected: SweepProblem) -> None:
    """A shape reads op, M, N, K and the batch; what it prints can be typed again."""
    problem = parse_shape(text, "bfloat16")
    assert problem == expected
    assert parse_shape(str(problem), "bfloat16") == problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mm:512x768", "is no shape; write OP:MxNxK"),
        ("mm", "is no shape"),
        ("mm:ax2x3", "is no shape"),
        ("mm:1x2x3:4:5", "is no shape"),
        ("conv:1x2x3", "unknown op 'conv' in 'conv:1x2x3'; known ops: mm, addmm, bmm"),
        ("mm:1x2x3:4", "only bmm has a batch"),
        ("mm:0x2x3", "sizes must be positive"),
        ("bmm:1x2x3:0", "sizes must be positive"),
    ],
)
def test_bad_shapes_say_what_was_expected(text: str, message: str) -> None:
    """Each mistake has a message of its own."""
    with pytest.raises(SettingsError, match=message):
        parse_shape(text, "bfloat16")


@pytest.mark.parametrize(("name", "expected"), [("bf16", "bfloat16"), ("fp16", "float16"), ("float32", "float32")])
def test_dtypes_have_short_names(name: str, expected: str) -> None:
    """Both the short name and torch's are understood."""
    assert parse_dtype(name) == expected


def test_unknown_dtypes_are_refused() -> None:
    """The message lists what there is."""
    with pytest.raises(SettingsError, match="unknown dtype 'int8'; known dtypes: bf16, fp16, fp32"):
        parse_dtype("int8")


def test_a_seed_names_its_problems() -> None:
    """The same seed draws the same problems, another seed others; a longer draw begins with the shorter one."""
    problems = random_problems(20, 7, "float16")
    assert problems == random_problems(20, 7, "float16")
    assert problems == random_problems(30, 7, "float16")[:20]
    assert problems != random_problems(20, 8, "float16")


def test_random_problems_are_different_and_within_bounds() -> None:
    """No problem is drawn twice; sizes are multiples of 8; only bmm has a batch."""
    problems = random_problems(300, 0, "float16", max_flops=1e9)
    assert len(set(problems)) == 300
    assert {problem.op for problem in problems} == {"mm", "addmm", "bmm"}
    assert max(problem.flops for problem in problems) <= 1e9
    sizes = {size for problem in problems for size in (problem.m, problem.n, problem.k)}
    assert all(16 <= size <= 8192 and size % 8 == 0 for size in sizes)
    assert {problem.b for problem in problems if problem.op != "bmm"} == {1}


def test_operations_count_each_multiplication_and_addition() -> None:
    """A batch of 4 products takes 4 times as many."""
    assert parse_shape("bmm:2x3x5:4", "float32").flops == 2 * 4 * 2 * 3 * 5


def test_asking_for_more_than_there_are_is_refused() -> None:
    """No product takes a single operation."""
    with pytest.raises(SettingsError, match="found only 0 of 3 problems within 1 operations; ask for fewer"):
        random_problems(3, 0, "float16", max_flops=1)
