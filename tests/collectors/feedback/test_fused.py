"""What Inductor times of fused kernels becomes records.

No kernel runs here: Inductor's own searches ask a benchmark that knows the times.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from diode_collectors.feedback.fused import WITH_COPIES
from diode_collectors.feedback.listening import AutotuningListener
from diode_collectors.inductor.fused_source import config_of_triton, read_source
from diode_collectors.matmul import MatmulDatasetCollector
from diode_store.records import Outcome, Source
from diode_store.wire.codec import decode, encode
from fused_kernels import CASES, sources_of
from inductor_harness import triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.records import KernelConfig, Measurement

FASTEST = {"XBLOCK": 8, "YBLOCK": 64, "num_warps": 2}


def time_ms(config: Any) -> float:
    """Return a known time: each step away from the fastest costs 10%, and one block fails."""
    if config.kwargs["XBLOCK"] == 128:
        return math.inf
    found = {**config.kwargs, "num_warps": config.num_warps}
    away = sum(abs(math.log2(found[name] / best)) for name, best in FASTEST.items() if name in found)
    return 0.01 * 1.1**away


@dataclass(eq=False)
class Launcher:
    """What Inductor's searches and the collector read of a loaded kernel."""

    config: Any
    n_regs: int = 32
    n_spills: int = 0
    shared: int = 1024
    cache_hash: str = ""


@contextmanager
def tuner_of(op: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield Inductor's autotuner of a case, whose kernels are known instead of compiled."""
    function, inputs = CASES[op]
    text = sources_of(function, *inputs)[0].replace("Placeholder.KERNEL_NAME", "kernel")
    monkeypatch.setattr(CachingAutotuner, "bench", lambda _self, launcher, *_a, **_k: time_ms(launcher.config))
    with triton_choices_on_cpu():
        tuner = PyCodeCache.load(text).kernel
        tuner.launchers = [Launcher(config) for config in tuner.configs]
        tuner._precompile_config = lambda config: SimpleNamespace(make_launcher=lambda: Launcher(config))
        yield tuner


def tune(tuner: Any) -> None:
    """Tune as the first run of a kernel does."""
    if len(tuner.launchers) > 1:
        tuner.autotune_to_one_config()
    tuner.launchers = [tuner.coordinate_descent_tuning(tuner.launchers[0])]


def times_of(measurement: Measurement) -> dict[KernelConfig, float | None]:
    """Return the time of each config."""
    return {timing.config: timing.runtime_us for timing in measurement.timings}


def test_both_searches_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heuristics' configs in one record, coordinate descent's trials in another; both of one problem."""
    heard: list[Measurement] = []
    with tuner_of("pointwise", monkeypatch) as tuner, AutotuningListener(heard.append) as listener:
        listed = len(tuner.launchers)
        tune(tuner)
        source = read_source(Path(tuner.filename).read_text())
    assert source is not None
    assert [(m.search_space, m.source, m.problem) for m in heard] == [
        ("HEURISTICS", Source.FEEDBACK, source.problem),
        ("COORDINATE_DESCENT", Source.FEEDBACK, source.problem),
    ]
    assert len(heard[0].timings) == listed > 1
    fastest = min((us, config.describe()) for m in heard for config, us in times_of(m).items() if us)
    assert fastest[1] == config_of_triton("pointwise", tuner.launchers[0].config).describe()
    assert {metric.name for metric in heard[0].metrics} == {
        "registers_per_thread",
        "spilled_registers",
        "shared_memory",
    }
    assert (listener.stats.fused, listener.stats.recorded, listener.stats.failed) == (2, 2, 0)
    assert all(decode(encode(m)).problem == m.problem for m in heard)


def test_milliseconds_become_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the fastest config, in the units of records; a failure has an outcome."""
    heard: list[Measurement] = []
    with tuner_of("reduction", monkeypatch) as tuner, AutotuningListener(heard.append):
        tune(tuner)
    timings = [timing for m in heard for timing in m.timings]
    ok = [timing.runtime_us for timing in timings if timing.outcome is Outcome.OK]
    assert min(filter(None, ok)) == pytest.approx(min(time_ms(tuner.launchers[0].config), 1.0) * 1000)
    for timing in timings:
        failed = dict(timing.config.kwargs)["XBLOCK"] == 128
        assert timing.outcome is (Outcome.FAILED_UNSPECIFIED if failed else Outcome.OK)


def test_nothing_is_heard_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class is as it was once the last listener has left."""
    names = ("bench", "autotune_to_one_config", "coordinate_descent_tuning")
    before = [vars(CachingAutotuner)[name] for name in names]
    heard: list[Measurement] = []
    first, second = AutotuningListener(heard.append), AutotuningListener(heard.append)
    with first:
        with second:
            wrapped = [vars(CachingAutotuner)[name] for name in names]
        assert [vars(CachingAutotuner)[name] for name in names] == wrapped != before
    assert [vars(CachingAutotuner)[name] for name in names] == before
    with tuner_of("pointwise", monkeypatch) as tuner:
        tune(tuner)
    assert heard == []


def test_a_record_that_cannot_be_made_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search goes on and takes what it would take; the loss is counted."""

    def refuse(_measurement: Measurement) -> None:
        raise RuntimeError("no room")

    listener = AutotuningListener(refuse)
    with tuner_of("pointwise", monkeypatch) as tuner, listener:
        tune(tuner)
        assert time_ms(tuner.launchers[0].config) == 0.01
    assert (listener.stats.fused, listener.stats.failed) == (0, 2)


def test_a_kernel_without_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has cleared Inductor's folder: counted, and no harm to the run."""
    with tuner_of("pointwise", monkeypatch) as tuner, AutotuningListener() as listener:
        tuner.filename = "/nowhere/kernel.py"
        tune(tuner)
        assert time_ms(tuner.launchers[0].config) == 0.01
    assert (listener.stats.fused, listener.stats.failed) == (0, 2)


def test_a_kernel_that_no_config_describes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A combination, or a reduction that several blocks compute together, is no record and no failure."""
    with tuner_of("pointwise", monkeypatch) as tuner, AutotuningListener() as listener:
        text = Path(tuner.filename).read_text()
        for number, spoiled in enumerate(
            (
                text.replace("'num_load':", "'combo_grid_meta': {}, 'num_load':", 1),
                text.replace("@triton_heuristics.pointwise", "@triton_heuristics.cooperative_reduction", 1),
            )
        ):
            tuner.filename = str(tmp_path / f"{number}.py")
            Path(tuner.filename).write_text(spoiled)
            tune(tuner)
    assert (listener.stats.fused, listener.stats.failed) == (0, 0)


def test_times_with_copies_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inductor copies what a kernel writes over before each run, and times the copy."""
    heard: list[Measurement] = []
    for names in ("[]", "['in_ptr0']"):
        with tuner_of("pointwise", monkeypatch) as tuner, AutotuningListener(heard.append):
            text = (
                Path(tuner.filename).read_text().replace("'mutated_arg_names': []", f"'mutated_arg_names': {names}", 1)
            )
            tuner.filename = str(tmp_path / "kernel.py")
            Path(tuner.filename).write_text(text)
            tune(tuner)
    assert [measurement.extra for measurement in heard] == [{}] * 2 + [{WITH_COPIES: True}] * 2


def test_a_data_set_of_products_leaves_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's files hold matrix products only."""
    with tuner_of("pointwise", monkeypatch) as tuner, MatmulDatasetCollector() as collector:
        tune(tuner)
    assert collector.stats.events == 0
