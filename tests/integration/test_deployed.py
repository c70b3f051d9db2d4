"""The hook's own clock in place of Inductor's benchmark, with real choices of Inductor's and a simulated device."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import OPS, Watch, compile_op, each_op, each_path, hooked, watching
from known_times import Kernel, close, compile_in, device, fails
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.codegen.subgraph import SubgraphChoiceCaller
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch.fx.experimental.proxy_tensor import make_fx

from diode_collectors.feedback.listening import AutotuningListener
from diode_collectors.inductor import running
from diode_collectors.inductor.timer import deployed_method
from diode_integration.decide.clock import Clock
from diode_integration.inductor import benchmark
from diode_integration.install import install
from diode_store.errors import SettingsError
from diode_store.records import GRAPH, Outcome
from stand_ins import DOMAIN, TileModel, card_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_integration.choices import DiodeInductorChoices
    from diode_store.records import Measurement

__all__ = ["device"]
pytestmark = pytest.mark.usefixtures("device")


def recorded(op: str, handler: DiodeInductorChoices, **watched: Any) -> tuple[Watch, list[Measurement]]:
    """Compile an op; return what Inductor benchmarked, and what a collector heard."""
    heard: list[Measurement] = []
    with AutotuningListener(heard.append):
        watch = compile_op(op, handler, **watched)
    return watch, heard


@each_path
@each_op
def test_what_the_hook_left_is_timed_by_its_clock(op: str, deferred: bool) -> None:  # noqa: FBT001 - a parameter
    """Inductor times nothing, takes the clock's fastest, and a collector records samples and how they were taken."""
    handler = close()
    watch, (measurement,) = recorded(op, handler, deferred=deferred)
    assert watch.timed == []
    stats = handler.get_stats()
    assert (stats["clocked"], stats["clocked_other"], stats["clock_failures"]) == (1, 1, 0)
    assert stats["seconds_clocked"] > 0
    assert measurement.timing_method == deployed_method(5.0)
    assert measurement.timing_method.regime == GRAPH
    by_vendor = {timing.config.is_vendor: timing for timing in measurement.timings}
    assert by_vendor[True].runtime_us == 5.0
    assert by_vendor[True].repeats is not None
    assert by_vendor[False].is_estimate


@each_op
def test_opting_out_leaves_it_to_inductor(op: str) -> None:
    """With ``clock="inductor"`` the benchmark is Inductor's, and the record does not say otherwise."""
    handler = close(clock="inductor")
    watch, (measurement,) = recorded(op, handler)
    assert len(watch.timed) == 4
    assert handler.get_stats()["clocked"] == 0
    assert measurement.timing_method.regime is None


def test_an_op_that_the_model_does_not_know_is_left_to_inductor() -> None:
    """Only the hook's own decisions are timed by its clock."""
    handler = hooked(TileModel(card=card_of(replace(DOMAIN, dtypes=("bfloat16",)))), unknown="stock")
    watch, (measurement,) = recorded("mm", handler)
    assert len(watch.timed) > 4
    assert measurement.timing_method.regime is None


def test_observing_leaves_it_to_inductor() -> None:
    """Then stock Inductor chooses, clock and all."""
    watch, _ = recorded("mm", close(observe=True))
    assert len(watch.timed) > 4


def test_an_error_leaves_it_to_inductor(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The compile goes on with Inductor's benchmark, which is counted each time and logged once."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug in the clock")

    monkeypatch.setattr(benchmark, "compare", fail)
    handler = close()
    watches = [compile_op(op, handler) for op in OPS]
    assert [len(watch.timed) for watch in watches] == [4, 4, 4]
    assert handler.get_stats()["clock_failures"] == 3
    assert caplog.messages.count("Inductor benchmarks: ZeroDivisionError: a bug in the clock (logged once)") == 1


def test_when_no_kernel_runs_inductor_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may know better, or raise what it always raises."""
    monkeypatch.setattr(benchmark, "captured", fails)
    handler = close()
    assert len(compile_op("mm", handler).timed) == 4
    assert handler.get_stats()["clock_failures"] == 1


def test_a_kernel_that_fails_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recorded as failed, with why, and another one runs."""

    def one_fails(choice: Any, _benchmark: object) -> Kernel:
        kernel = Kernel(choice)
        kernel.us = kernel.us if choice.name.startswith("mm") else math.inf
        return kernel

    monkeypatch.setattr(benchmark, "captured", one_fails)
    _, (measurement,) = recorded("mm", close())
    failed = [timing for timing in measurement.timings if timing.runtime_us is None]
    assert {timing.outcome for timing in failed} == {Outcome.OUT_OF_RESOURCES}
    assert len(failed) == len(measurement.timings) - 1 == 3


@pytest.mark.parametrize("setting", benchmark._LEFT_TO_INDUCTOR)
def test_settings_under_which_inductor_benchmarks(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another process, in deterministic mode, or by the profiler, Inductor's way is kept."""
    asked: list[tuple[bool, bool]] = []
    real = benchmark.time_choices

    def look(kind: Any, choices: Any, tensors: Any) -> Any:
        usual = benchmark._asked(kind, choices) is not None
        with inductor_config.patch({setting: True}):
            asked.append((usual, benchmark._asked(kind, choices) is not None))
        return real(kind, choices, tensors)

    monkeypatch.setattr(benchmark, "time_choices", look)
    compile_op("mm", close())
    assert asked == [(True, False)]


def test_vendors_kernels_alone_are_left_to_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor asks for them alone where it benchmarks the templates in another process."""
    asked: list[object] = []
    real = benchmark.time_choices

    def look(kind: Any, choices: Any, tensors: Any) -> Any:
        asked.append(benchmark._asked(kind, [choice for choice in choices if kind._is_extern(choice)] * 2))
        return real(kind, choices, tensors)

    monkeypatch.setattr(benchmark, "time_choices", look)
    compile_op("mm", close())
    assert asked == [None]


@pytest.mark.parametrize("part", ["note", "Timed"])
def test_an_error_behind_the_timing_leaves_it_to_inductor(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done with the times may fail as well."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug behind the clock")

    monkeypatch.setattr(benchmark, part, fail)
    handler = close()
    assert len(compile_op("mm", handler).timed) == 4
    assert handler.get_stats()["clock_failures"] == 1


def test_a_choice_that_is_a_graph_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.13 gives it a request that may not be asked for, and all choices behind it are unloaded too."""
    unloaded: list[Any] = []

    def unload_and_note(choice: Any) -> None:
        running.unload(choice)
        unloaded.append(choice)

    def prepared(choice: Any, benchmark: Callable[[], object]) -> Kernel:
        if isinstance(choice, SubgraphChoiceCaller):
            running.captured(choice, benchmark)()
        return Kernel(choice)

    def add_a_graph(choices: list[Any]) -> list[Any]:
        functions.remove(add_a_graph)  # Inductor compiles the graph, and asks again
        first = choices[0]
        return [SubgraphChoiceCaller("graph", first.input_nodes, first.layout, "", make_fx(torch.mm)), *choices]

    monkeypatch.setattr(benchmark, "captured", prepared)
    monkeypatch.setattr(benchmark, "unload", unload_and_note)
    handler = close()
    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
    with watching():
        functions.append(add_a_graph)
        compile_in(handler)
    assert (handler.get_stats()["clocked"], handler.get_stats()["clock_failures"]) == (1, 0)
    assert len(unloaded) == 5


def test_a_clock_that_cannot_be_engaged_is_turned_off_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a torch without Inductor's methods the model still chooses, Inductor times, and one line says so."""

    def fail() -> None:
        raise AttributeError("no benchmark_choices")

    monkeypatch.setattr(benchmark, "ensure_engaged", fail)
    handler = close()
    watches = [compile_op(op, handler) for op in ("mm", "bmm")]
    assert [len(watch.timed) for watch in watches] == [4, 4]
    stats = handler.get_stats()
    assert (stats["model_selections"], stats["clock_failures"], stats.get("fallback_error", 0)) == (2, 1, 0)
    assert sum("no benchmark_choices" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("options", [{"clock": "inductor"}, {"mode": "zero"}, {"observe": True}], ids=str)
def test_without_a_use_for_it_the_clock_is_not_engaged(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's methods stay as they are, and whatever is wrong with them."""
    engaged: list[bool] = []
    monkeypatch.setattr(benchmark, "ensure_engaged", lambda: engaged.append(True))
    compile_op("mm", close(**options), run_vendor=True)
    assert engaged == []


def test_uninstalling_drops_the_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold a graph and events on their device."""
    monkeypatch.setattr(benchmark, "_timers", {0: object()})
    with install(close()):
        benchmark.ensure_engaged()
        assert benchmark._timers
    assert not benchmark._timers


def test_uninstalling_restores_inductors_benchmark() -> None:
    """Nothing of the clock stays behind."""
    before = AlgorithmSelectorCache.__dict__["benchmark_choices"], "lookup" in vars(AlgorithmSelectorCache)
    with install(close()):
        benchmark.ensure_engaged()
        benchmark.ensure_engaged()
        assert AlgorithmSelectorCache.__dict__["benchmark_choices"] is not before[0]
    assert (AlgorithmSelectorCache.__dict__["benchmark_choices"], "lookup" in vars(AlgorithmSelectorCache)) == before


def test_the_clock_is_part_of_the_cache_key() -> None:
    """Kernels that one clock chose are not served where the other is asked for; zero mode has no clock."""
    assert close().uuid() != close(clock="inductor").uuid()
    assert close(mode="zero").uuid() == close(mode="zero", clock="inductor").uuid()


def test_the_variable_stands_in_for_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """DIODE_CLOCK is read where no option is given; what is no clock is refused by name."""
    monkeypatch.setenv("DIODE_CLOCK", "")
    assert close().clock is Clock.DEPLOYED
    monkeypatch.setenv("DIODE_CLOCK", "inductor")
    assert close().clock is Clock.INDUCTOR
    assert close(clock="deployed").clock is Clock.DEPLOYED
    monkeypatch.setenv("DIODE_CLOCK", "sundial")
    with pytest.raises(SettingsError, match=r"^DIODE_CLOCK must be one of deployed, inductor, not 'sundial'$"):
        close()
    with pytest.raises(SettingsError, match=r"^clock must be one of"):
        close(clock="sundial")


def test_where_no_template_works_the_graph_is_compiled_again() -> None:
    """Neither clock gets a kernel to run, so the hook falls back to the vendor's kernels, as ever."""
    with watching(fails=lambda _name: True), pytest.MonkeyPatch.context() as patched:
        patched.setattr(benchmark, "captured", fails)
        handler = close()
        compile_in(handler)
    assert handler.get_stats()["failed_graphs"] == 1
