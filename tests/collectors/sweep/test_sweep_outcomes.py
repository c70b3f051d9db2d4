"""What becomes of choices that do not compile, do not run, compute something else, or break the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from scripted_timer import CONFIG, Kernel, ScriptedTimer, candidates_of
from torch._inductor.exc import CppCompileError, CUDACompileError
from torch._inductor.runtime.triton_heuristics import NoTritonConfigsError
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from diode_collectors.inductor.failures import outcome_of
from diode_collectors.sweep.lane.benchmark import (
    FIRST_LOOK_RUNS,
    MOST_RUNS,
    DeviceLostError,
    relative_error,
    time_all,
)
from diode_store.records import Outcome, Timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_collectors.sweep.lane.benchmark import Candidate

OUT_OF_SHARED_MEMORY = OutOfResources(300_000, 232_448, "shared memory")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OUT_OF_SHARED_MEMORY, Outcome.OUT_OF_RESOURCES),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), Outcome.OUT_OF_RESOURCES),
        (RuntimeError("Triton Error [CUDA]: out of memory"), Outcome.OUT_OF_RESOURCES),
        (RuntimeError("No valid triton configs. OutOfResources: out of resource: registers"), Outcome.OUT_OF_RESOURCES),
        (PTXASError("`ptxas` failed with error code 255"), Outcome.COMPILE_ERROR),
        (CompilationError("def kernel(): pass", None, "unsupported"), Outcome.COMPILE_ERROR),
        (NoTritonConfigsError("No valid triton configs"), Outcome.COMPILE_ERROR),
        (CppCompileError(["g++", "x.cpp"], "error: expected ';'"), Outcome.COMPILE_ERROR),
        (CUDACompileError(["nvcc"], "error"), Outcome.COMPILE_ERROR),
        (RuntimeError("Internal Triton PTX codegen error: ptxas fatal"), Outcome.COMPILE_ERROR),
        (RuntimeError("CUDA error: invalid argument"), Outcome.RUNTIME_ERROR),
        (AssertionError(), Outcome.RUNTIME_ERROR),
        (NotImplementedError("no"), Outcome.RUNTIME_ERROR),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)  # fmt: skip
def test_an_exception_becomes_an_outcome(error: Exception, outcome: Outcome) -> None:
    """Whether preparing, running or timing raised it; the other choices are timed all the same."""
    assert outcome_of(error) is outcome

    def refuse() -> Any:
        raise error

    for failing in (broken(prepare=refuse), broken(run=refuse)):
        good = candidates_of([Kernel("vendor", 10.0), Kernel("after", 11.0)])
        time_all([good[0], failing, good[1]], ScriptedTimer())
        assert [c.outcome for c in good] == [Outcome.OK, Outcome.OK]
        assert failing.timing(CONFIG) == Timing(CONFIG, None, outcome)
        assert failing.error is not None
        assert failing.error.startswith(type(error).__name__)
        assert "\n" not in failing.error


def broken(
    prepare: Callable[[], Any] | None = None, run: Callable[[], Any] | None = None, error: float | None = None
) -> Candidate:
    """Return a candidate that goes wrong in one way."""
    (candidate,) = candidates_of([Kernel("broken", 5.0)])
    if prepare is not None:
        candidate.prepare = prepare
    if run is not None:
        candidate.prepare = lambda: run
    candidate.check = lambda: error
    return candidate


def test_a_leader_that_fails_in_a_later_round_is_a_failure() -> None:
    """It ran well before, but who would call it? It keeps nobody else from being measured again."""
    left = [FIRST_LOOK_RUNS + MOST_RUNS]

    class Failing(Kernel):
        def next_us(self) -> float:
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("CUDA error: invalid argument")
            return self.us

    candidates = candidates_of([Kernel("vendor", 10.0), Failing("failing", 9.8)])
    timer = ScriptedTimer()
    time_all(candidates, timer)
    assert [c.outcome for c in candidates] == [Outcome.OK, Outcome.RUNTIME_ERROR]
    assert candidates[1].timing(CONFIG).runtime_us is None
    assert len(candidates[0].times_us) > MOST_RUNS


@pytest.mark.parametrize("error", [0.06, 1.0, float("inf"), float("nan")])
def test_a_wrong_result_is_refused(error: float) -> None:
    """It is not timed, however fast it may be; NaN is wrong too."""
    wrong, vendor = broken(error=error), candidates_of([Kernel("vendor", 10.0)])[0]
    timer = ScriptedTimer()
    time_all([wrong, vendor], timer)
    assert wrong.timing(CONFIG) == Timing(CONFIG, None, Outcome.WRONG_RESULT)
    assert timer.order() == ["vendor"]


@pytest.mark.parametrize("error", [None, 0.0, 0.01])
def test_a_result_that_differs_by_rounding_counts(error: float | None) -> None:
    """So does one with which nothing can be compared."""
    right = broken(error=error)
    time_all([right], ScriptedTimer())
    assert right.outcome is Outcome.OK


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "Triton Error [CUDA]: misaligned address",
        "CUDA error: unspecified launch failure",
        "CUDA error: device-side assert triggered",
    ],
)
def test_an_error_that_breaks_the_device_ends_it(message: str) -> None:
    """The process is of no more use; who did it is told by its place in the list."""

    def crash() -> Any:
        raise torch.AcceleratorError(message)

    guilty = broken(run=crash)
    candidates = [
        *candidates_of([Kernel("a", 10.0), Kernel("vendor", 9.0)]),
        guilty,
        *candidates_of([Kernel("b", 1.0)]),
    ]
    with pytest.raises(DeviceLostError, match=message.rpartition("]")[2].strip()) as lost:
        time_all(candidates, ScriptedTimer())
    assert lost.value.index == 2
    assert guilty.outcome is Outcome.RUNTIME_ERROR


def test_an_unknown_error_after_which_nothing_works_ends_it_too() -> None:
    """A device that refuses to be waited for is lost, whatever the first error was called."""

    class Lost(ScriptedTimer):
        is_lost = False

        def synchronize(self) -> None:
            if self.is_lost:
                raise torch.AcceleratorError("CUDA error: unknown error")

    timer = Lost()

    def crash() -> Any:
        timer.is_lost = True
        raise torch.AcceleratorError("CUDA error: an illegal instruction was encountered")

    with pytest.raises(DeviceLostError, match="illegal instruction") as lost:
        time_all([*candidates_of([Kernel("vendor", 9.0)]), broken(run=crash)], timer)
    assert lost.value.index == 1


def test_a_device_lost_in_the_finals_is_told_by_its_kernel() -> None:
    """Not only a first look may break it."""
    left = [FIRST_LOOK_RUNS + MOST_RUNS + 1]

    class Crashing(Kernel):
        def next_us(self) -> float:
            left[0] -= 1
            if left[0] < 0:
                raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
            return self.us

    with pytest.raises(DeviceLostError) as lost:
        time_all(candidates_of([Crashing("crashing", 9.8), Kernel("vendor", 10.0)]), ScriptedTimer())
    assert lost.value.index == 0


def test_nothing_but_failures_is_no_error() -> None:
    """A problem may have no kernel that runs."""

    def refuse() -> Any:
        raise OUT_OF_SHARED_MEMORY

    time_all([broken(prepare=refuse), broken(error=1.0)], ScriptedTimer())
    time_all([], ScriptedTimer())


def product(dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix of products."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
    return (a @ b).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_error_of_equal_tensors_is_none(dtype: torch.dtype) -> None:
    """Whatever their dtype and strides."""
    expected = product(dtype)
    assert relative_error(expected.clone(), expected) == 0.0
    assert relative_error(expected.t().contiguous().t(), expected) == 0.0
    assert relative_error(torch.zeros(4, 4, dtype=dtype), torch.zeros(4, 4, dtype=dtype)) == 0.0


def test_the_error_is_relative() -> None:
    """Rounding to bf16 is below 1%; a factor of two is 100%, and so is nothing at all; a lost row is seen."""
    expected = product(torch.float32)
    assert 0 < relative_error(expected.bfloat16(), expected) < 0.01
    assert relative_error(2 * expected, expected) == pytest.approx(1.0)
    assert relative_error(0 * expected, expected) == pytest.approx(1.0)
    row = expected.clone()
    row[7] = 0
    assert relative_error(row, expected) > 0.05


def test_the_error_of_what_should_be_zero_is_its_size() -> None:
    """There is nothing to divide by."""
    assert relative_error(torch.full((3, 3), 2.0), torch.zeros(3, 3)) == pytest.approx(6.0)


def test_huge_values_do_not_overflow() -> None:
    """The squares of fp32 and bf16 values need a wider type."""
    huge = product(torch.float32) * 1e30
    assert relative_error(huge.clone(), huge) == 0.0
    assert relative_error(1.5 * huge, huge) == pytest.approx(0.5)
    assert relative_error(huge.bfloat16(), huge) < 0.01


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_value_that_is_no_number_is_wrong(value: float) -> None:
    """It fails every comparison, so it must be looked for as ``not <=``."""
    expected = product(torch.float32)
    output = expected.clone()
    output[3, 5] = value
    assert not relative_error(output, expected) <= 0.05
    assert not relative_error(expected, output) <= 0.05


def test_every_column_of_a_large_result_is_looked_at() -> None:
    """Only some of its elements are compared, but not those of a few columns only."""
    expected = torch.ones(2048, 2048)
    output = expected.clone()
    output[:, 1500:1600] = 0  # 100 of 2,048 columns, so an error of 22%
    assert relative_error(output, expected) == pytest.approx((100 / 2048) ** 0.5, rel=0.1)
