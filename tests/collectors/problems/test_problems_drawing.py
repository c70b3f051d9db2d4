"""Problems drawn at random."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from diode_collectors.problems.drawing import Limits, LogNormalSizes, UniformSizes, draw_problems
from diode_store.errors import SettingsError

DTYPES = (("bfloat16", False), ("float16", False), ("float32", True))


@pytest.mark.parametrize("sizes", [UniformSizes(), LogNormalSizes()])
def test_a_seed_names_its_problems(sizes: Any) -> None:
    """The same seed draws the same problems, another seed others; a longer draw begins with the shorter one."""
    problems = draw_problems(20, 7, sizes)
    assert problems == draw_problems(20, 7, sizes)
    assert problems == draw_problems(30, 7, sizes)[:20]
    assert problems != draw_problems(20, 8, sizes)


def test_drawn_problems_are_different_and_within_bounds() -> None:
    """No problem is drawn twice, each size is within the bounds, only bmm has a batch."""
    problems = draw_problems(300, 0, UniformSizes(16, 512), limits=Limits(flops=1e8))
    assert len(set(problems)) == 300
    assert max(problem.flops for problem in problems) <= 1e8
    sizes = {size for problem in problems for size in (problem.m, problem.n, problem.k)}
    assert (min(sizes) >= 16, max(sizes) <= 512) == (True, True)
    assert {problem.b for problem in problems if problem.op != "bmm"} == {1}
    assert min(problem.b for problem in problems if problem.op == "bmm") > 1


def test_ops_dtypes_and_layouts_take_turns() -> None:
    """Each combination comes as often as every other one."""
    problems = draw_problems(
        54, 0, UniformSizes(), ops=("mm", "addmm", "bmm"), dtypes=DTYPES, layouts=("nn", "nt", "tn")
    )
    combinations = [(p.op, p.dtype, p.layout) for p in problems]
    assert {combinations.count(each) for each in combinations} == {2}
    assert len(set(combinations)) == 27


def test_powers_of_two_squares_and_even_sizes() -> None:
    """Each restriction holds for every problem."""
    powers = draw_problems(50, 0, UniformSizes(17, 1024, power_of_two=True))
    assert {size for p in powers for size in (p.m, p.n, p.k)} == {32, 64, 128, 256, 512, 1024}
    squares = draw_problems(50, 0, UniformSizes(rectangular=False))
    assert [p for p in squares if not p.m == p.n == p.k] == []
    even = draw_problems(50, 0, UniformSizes(33, 4097, odd_sizes=False))
    assert [p for p in even if p.m % 2 or p.n % 2 or p.k % 2] == []
    odd = draw_problems(50, 0, UniformSizes())
    assert [p for p in odd if p.m % 2 and p.n % 2 and p.k % 2] != []


def test_log_normal_sizes_have_the_parameters_asked_for() -> None:
    """Logarithms of M scatter around its mean by its deviation; all sizes are multiples of 8."""
    problems = draw_problems(2000, 0, LogNormalSizes(m_mean=8.0, m_std=0.5), ops=("mm",))
    logarithms = [math.log(problem.m) for problem in problems]
    assert statistics.mean(logarithms) == pytest.approx(8.0, abs=0.05)
    assert statistics.stdev(logarithms) == pytest.approx(0.5, abs=0.05)
    assert {size % 8 for p in problems for size in (p.m, p.n, p.k)} == {0}


def test_large_problems_are_passed_over() -> None:
    """None needs more memory than allowed."""
    problems = draw_problems(200, 0, LogNormalSizes(), limits=Limits(memory_bytes=2**24))
    assert max(problem.memory_bytes for problem in problems) <= 2**24


def test_bounds_hold_for_log_normal_sizes_too() -> None:
    """Sizes beyond them become the nearest multiple of 8 within."""
    problems = draw_problems(200, 0, LogNormalSizes(min_size=20, max_size=100), ops=("mm",))
    sizes = {size for p in problems for size in (p.m, p.n, p.k)}
    assert (min(sizes), max(sizes)) == (24, 96)


@pytest.mark.parametrize(("multiples", "share"), [((1,), 1 / 8), ((4,), 1 / 2), ((1, 16), (1 / 8 + 1) / 2)])
def test_log_normal_sizes_of_other_multiples(multiples: tuple[int, ...], share: float) -> None:
    """Of 1, most rows are odd; of several, each size is of one that is drawn; the mean stays where it is."""
    problems = draw_problems(2000, 0, LogNormalSizes(m_mean=8.0, m_std=0.5, multiples=multiples), ops=("mm",))
    assert statistics.mean(math.log(problem.m) for problem in problems) == pytest.approx(8.0, abs=0.05)
    assert sum(problem.m % 8 == 0 for problem in problems) / len(problems) == pytest.approx(share, abs=0.03)


def test_what_is_not_wanted_is_passed_over() -> None:
    """As many others are drawn instead."""
    unwanted = set(draw_problems(50, 3, UniformSizes()))
    problems = draw_problems(50, 3, UniformSizes(), wanted=lambda problem: problem not in unwanted)
    assert len(problems) == 50
    assert unwanted & set(problems) == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_size": 128, "max_size": 64}, "--min-size 128 is more than --max-size 64; lower it, or raise --max-size"),
        ({"min_size": 0}, "--min-size 0 is not a size; it must be at least 1"),
        ({"min_size": 33, "max_size": 63, "power_of_two": True}, "there is no power of two from 33 to 63; widen"),
        ({"min_size": 7, "max_size": 7, "odd_sizes": False}, "there is no even size from 7 to 7; widen"),
    ],
)
def test_contradictory_sizes_are_refused(arguments: dict[str, Any], message: str) -> None:
    """The message names the options and how to mend them."""
    with pytest.raises(SettingsError, match=message):
        UniformSizes(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m_std": -1.0}, "--log-normal-m-std -1.0 is not from 0 to 40"),
        ({"k_mean": float("nan")}, "--log-normal-k-mean nan is not from -40 to 40"),
        ({"n_mean": 1e9}, "--log-normal-n-mean"),
        ({"min_size": 9, "max_size": 15}, "log-normal sizes are multiples of 8, and there is none from 9 to 15"),
        ({"min_size": 99, "max_size": 15}, "--min-size 99 is more than --max-size 15"),
    ],
)
def test_what_is_no_log_normal_distribution_is_refused(arguments: dict[str, Any], message: str) -> None:
    """The message names the option."""
    with pytest.raises(SettingsError, match=message):
        LogNormalSizes(**arguments)


def test_asking_for_more_than_there_are_is_refused() -> None:
    """There are eight square powers of two from 32 to 4096, and three ops; a product takes operations."""
    squares = UniformSizes(power_of_two=True, rectangular=False)
    assert len(draw_problems(8, 0, squares, ops=("mm",))) == 8
    with pytest.raises(
        SettingsError, match="found only 8 of 9 problems: these sizes give no others; ask for fewer, or widen"
    ):
        draw_problems(9, 0, squares, ops=("mm",))
    with pytest.raises(
        SettingsError, match=r"found only 0 of 3 problems within 1 operations and 8 GiB; ask .* smaller"
    ):
        draw_problems(3, 0, UniformSizes(), limits=Limits(flops=1))
