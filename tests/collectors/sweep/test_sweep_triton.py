"""A sweep over Inductor's real lists of Triton choices; none can run on this CPU, so a script says their times."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from precompiling import PRECOMPILE, PRECOMPILES, block_m_is_64, precompile_like_inductor
from scripted_timer import Kernel, ScriptedTimer
from torch._inductor.select_algorithm import AlgorithmSelectorCache, TritonTemplateCaller
from triton.runtime.errors import OutOfResources

from diode_collectors.problems.problem import parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.lane import measuring as module
from diode_collectors.sweep.lane.benchmark import FIRST_LOOK_RUNS, MOST_RUNS
from diode_collectors.sweep.lane.measuring import (
    FINALS,
    LAUNCH_NOT_HIDDEN,
    SHARED,
    LostConfigError,
    Measuring,
    MeasuringOptions,
)
from diode_collectors.sweep.lane.takeover import settings_for
from diode_collectors.sweep.plan import DEFAULT_MODE
from diode_store.records import READ_FLUSH, Outcome, TimingMethod
from inductor_harness import triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from diode_store.records import Measurement

VENDOR_US = 20.0
PROBLEM = parse_problem("mm:128x256x512", dtype="float32")


def us_of(choice: Any) -> float:
    """Return the time of a choice: the vendor 20 us, Triton less the larger its tile, from 10 us to 640 us."""
    if not isinstance(choice, TritonTemplateCaller):
        return VENDOR_US
    block_m, _, block_n = (int(part) for part in choice.info_dict()["tile_shape"].strip("()").split(","))
    return 10.0 * 128 * 128 / (block_m * block_n)


@contextmanager
def scripted(
    folder: Path, run: Callable[[Any], Any] = lambda choice: Kernel(choice.name, us_of(choice)), space: str = "DEFAULT"
) -> Iterator[tuple[Measuring, ScriptedTimer]]:
    """Yield what measures on this CPU as if it were a GPU, and the timer that is asked.

    Args:
        folder: where the device's lock is.
        run: returns what runs a choice, or raises as loading it would.
        space: what is listed.
    """

    def for_triton(space: SearchSpace, **_: Any) -> dict[str, Any]:
        settings = settings_for(space, on_cpu=False, include_tma=False)
        return {name: value for name, value in settings.items() if "shared_mem" not in name}

    timer = ScriptedTimer()
    options = MeasuringOptions("cpu", SearchSpace.parse(space), "s1", 3, False, DEFAULT_MODE, folder)  # noqa: FBT003 - no TMA
    with (
        warnings.catch_warnings(),
        triton_choices_on_cpu(),
        mock.patch.object(module, "settings_for", for_triton),
        mock.patch.object(module, "captured", lambda choice, _benchmark: run(choice)),
        Measuring(options) as measuring,
    ):
        measuring._timer = timer
        yield measuring, timer


def measured(folder: Path, **options: Any) -> tuple[Measurement, ScriptedTimer]:
    """Return the record of an mm, and the timer that was asked."""
    with scripted(folder, **options) as (measuring, timer):
        result = measuring.measure(PROBLEM)
    assert result.silent is None
    assert result.measurement is not None
    return result.measurement, timer


def test_every_choice_is_recorded_with_its_own_time(tmp_path: Path) -> None:
    """The twenty of DEFAULT and the vendor's, each once, with the time of its own tile."""
    record, timer = measured(tmp_path)
    assert len(record.timings) == len(timer.order()) > 15
    assert timer.order()[0] == timer.warmed[0] == "mm"
    for timing in record.timings:
        config = timing.config
        expected = VENDOR_US if config.is_vendor else 10.0 * 128 * 128 / (config.block_m * config.block_n)  # type: ignore[operator]
        assert timing.outcome is Outcome.OK
        assert timing.runtime_us == timing.p10_us == timing.p90_us == pytest.approx(expected)
    assert record.timing_method == TimingMethod("median", flush_l2=True, launch_hidden=True, regime=READ_FLUSH)
    assert record.problem.key == PROBLEM.problem().key


def test_repeats_tell_finalists_from_estimates(tmp_path: Path) -> None:
    """The best are in the finals, so is the vendor; what is three times slower a look at most, and says so."""
    record, _ = measured(tmp_path)
    best = min(timing.runtime_us for timing in record.timings if timing.runtime_us)
    for timing in record.timings:
        assert timing.runtime_us is not None
        assert timing.is_estimate == (timing.runtime_us > 3 * best)
        if timing.is_estimate:
            assert timing.repeats in (1, FIRST_LOOK_RUNS)
        elif timing.config.is_vendor or timing.runtime_us == best:
            assert timing.repeats > MOST_RUNS  # type: ignore[operator]
        else:
            assert timing.repeats == MOST_RUNS
    assert sum(timing.is_estimate for timing in record.timings) > 3


@pytest.mark.long
def test_the_record_says_of_which_family_the_problem_is_and_how_the_finals_ended(tmp_path: Path) -> None:
    """The family from the problem's name; a problem without one has none."""
    with scripted(tmp_path) as (measuring, _):
        records = [measuring.measure(p).measurement for p in (replace(PROBLEM, name="llama3-8b/qkv"), PROBLEM)]
    assert [record and record.family for record in records] == ["llama3-8b", None]
    assert [record and set(record.extra[FINALS]) for record in records] == 2 * [{"finalists", "rounds", "undecided"}]


@pytest.mark.long
def test_a_record_says_that_its_kernels_are_shared(tmp_path: Path) -> None:
    """Where sizes were arguments; not where there is no folder for them, or where rows are not whole 16 bytes."""
    with scripted(tmp_path) as (measuring, _):
        own = measuring.measure(PROBLEM).measurement
        measuring.kernels = tmp_path / "kernels"
        shared = measuring.measure(PROBLEM).measurement
        alone = measuring.measure(replace(PROBLEM, n=255)).measurement
    assert own is not None
    assert alone is not None
    assert SHARED not in alone.extra
    assert shared is not None
    assert (own.extra.get(SHARED), shared.extra[SHARED]) == (None, True)
    assert {timing.config for timing in own.timings} == {timing.config for timing in shared.timings}


def test_choices_that_do_not_run_are_outcomes(tmp_path: Path) -> None:
    """Each says why; the others have their times."""

    def run(choice: Any) -> Kernel:
        if us_of(choice) == 40.0:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return Kernel(choice.name, us_of(choice))

    record, _ = measured(tmp_path, run=run)
    failed = [timing for timing in record.timings if timing.outcome is not Outcome.OK]
    assert {timing.outcome for timing in failed} == {Outcome.OUT_OF_RESOURCES}
    assert {timing.config.block_m * timing.config.block_n for timing in failed} == {64 * 64}  # type: ignore[operator]
    assert all(timing.runtime_us is timing.repeats is None for timing in failed)
    assert 0 < len(failed) < len(record.timings) - 5


@pytest.mark.long
def test_choices_that_do_not_compile_are_outcomes(tmp_path: Path) -> None:
    """Inductor drops them from its list before anybody is told; the record has them."""

    def precompile(choice: Any) -> None:
        if block_m_is_64(choice):
            raise RuntimeError("no such kernel")

    made = PRECOMPILE if PRECOMPILES else precompile_like_inductor
    with scripted(tmp_path) as (measuring, _):
        whole = measuring.measure(PROBLEM).measurement
        with (
            mock.patch.object(AlgorithmSelectorCache, "make_precompile_fn", made),
            mock.patch.object(TritonTemplateCaller, "precompile", precompile),
        ):
            record = measuring.measure(PROBLEM).measurement
    assert whole is not None
    assert record is not None
    assert {timing.config for timing in record.timings} == {timing.config for timing in whole.timings}
    lost = {timing.config for timing in record.timings if timing.outcome is Outcome.COMPILE_ERROR}
    assert lost == {timing.config for timing in whole.timings if timing.config.block_m == 64} != set()
    assert {timing.outcome for timing in record.timings} == {Outcome.OK, Outcome.COMPILE_ERROR}


@pytest.mark.long
def test_a_config_that_breaks_the_device_is_named_and_then_left_out(tmp_path: Path) -> None:
    """Who measures again excludes it, and the record still says what became of it."""
    guilty: list[Any] = []
    messages: list[str] = []

    def run(choice: Any) -> Any:
        if us_of(choice) == 40.0:
            guilty.append(choice)

            def crash() -> None:
                raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

            return crash
        return Kernel(choice.name, us_of(choice))

    with scripted(tmp_path, run) as (measuring, _):
        excluded: dict[Any, Outcome] = {}
        while True:
            before = len(guilty)
            try:
                result = measuring.measure(PROBLEM, excluded)
                break
            except LostConfigError as lost:
                excluded[lost.config] = Outcome.RUNTIME_ERROR
                messages.append(str(lost))
            assert len(guilty) == before + 1
    assert len(excluded) == len(guilty) > 0
    assert set(messages) == {"AcceleratorError: CUDA error: an illegal memory access was encountered"}
    assert {config.block_m * config.block_n for config in excluded} == {64 * 64}
    assert result.measurement is not None
    outcomes = {timing.config: timing.outcome for timing in result.measurement.timings}
    assert len(outcomes) == len(result.measurement.timings)
    assert {config for config, outcome in outcomes.items() if outcome is Outcome.RUNTIME_ERROR} == set(excluded)
    whole, _ = measured(tmp_path)
    assert set(outcomes) == {timing.config for timing in whole.timings}


def test_a_problem_of_which_nothing_runs_is_recorded_too(tmp_path: Path) -> None:
    """Inductor gives up on it before it tells anybody; that none of its kernels runs is worth knowing."""

    def refuse(_choice: Any) -> Any:
        raise OutOfResources(300_000, 232_448, "shared memory")

    record, _ = measured(tmp_path, run=refuse)
    assert len(record.timings) > 15
    assert {(timing.outcome, timing.runtime_us) for timing in record.timings} == {(Outcome.OUT_OF_RESOURCES, None)}


@pytest.mark.long
def test_launches_that_could_not_be_hidden_are_flagged(tmp_path: Path) -> None:
    """A measurement with such times stays out of every view; the next one without is trusted."""
    with scripted(tmp_path) as (measuring, timer):
        timer.late_launches = 5
        before = measuring.measure(PROBLEM).measurement

        def run_late(function: Any, count: int) -> list[float]:
            timer.late_launches += 1
            return ScriptedTimer.runs_us(timer, function, count)

        with mock.patch.object(timer, "runs_us", run_late):
            late = measuring.measure(PROBLEM).measurement
    assert before is not None
    assert late is not None
    assert (before.flags, late.flags) == ((), (LAUNCH_NOT_HIDDEN,))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("space", "count"), [("SAMPLE:40", 41), ("DEFAULT", None)])
def test_the_record_says_what_was_listed(tmp_path: Path, space: str, count: int | None) -> None:
    """By name and by number."""
    record, timer = measured(tmp_path, space=space)
    assert record.search_space == f"{space} without TMA"
    assert record.sample_seed == 3
    assert len(record.timings) == len(timer.order())
    if count is not None:
        assert len(record.timings) == count
