"""Feedback events as measurements, from real compiles on this CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.choices import InductorChoices
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V

from diode_collectors.feedback.records import ReplayDetector, choice_policy, measurement_from_feedback
from diode_collectors.inductor.adapter import POLICY_ANNOTATION, detect_environment, detect_hardware
from diode_store.errors import RecordError
from diode_store.records import Outcome, Source, TensorSpec, TimingMethod
from diode_store.wire.codec import decode, encode
from inductor_events import A, B, Observer, events, plain_choice, saver
from inductor_harness import compile_and_run, quiet_torch, triton_choices_on_cpu


def test_mm_event_becomes_a_measurement() -> None:
    """A compiled mm gives one record with its inputs, all its kernels and where it ran."""
    [measurement] = events(torch.mm, A, B)
    assert measurement.problem.op == "mm"
    assert measurement.problem.inputs == (
        TensorSpec("float32", (128, 512), (512, 1)),
        TensorSpec("float32", (512, 256), (256, 1)),
    )
    assert measurement.problem.scalars == ()
    assert measurement.source is Source.FEEDBACK
    assert measurement.search_space == "DEFAULT"
    assert measurement.choice_policy == "hook:Observer"
    assert measurement.hardware == detect_hardware("cpu")
    assert measurement.environment.key == detect_environment().key
    assert set(measurement.environment.template_hashes) == {"triton::mm"}
    assert measurement.timing_method == TimingMethod(statistic="median", flush_l2=False, launch_hidden=False)
    assert {timing.config.template for timing in measurement.timings} == {"aten::mm", "triton::mm"}
    assert decode(encode(measurement)) == measurement


def test_milliseconds_become_microseconds_once() -> None:
    """Inductor's 0.5 ms is 500 us."""
    [measurement] = events(torch.mm, A, B)
    vendor = [timing for timing in measurement.timings if timing.config.is_vendor]
    assert [timing.runtime_us for timing in vendor] == [500.0]
    triton = {timing.runtime_us for timing in measurement.timings if not timing.config.is_vendor}
    assert min(triton) == pytest.approx(1000.0, abs=0.1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 0.0, -1.0])
def test_what_is_no_time_is_a_failure(bad: float) -> None:
    """Infinity is how Inductor says that a choice failed; no such number leaves the adapter."""
    found: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        spoiled = {choice: time if choice.name == "mm" else bad for choice, time in timings.items()}
        found.append(measurement_from_feedback(spoiled, name, nodes, choices))

    with triton_choices_on_cpu(), saver(keep):
        compile_and_run(torch.mm, A, B)
    failed = [timing for timing in found[0].timings if not timing.config.is_vendor]
    assert len(failed) > 10
    assert {(None, Outcome.FAILED_UNSPECIFIED)} == {(timing.runtime_us, timing.outcome) for timing in failed}


def test_addmm_scalars_come_from_the_vendor_call_too() -> None:
    """Where no choice carries its inputs, the ATen call still knows alpha and beta."""
    found: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        for choice in timings:
            choice.annotations = {}
        found.append(measurement_from_feedback(timings, name, nodes, choices))

    with triton_choices_on_cpu(), saver(keep):
        compile_and_run(lambda c, a, b: torch.addmm(c, a, b, alpha=2, beta=3), torch.zeros(256), A, B)
    assert [measurement.problem.scalars for measurement in found] == [(("alpha", 2), ("beta", 3))]
    assert found[0].environment.template_hashes == {}


@pytest.mark.long
def test_cpp_choices_of_a_real_benchmark() -> None:
    """A bmm timed for real on this CPU: ATen and Inductor's own C++ template, in microseconds."""
    seen: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        seen.append((measurement_from_feedback(timings, name, nodes, choices), list(timings.values())))

    with quiet_torch(), fresh_cache(), saver(keep), torch._inductor.config.patch(max_autotune_gemm_backends="CPP,ATEN"):
        compile_and_run(torch.bmm, torch.zeros(4, 64, 32), torch.zeros(4, 32, 48))
    [(measurement, milliseconds)] = seen
    templates = [timing.config.template for timing in measurement.timings]
    assert templates[0] == "aten::bmm"
    assert [template.partition("_")[0] for template in templates[1:]] == ["cpp::CppMicroGemmFP32Vec"]
    assert [1000 * value for value in milliseconds] == [timing.runtime_us for timing in measurement.timings]
    assert measurement.choice_policy == "stock"


def test_unreadable_choices_are_counted_and_the_rest_is_kept() -> None:
    """One choice that nobody knows costs no other timing of its event."""
    found: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        spoiled = {**timings, plain_choice("mystery"): 1.0, object(): 1.0, plain_choice("mm", backend="extern"): "slow"}
        found.append((measurement_from_feedback(spoiled, name, nodes, choices), len(timings)))

    with triton_choices_on_cpu(), saver(keep):
        compile_and_run(torch.mm, A, B)
    [(measurement, expected)] = found
    assert len(measurement.timings) == expected
    assert measurement.extra == {"unreadable_choices": 3}


def test_an_event_without_a_readable_choice_is_refused() -> None:
    """There is nothing to record."""
    with pytest.raises(RecordError, match="mm: none of 1 choices could be read"):
        measurement_from_feedback({plain_choice("mystery"): 1.0}, "mm", [])


def test_several_choices_of_one_config_keep_the_fastest() -> None:
    """Two callers of one kernel are one timing: the fastest that worked."""
    found: list[Any] = []
    times = iter([float("inf"), 0.3, 0.2, 0.4])

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        doubled = {plain_choice("mm", backend="extern"): time for time in times}
        found.append(measurement_from_feedback(doubled, name, nodes, choices))

    with triton_choices_on_cpu(), saver(keep):
        compile_and_run(torch.mm, A, B)
    assert [[(t.config.template, t.runtime_us) for t in m.timings] for m in found] == [[("aten::mm", 200.0)]]


def test_unknown_devices_are_refused() -> None:
    """Timings of a device that we cannot describe are worth nothing."""
    assert detect_hardware("meta") is None
    node = SimpleNamespace(get_device=lambda: torch.device("meta"))
    with pytest.raises(RecordError, match="mm: timings of a meta device"):
        measurement_from_feedback({plain_choice("mm", backend="extern"): 1.0}, "mm", [node])


def test_replays_are_told_by_inductors_count() -> None:
    """An event during which Inductor benchmarked nothing brought cached timings, also after the count was cleared."""
    detector = ReplayDetector()
    assert detector.is_replay()
    counters["inductor"]["select_algorithm_autotune"] += 1
    assert [detector.is_replay(), detector.is_replay()] == [False, True]
    del counters["inductor"]
    counters["inductor"]["select_algorithm_autotune"] += 1
    assert [detector.is_replay(), detector.is_replay()] == [False, True]


def test_who_listed_the_choices() -> None:
    """Stock Inductor, a hook that says it filtered, one of ours that did not, or a stranger's."""

    class Ours(Observer):
        annotates_choices = True

    class Unrelated(InductorChoices):
        pass

    marked = SimpleNamespace(annotations={POLICY_ANNOTATION: "hook:abc"})
    with V.set_choices_handler(InductorChoices()):
        assert choice_policy([SimpleNamespace()]) == "stock"
        assert choice_policy([SimpleNamespace(annotations={}), marked]) == "hook:abc"
    with V.set_choices_handler(Unrelated()):
        assert choice_policy([]) == "stock"
    with V.set_choices_handler(Ours(print)):
        assert choice_policy([]) == "stock"
    with V.set_choices_handler(Observer(print)):
        assert choice_policy([]) == "hook:Observer"
