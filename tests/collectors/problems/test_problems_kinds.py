"""Which problems are of a kind; that their kernels are the same is tested where they are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diode_collectors.problems.kinds import has_whole_rows, index_bits, kernel_kind
from diode_collectors.problems.problem import SweepProblem

LINEAR = SweepProblem("mm", 300, 520, 96, layout="nt")


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"m": 60_000}, True),
        ({"n": 1032}, True),
        ({"n": 1036}, False),
        ({"n": 200}, False),
        ({"m": 200}, False),
        ({"m": 70_000}, False),
        ({"k": 104}, False),
        ({"dtype": "float16"}, False),
        ({"op": "addmm"}, False),
        ({"layout": "nn"}, False),
        ({"m": 2**22, "n": 1032}, False),
    ],
    ids=str,
)
def test_what_is_of_the_kind_of_a_linear(changes: dict[str, object], is_same: bool) -> None:  # noqa: FBT001
    """M and N may differ, but not in which blocks fit, in what divides N, nor so that an index is too large."""
    other = replace(LINEAR, **changes)  # type: ignore[arg-type]
    assert (kernel_kind(other.problem().shape) == kernel_kind(LINEAR.problem().shape)) is is_same


@pytest.mark.parametrize(("layout", "free"), [("nn", {"b", "m"}), ("nt", {"b", "m", "n"}), ("tn", {"b"})])
def test_what_may_differ_by_layout(layout: str, free: set[str]) -> None:
    """The batch always, M where A is row-major, N where B is transposed as well."""
    problem = SweepProblem("bmm", 304, 520, 96, 4, layout=layout)
    kind = kernel_kind(problem.problem().shape)
    changed = {"b": 8, "m": 1000, "n": 1032, "k": 104}
    same = {
        name
        for name, size in changed.items()
        if kernel_kind(replace(problem, **{name: size}).problem().shape) == kind  # type: ignore[arg-type]
    }
    assert same == free


@pytest.mark.parametrize(("layout", "odd"), [("nn", "k"), ("nn", "n"), ("nt", "k"), ("tn", "m"), ("tn", "n")])
def test_odd_rows_share_nothing(layout: str, odd: str) -> None:
    """What differs in the batch alone is of another kind where a row of an operand is not whole 16 bytes."""
    whole = SweepProblem("bmm", 304, 520, 96, 4, layout=layout)
    for problem, is_whole in ((whole, True), (replace(whole, **{odd: 100}), False)):  # type: ignore[arg-type]
        other = replace(problem, b=8)
        assert has_whole_rows(problem) is has_whole_rows(problem.problem().shape) is is_whole
        assert (kernel_kind(other.problem().shape) == kernel_kind(problem.problem().shape)) is is_whole


@pytest.mark.parametrize(
    ("size", "k", "bits"),
    [(300, 96, 16), (65_536, 32_768, 16), (65_537, 96, 18), (300, 40_000, 12), (5000, 40_000, None)],
)
def test_an_index_times_k_fits_into_32_bits(size: int, k: int, bits: int | None) -> None:
    """By few sizes of bounds, so that kernels are shared; where none is large enough the size stays a number."""
    assert index_bits(size, k) == bits
