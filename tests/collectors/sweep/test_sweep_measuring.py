"""Real problems measured on this CPU: Inductor's own kernels, the sweep's own clock."""

from __future__ import annotations

import logging
import tempfile
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.virtualized import V

from diode_collectors.inductor.device import detect_environment, detect_hardware
from diode_collectors.problems.problem import parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.lane import measuring as module
from diode_collectors.sweep.lane.measuring import FINALS, Measuring, MeasuringOptions
from diode_collectors.sweep.plan import DEFAULT_MODE
from diode_store.errors import HardwareError
from diode_store.records import STOCK_POLICY, Outcome, Source, TimingMethod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diode_collectors.sweep.lane.measuring import Measured
    from diode_store.records import Measurement

pytestmark = pytest.mark.xdist_group("sweeps")

ATEN, CPP = "aten", "cpp"
_TRIES = 5


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread, as a lane does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextmanager
def measuring(folder: Path, **options: Any) -> Iterator[Measuring]:
    """Yield what measures on this CPU."""
    told: dict[str, Any] = {
        "device": "cpu", "space": SearchSpace(), "sweep_id": "s1", "seed": 7, "include_tma": True,
        "mode": DEFAULT_MODE, "lock_folder": folder, **options,
    }  # fmt: skip
    with warnings.catch_warnings(), Measuring(MeasuringOptions(**told)) as opened:
        yield opened


def measured(folder: Path, text: str, dtype: str = "float32", **options: Any) -> Measured:
    """Return what comes of one problem."""
    with measuring(folder, **options) as opened:
        return opened.measure(parse_problem(text, dtype=dtype))


def record_of(result: Measured) -> Measurement:
    """Return the measurement, which must be there."""
    assert result.silent is None
    assert result.measurement is not None
    return result.measurement


@pytest.fixture(scope="module")
def bmm(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Return what came of one bmm; on a busy machine a choice may look slow, and is then an estimate."""
    for _ in range(_TRIES):
        result = measured(tmp_path_factory.mktemp("locks"), "bmm:16x48x32:3/nt")
        if not any(timing.is_estimate for timing in record_of(result).timings):
            break
    return result


@pytest.mark.quick(1)
@pytest.mark.parametrize("text", ["mm:33x47x65", "addmm:16x24x32", "baddbmm:8x8x8:2"])
def test_the_vendors_kernel_alone(tmp_path: Path, text: str) -> None:
    """Of one choice Inductor makes no benchmark of its own accord."""
    record = record_of(measured(tmp_path, text, space=SearchSpace("VENDOR")))
    assert record.problem.key == parse_problem(text, dtype="float32").problem().key
    assert (record.search_space, record.choice_policy) == ("VENDOR", STOCK_POLICY)
    assert [timing.config.template for timing in record.timings] == [f"{ATEN}::{text.partition(':')[0]}"]
    assert all(timing.outcome is Outcome.OK for timing in record.timings)


def test_a_record_says_what_was_asked(bmm: Measured) -> None:
    """The problem's own key, where and with what it was measured, by whom and from which list."""
    record = record_of(bmm)
    assert record.problem.key == parse_problem("bmm:16x48x32:3/nt/fp32").problem().key
    assert record.hardware == detect_hardware("cpu")
    assert record.environment.key == detect_environment().key
    assert record.source is Source.SWEEP
    assert (record.sweep_id, record.search_space, record.sample_seed) == ("s1", "DEFAULT", 7)
    assert record.choice_policy == STOCK_POLICY
    assert record.timing_method == TimingMethod("median", flush_l2=False, launch_hidden=False)
    assert (record.is_replay, record.flags, record.family) == (False, (), None)
    assert set(record.extra) == {FINALS}
    assert {"finalists", "rounds", "undecided"} == set(record.extra[FINALS])


def test_a_record_holds_every_choice_with_its_spread(bmm: Measured) -> None:
    """ATen's and the C++ template's, in microseconds that are possible, each with repeats and percentiles."""
    timings = record_of(bmm).timings
    assert [timing.config.template.partition("::")[0] for timing in timings] == [ATEN, CPP]
    for timing in timings:
        assert timing.outcome is Outcome.OK
        assert not timing.is_estimate
        assert timing.repeats is not None
        assert timing.repeats > 20
        assert 0.1 < timing.p10_us <= timing.runtime_us <= timing.p90_us < 100_000  # type: ignore[operator]


def test_the_time_it_took_is_told_by_parts(bmm: Measured) -> None:
    """Compiling, waiting for the device, and holding it."""
    assert bmm.compile_s > 0.05
    assert 0 <= bmm.wait_s < 5
    assert bmm.benchmark_s > 0.001


@pytest.mark.parametrize("text", ["mm:32x64x96", "addmm:32x64x96/nt"])
def test_products_of_a_constant_are_measured_too(tmp_path: Path, text: str) -> None:
    """C++ templates pack it; what they compute is what ATen computes, run for run, so nothing is refused."""
    record = record_of(measured(tmp_path, text))
    assert record.problem.key == parse_problem(text, dtype="float32").problem().key
    assert [timing.outcome for timing in record.timings] == [Outcome.OK] * len(record.timings)
    assert {timing.config.template.partition("::")[0] for timing in record.timings} == {ATEN, CPP}


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("baddbmm:8x16x32:2", "Inductor had one choice only"),
        ("bmm:1x32x64:2", "Inductor turned it into something that it does not autotune"),
    ],
)
def test_what_inductor_does_not_autotune_says_why(tmp_path: Path, text: str, why: str) -> None:
    """It is no failure, and there is no record."""
    result = measured(tmp_path, text)
    assert (result.measurement, result.silent) == (None, why)


@pytest.mark.long
def test_one_measuring_measures_many_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one that raised, and the same one again; nothing of one is in the next, nor on the disk."""
    texts = ["bmm:16x48x32:3/nt", "mm:16x16x16/int64", "bmm:8x8x8:2", "bmm:16x48x32:3/nt"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    found = []
    with measuring(tmp_path) as opened:
        for text in texts:
            if text.endswith("int64"):
                with pytest.raises(Exception, match="no such problem"):
                    opened.measure(failing_problem())
                continue
            found.append(record_of(opened.measure(parse_problem(text, dtype="float32"))))
    assert [record.problem.shape.m for record in found] == [16, 8, 16]
    assert len({record.uid for record in found}) == 3
    assert [len(record.timings) for record in found] == [2, 2, 2]
    assert list(scratch.iterdir()) == []


@pytest.mark.long
def test_what_came_first_does_not_decide_what_is_measured(tmp_path: Path) -> None:
    """oneDNN, which computes bf16 in ATen, takes no product away from the autotuner."""
    texts = ("mm:32x64x96/bf16", "mm:32x64x96/fp32", "mm:32x64x96/bf16")
    with measuring(tmp_path) as opened:
        found = [record_of(opened.measure(parse_problem(text))) for text in texts]
    assert [record.problem.shape.dtype for record in found] == ["bfloat16", "float32", "bfloat16"]
    assert len({len(record.timings) for record in found}) == 1


def test_what_does_not_fit_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    """Nobody's machine is brought to its knees by a typing error; the message says how much it would take."""
    said = (
        r"mm:2000000x2000000x8/nn/fp32 needs about 59605.* GiB of memory and [\d.]+ GiB are free on the device; leave"
    )
    with pytest.raises(HardwareError, match=said):
        measured(tmp_path, "mm:2000000x2000000x8")


def test_another_op_than_a_product_says_so(tmp_path: Path) -> None:
    """Where Inductor has ops of its own, their timings are of no problem that was asked for."""
    with measuring(tmp_path) as opened:
        opened._start(parse_problem("mm:8x8x8", dtype="float32"), {})
        with pytest.raises(module._EnoughError):
            opened.on_feedback({}, "linear_unary", [], [])
        assert opened._result.silent == "Inductor made another op of it: linear_unary"


def failing_problem() -> Any:
    """Return a problem whose tensors cannot be made."""

    class Failing:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no such problem")

    return Failing()


def state_of_inductor() -> dict[str, Any]:
    """Return everything that measuring takes over."""
    cache = select_algorithm.get_algorithm_selector_cache()
    kind = select_algorithm.AlgorithmSelectorCache
    return {
        "savers": list(cache.feedback_saver_fns),
        "preprocessing": list(cache.preprocessing_fns),
        "config": inductor_config.get_config_copy(),
        "choices": V.choices,
        "prepare": kind.__dict__["benchmark_in_current_process"],
        "benchmark": kind.__dict__["benchmark_choices"],
        "precompile": kind.__dict__["make_precompile_fn"],
        "printed": select_algorithm.PRINT_AUTOTUNE,
        "benchmarker": dict(vars(benchmarker)),
        "caller": select_algorithm.TritonTemplateCaller.__init__,
        "warnings": list(warnings.filters),
        "onednn": torch.backends.mkldnn.enabled,
    }


@pytest.mark.quick(1)
@pytest.mark.parametrize("fails", [False, True])
def test_inductor_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """Somebody's own saver and handler included; also when the measuring raised."""

    def saver(*_: Any) -> None:
        raise AssertionError("a sweep's timings are not for others")

    select_algorithm.add_feedback_saver(saver)
    try:
        before = state_of_inductor()
        if fails:
            monkeypatch.setattr(module, "time_all", lambda *_, **__: 1 / 0)
            with pytest.raises(Exception, match="division by zero"):
                measured(tmp_path, "bmm:8x8x8:2")
        else:
            record_of(measured(tmp_path, "bmm:8x8x8:2"))
        after = state_of_inductor()
    finally:
        cache = select_algorithm.get_algorithm_selector_cache()
        cache.feedback_saver_fns = [known for known in cache.feedback_saver_fns if known is not saver]
    assert after == before


def test_a_choice_that_does_not_run_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the record with how it failed."""
    real = module.captured

    def captured(choice: Any, benchmark: Any) -> Any:
        if "cpp" in choice.name:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(choice, benchmark)

    monkeypatch.setattr(module, "captured", captured)
    aten, cpp = record_of(measured(tmp_path, "bmm:8x8x8:2")).timings
    assert aten.outcome is Outcome.OK
    assert (cpp.runtime_us, cpp.outcome, cpp.repeats) == (None, Outcome.OUT_OF_RESOURCES, None)


def test_a_choice_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that writes nothing, where the one before left its right result in the same place."""
    real = module.captured

    def captured(choice: Any, benchmark: Any) -> Any:
        function = real(choice, benchmark)
        return (lambda: None) if "cpp" in choice.name else function

    monkeypatch.setattr(module, "captured", captured)
    aten, cpp = record_of(measured(tmp_path, "bmm:8x8x8:2")).timings
    assert aten.outcome is Outcome.OK
    assert (cpp.runtime_us, cpp.outcome) == (None, Outcome.WRONG_RESULT)


def test_an_excluded_config_is_recorded_as_it_ended(tmp_path: Path, bmm: Measured) -> None:
    """It was tried before, in a process that did not survive it."""
    first = record_of(bmm).timings[0].config
    with measuring(tmp_path) as opened:
        excluded = {first: Outcome.RUNTIME_ERROR}
        result = opened.measure(parse_problem("mm:32x64x96", dtype="float32"), excluded)
    outcomes = {timing.config: timing.outcome for timing in record_of(result).timings}
    assert outcomes[first] is Outcome.RUNTIME_ERROR
    assert Outcome.OK in outcomes.values()


def test_the_heartbeat_is_heard_for_every_choice(tmp_path: Path) -> None:
    """While the device is held somebody may be waiting for a sign of life."""
    beats = []
    options = MeasuringOptions("cpu", SearchSpace(), "s", 0, True, DEFAULT_MODE, tmp_path)  # noqa: FBT003 - no words for it here
    with Measuring(options, lambda: beats.append(1)) as opened:
        record_of(opened.measure(parse_problem("bmm:8x8x8:2", dtype="float32")))
        assert opened.is_usable()
    assert len(beats) == 2


def test_nothing_is_logged_as_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The compile that is given up at the end is no error to anybody."""
    with caplog.at_level(logging.WARNING):
        record_of(measured(tmp_path, "bmm:8x8x8:2"))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
