"""What of sizes kernels are told that share them; that they are the same is tested where they are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diode_collectors.problems.kinds import index_bits, k_bits, kernel_kind, told_divisor
from diode_collectors.problems.problem import SweepProblem
from diode_store.candidates.operands import has_whole_rows

LINEAR = SweepProblem("mm", 300, 520, 96, layout="nt")


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"m": 60_000, "n": 24, "k": 8}, True),
        ({"dtype": "float16"}, False),
        ({"op": "addmm"}, False),
        ({"layout": "nn"}, False),
    ],
    ids=str,
)
def test_what_is_of_the_kind_of_a_linear(changes: dict[str, object], is_same: bool) -> None:  # noqa: FBT001
    """All of its op, dtype and layout, whatever their sizes."""
    other = replace(LINEAR, **changes)  # type: ignore[arg-type]
    assert (kernel_kind(other.problem().shape) == kernel_kind(LINEAR.problem().shape)) is is_same


@pytest.mark.parametrize(("layout", "odd"), [("nn", "k"), ("nn", "n"), ("nt", "k"), ("tn", "m"), ("tn", "n")])
def test_which_rows_are_whole(layout: str, odd: str) -> None:
    """Those of A and of B have to be, as they lie in memory; 100 halves are not whole 16 bytes."""
    whole = SweepProblem("bmm", 304, 520, 96, 4, layout=layout)
    for problem, is_whole in ((whole, True), (replace(whole, **{odd: 100}), False)):  # type: ignore[arg-type]
        assert has_whole_rows(problem) is has_whole_rows(problem.problem().shape) is is_whole


@pytest.mark.parametrize(
    ("size", "most_k", "bits"),
    [(300, 96, 16), (65_536, 32_768, 16), (65_537, 96, 18), (300, 40_000, 12), (5000, 40_000, None)],
)
def test_an_index_times_k_fits_into_32_bits(size: int, most_k: int, bits: int | None) -> None:
    """By few sizes of bounds, so that kernels are shared; where none is large enough the size stays a number."""
    assert index_bits(size, most_k) == bits


@pytest.mark.parametrize(
    ("m", "n", "k", "bits"),
    [
        (300, 520, 32_767, 15),
        (300, 520, 32_768, None),
        (65_536, 8, 96, 15),
        (8, 65_537, 96, 13),
        (65_537, 8, 8192, None),
        (2**18 + 1, 8, 96, None),
    ],
)
def test_k_times_an_index_fits_into_32_bits(m: int, n: int, k: int, bits: int | None) -> None:
    """Whatever K is passed; where the bits are too few it stays a number."""
    assert k_bits(m, n, k) == bits


@pytest.mark.parametrize(
    ("size", "item_bytes", "divisor"), [(520, 2, 8), (516, 2, 4), (515, 2, 1), (512, 2, 8), (512, 4, 4)]
)
def test_what_divides_a_row(size: int, item_bytes: int, divisor: int) -> None:
    """No more than what one load takes is told."""
    assert told_divisor(size, item_bytes) == divisor
