"""Choices that do not compile vanish before a saver is called; they are recorded all the same."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from precompiling import PRECOMPILE, PRECOMPILES, block_m_is_64, precompile_like_inductor
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    TritonTemplateCaller,
    add_preprocessing_fn,
    clear_preprocessing_fns,
    get_algorithm_selector_cache,
)

from diode_collectors.feedback.listening import AutotuningListener
from diode_collectors.feedback.offered import ChoiceList, OfferedChoices
from diode_collectors.feedback.records import measurement_from_feedback
from diode_store.records import DeviceState, KernelConfig, Measurement, Outcome, Source, Timing, TimingMethod
from inductor_events import A, B, PlainChoice, plain_choice, saver
from inductor_harness import compile_and_run, triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def compiling(fails: Callable[[Any], bool], **options: Any) -> Iterator[list[Measurement]]:
    """Listen to compiles in which the Triton choices that ``fails`` picks do not compile, the others do."""

    def precompile(choice: Any) -> None:
        if fails(choice):
            raise RuntimeError("no such kernel")

    heard: list[Measurement] = []
    made = PRECOMPILE if PRECOMPILES else precompile_like_inductor
    with (
        triton_choices_on_cpu(**options),
        mock.patch.object(AlgorithmSelectorCache, "make_precompile_fn", made),
        mock.patch.object(TritonTemplateCaller, "precompile", precompile),
        AutotuningListener(heard.append),
    ):
        yield heard


@pytest.mark.parametrize("deferred", [False, True])
def test_choices_that_do_not_compile_are_outcomes(deferred: bool) -> None:  # noqa: FBT001 - a case
    """Each is a compile error, the others have their times, and none is missing."""
    with compiling(block_m_is_64, deferred=deferred) as heard:
        compile_and_run(torch.mm, A, B)
    [measurement] = heard
    by_outcome = {
        outcome: {timing.config.block_m for timing in measurement.timings if timing.outcome is outcome}
        for outcome in (Outcome.OK, Outcome.COMPILE_ERROR)
    }
    assert by_outcome[Outcome.COMPILE_ERROR] == {64}
    assert by_outcome[Outcome.OK] >= {None, 16, 32}
    assert 64 not in by_outcome[Outcome.OK]
    with compiling(lambda _: False, deferred=deferred) as heard:
        compile_and_run(torch.mm, A, B)
    assert {timing.config for timing in measurement.timings} == {timing.config for timing in heard[0].timings}


def test_each_event_has_its_own_lost_choices() -> None:
    """In the scheduler's order, with the lists of all products made before the first event."""
    sizes = (48, 80, 112)
    fails = {48: 64, 80: 32, 112: 16}

    def picked(choice: Any) -> bool:
        return bool(choice.info_dict()["tile_shape"].startswith(f"({fails[int(choice.layout.size[0])]},"))

    inputs = [torch.zeros(size, 512) for size in sizes]
    with compiling(picked, deferred=True) as heard:
        compile_and_run(lambda b, *inputs: [torch.mm(a, b) for a in inputs], B, *inputs)
    lost = {
        measurement.problem.shape.m: {t.config.block_m for t in measurement.timings if t.outcome is not Outcome.OK}
        for measurement in heard
    }
    assert {m: blocks - {128} for m, blocks in lost.items()} == {m: {block} for m, block in fails.items()}


def test_vendor_alone_is_left() -> None:
    """Where no Triton kernel compiles the event still comes, with the vendor's time."""
    with compiling(lambda _: True) as heard:
        compile_and_run(torch.bmm, torch.zeros(4, 64, 32), torch.zeros(4, 32, 48))
    outcomes = Counter((timing.config.is_vendor, timing.outcome) for timing in heard[0].timings)
    assert outcomes.pop((True, Outcome.OK)) == 1
    assert set(outcomes) == {(False, Outcome.COMPILE_ERROR)}
    assert outcomes.total() > 10


@pytest.mark.skipif(not PRECOMPILES, reason="Inductor compiles nothing beforehand on Python 3.11.8 and below")
@pytest.mark.filterwarnings("ignore")
def test_a_real_compiler_error_is_recorded() -> None:
    """Triton itself refuses: there is no backend for this CPU."""
    heard: list[Measurement] = []
    with (
        triton_choices_on_cpu(),
        mock.patch.object(AlgorithmSelectorCache, "make_precompile_fn", PRECOMPILE),
        AutotuningListener(heard.append),
    ):
        compile_and_run(torch.mm, A, B)
    outcomes = {timing.config.template: timing.outcome for timing in heard[0].timings}
    assert outcomes == {"aten::mm": Outcome.OK, "triton::mm": Outcome.COMPILE_ERROR}


def test_nothing_is_kept_alive() -> None:
    """A list is forgotten with the compile that made it, also one that failed, and altogether when stopping."""
    listener = AutotuningListener()
    with (
        triton_choices_on_cpu(),
        mock.patch.object(AlgorithmSelectorCache, "make_precompile_fn", precompile_like_inductor),
        mock.patch.object(TritonTemplateCaller, "precompile", return_value=None),
        listener,
    ):
        compile_and_run(torch.mm, A, B)
        torch._dynamo.reset()
        gc.collect()
        assert len(listener._offered) == 0
        compile_and_run(torch.mm, A, B)
    assert len(listener._offered) == 0


def test_only_our_own_preprocessing_is_removed() -> None:
    """Inductor's own functions and those of others stay, in their order; clearing them does not stop the listener."""

    def other(choices: list[Any]) -> list[Any]:
        return choices

    cache = get_algorithm_selector_cache()
    before = list(cache.preprocessing_fns)
    assert len(before) >= 2
    with triton_choices_on_cpu(), AutotuningListener() as listener:
        add_preprocessing_fn(other)
        running = cache.preprocessing_fns
        with AutotuningListener():
            pass
        assert cache.preprocessing_fns == [*before, listener._offered._preprocess, other]
        assert running is not cache.preprocessing_fns
        listener.stop()
        assert cache.preprocessing_fns == [*before, other]
        listener.start()
        clear_preprocessing_fns()
        compile_and_run(torch.mm, A, B)
    assert cache.preprocessing_fns == before
    assert listener.stats.recorded == 1


def test_each_size_of_a_symbol_has_its_own_lost_choices() -> None:
    """Where Inductor compiles for several sizes, a choice for one is not lost to another."""
    small, large = (PlainChoice(hint_override=size, failed=True) for size in (64, 4096))
    vendor, fine = PlainChoice(failed=False), PlainChoice(hint_override=64, failed=False)
    offer = ChoiceList([vendor, fine, small, large])
    assert offer.lost([vendor, fine]) == [small]
    assert offer.lost([vendor]) == [small, large]
    assert offer.lost([vendor, fine, small]) == []


def test_a_list_is_found_by_any_of_its_choices() -> None:
    """What cannot be a key is passed over, and what was never offered is unknown."""
    offered = OfferedChoices(lambda *_: None)
    first, second = PlainChoice(), PlainChoice()
    assert offered._preprocess([first, second]) == [first, second]
    found = offered.of([[], 1.5, second])
    assert found is offered.of([first])
    assert found is not None
    assert offered.of([PlainChoice()]) is None


@pytest.mark.parametrize("garbage", [None, 7, "text", [1, 2], [[]], {"a": 1}])
def test_preprocessing_survives_garbage(garbage: Any) -> None:
    """What a torch of tomorrow passes comes back as it is."""
    listener = AutotuningListener()
    assert listener._offered._preprocess(garbage) is garbage


def test_a_listener_that_fails_does_not_cost_the_compile() -> None:
    """An error while noting a list is swallowed."""

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    choices = [PlainChoice()]
    assert OfferedChoices(fail)._preprocess(choices) is choices


def test_whoever_knows_more_says_more() -> None:
    """A sweep that times by itself gives repeats, percentiles, outcomes, and what else it knows of the event."""
    found: list[Measurement] = []

    def timed(choice: Any, config: KernelConfig, milliseconds: float) -> Timing:
        if config.block_m == 16:
            return Timing(config, None, Outcome.OUT_OF_RESOURCES)
        if choice.name == "mm":
            raise ValueError("a choice that cannot be read")
        return Timing(config, milliseconds * 2000, repeats=7, p10_us=1.0, p90_us=2.0)

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        triton = [choice for choice in choices if choice.name != "mm"]
        few = {choice: timings[choice] for choice in [*choices[:1], *triton[:-1]]}
        context = {
            "uid": bytes(16),
            "source": Source.SWEEP,
            "search_space": "SAMPLE:72",
            "timing_method": TimingMethod("median", flush_l2=True, launch_hidden=True, regime="graph"),
            "family": "llama3-8b",
            "device_state": DeviceState(temperature_c=40),
            "flags": ("throttled",),
            "extra": {"a": 1},
        }
        found.append(measurement_from_feedback(few, name, nodes, choices, lost=triton[-1:], timing_of=timed, **context))

    with triton_choices_on_cpu(), saver(keep):
        compile_and_run(torch.mm, A, B)
    [measurement] = found
    assert (measurement.uid, measurement.source, measurement.search_space) == (bytes(16), Source.SWEEP, "SAMPLE:72")
    assert (measurement.flags, measurement.device_state.temperature_c) == (("throttled",), 40)
    assert (measurement.timing_method.regime, measurement.family) == ("graph", "llama3-8b")
    assert (measurement.timing_method.launch_hidden, measurement.extra) == (True, {"a": 1, "unreadable_choices": 1})
    outcomes = Counter((timing.outcome, timing.repeats) for timing in measurement.timings)
    assert outcomes[Outcome.COMPILE_ERROR, None] == 1
    assert outcomes[Outcome.OUT_OF_RESOURCES, None] > 1
    assert outcomes[Outcome.OK, 7] > 5
    assert all(
        (timing.config.block_m == 16) == (timing.outcome is Outcome.OUT_OF_RESOURCES)
        for timing in measurement.timings
        if timing.outcome is not Outcome.COMPILE_ERROR
    )


def test_a_failure_with_a_reason_replaces_one_without() -> None:
    """Of two callers of one kernel, the one that says more is kept, and a time says most."""
    found: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, *_: Any) -> None:
        del timings
        one, two = plain_choice("mm", backend="extern"), plain_choice("mm", backend="extern")
        times = (float("inf"), 1.0)
        found.extend(measurement_from_feedback({one: time}, name, nodes, lost=[two]) for time in times)

    with triton_choices_on_cpu(), saver(keep):
        compile_and_run(torch.mm, A, B)
    outcomes = [[(timing.outcome, timing.runtime_us) for timing in m.timings] for m in found]
    assert outcomes == [[(Outcome.COMPILE_ERROR, None)], [(Outcome.OK, 1000.0)]]


class Hostile(SimpleNamespace):
    """A choice whose every attribute raises."""

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        """Raise."""
        raise RuntimeError(name)


def test_hostile_choices_cost_no_other() -> None:
    """Choices that raise on every question, or answer nonsense, are counted; the good ones are recorded."""
    heard: list[Measurement] = []
    nonsense = [
        Hostile(),
        PlainChoice(annotations={"ktc": 7}, layout=7, hint_override="x", kwargs={"alpha": object()}),
        PlainChoice(annotations={"ktc": PlainChoice(template=7, inputs=7)}, name=None),
        None,
        (1, 2),
    ]

    def spoil(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        listener._on_feedback(
            {**dict.fromkeys(nonsense, 1.0), **timings}, name, nodes, [*nonsense, [], *choices], None, {}
        )

    with triton_choices_on_cpu(), AutotuningListener(heard.append) as listener, saver(spoil):
        compile_and_run(torch.addmm, torch.zeros(256), A, B)
    clean, spoiled = heard
    assert spoiled.timings == clean.timings
    assert (spoiled.problem, spoiled.environment) == (clean.problem, clean.environment)
    assert spoiled.extra == {"unreadable_choices": len(nonsense)}
    assert listener.stats.failed == 0
