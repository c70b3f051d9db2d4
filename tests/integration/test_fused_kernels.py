"""The hook chooses the configs of fused kernels; Triton's interpreter runs them on this CPU."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from picks_of import here
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.runtime.triton_heuristics import generate_lookup_hash_from_source_code

from diode_collectors.inductor.adapter import detect_hardware
from diode_collectors.inductor.fused_source import config_of_triton, read_source
from diode_integration.choices import DiodeInductorChoices
from diode_integration.inductor import fused
from diode_integration.install import install
from diode_integration.picks.lock import lock
from diode_store.candidates.names import kernel_config
from diode_store.exchange.picks import Pick, Picks
from diode_store.exchange.picks_reading import read_picks
from fused_kernels import CASES, interpreted, sources_of
from inductor_harness import compile_and_run, triton_choices_on_cpu
from stand_ins import TileModel

if TYPE_CHECKING:
    from diode_collectors.inductor.fused_source import FusedSource
    from diode_store.records import Environment, KernelConfig


def source_of(op: str) -> FusedSource:
    """Return the source of a case."""
    function, inputs = CASES[op]
    found = read_source(sources_of(function, *inputs)[0])
    assert found is not None
    return found


def blocks(op: str, **sizes: int) -> KernelConfig:
    """Return a config of a fused kernel with two warps, which no heuristic lists for the cases."""
    return kernel_config(f"triton::{op}", {"num_stages": 1, "num_warps": 2, **sizes})


PICKED = {"persistent_reduction": {"XBLOCK": 4}, "pointwise": {"XBLOCK": 4, "YBLOCK": 2}}


def picks_for(op: str, config: KernelConfig | None = None, environment: Environment | None = None) -> Picks:
    """Return picks of this device with one for a case."""
    device = detect_hardware("cpu")
    assert device is not None
    pick = Pick(source_of(op).problem, (config or blocks(op, **PICKED[op]),), environment or here(), 5.0)
    return Picks.of(device, [pick])


def compiled(op: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, dict[str, float]]:
    """Compile a case with a handler, check its result, and return its autotuner and the handler's counts."""
    handler = DiodeInductorChoices(model=TileModel(), **options)
    with install(handler):
        tuner = run(op, monkeypatch)
    return tuner, {name: count for name, count in handler.get_stats().items() if count and "seconds" not in name}


def run(op: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compile a case with max-autotune, check its result, and return its autotuner."""
    function, inputs = CASES[op]
    with interpreted(monkeypatch) as ran:
        result = compile_and_run(function, *inputs)
    torch.testing.assert_close(result, function(*inputs), rtol=1e-3, atol=1e-3)
    [tuner] = ran
    return tuner


def kind_of(tuner: Any) -> str:
    """Return the heuristics that made an autotuner."""
    return str(tuner.heuristic_type.name).lower()


def test_zero_mode_takes_the_first_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """One config, which is the first of a plain compile; nothing is left to time."""
    op = "pointwise"
    stock = run(op, monkeypatch)
    tuner, counts = compiled(op, monkeypatch, mode="zero")
    assert (kind_of(stock), kind_of(tuner)) == (op, "fixed")
    assert len(tuner.configs) == 1
    first = fused.first_config(source_of(op))
    assert config_of_triton(op, tuner.configs[0]) == first
    assert counts == {"fused_untuned": 1}


@pytest.mark.parametrize("mode", ["adaptive", "top_k"])
def test_other_modes_take_the_list_of_a_plain_compile(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No coordinate descent and none of max-autotune's further configs."""
    op = "pointwise"
    stock = run(op, monkeypatch)
    assert stock.inductor_meta["coordinate_descent_tuning"] is True
    tuner, counts = compiled(op, monkeypatch, mode=mode, unknown="vendor")
    assert kind_of(tuner) == op
    assert tuner.inductor_meta["coordinate_descent_tuning"] is False
    assert 0 < len(tuner.configs) < len(stock.configs)
    assert counts == {"fused_untuned": 1}


@pytest.mark.parametrize("options", [{"mode": "top_k", "unknown": "stock"}, {"mode": "zero", "observe": True}])
def test_stock_tunes_where_it_shall(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``unknown="stock"``, or a hook that observes, the source stays as it is."""
    tuner, counts = compiled("pointwise", monkeypatch, **options)
    assert tuner.inductor_meta["coordinate_descent_tuning"] is True
    assert kind_of(tuner) == "pointwise"
    assert counts.get("fused_untuned") is None


@pytest.mark.parametrize("mode", ["zero", "top_k"])
def test_a_measured_config_is_taken(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the mode: the config of the picks, alone, and the kernel is right with it."""
    op = "pointwise"
    tuner, counts = compiled(op, monkeypatch, mode=mode, picks=picks_for(op))
    assert kind_of(tuner) == "fixed"
    assert config_of_triton(op, tuner.configs[0]) == blocks(op, **PICKED[op])
    assert counts == {"fused_picked": 1}


REDUCTION = """
import pathlib, sys
import torch
from fused_kernels import CASES, interpreted
from pytest import MonkeyPatch
from test_fused_kernels import DiodeInductorChoices, TileModel, compile_and_run, install, kind_of
from diode_collectors.inductor.fused_source import config_of_triton
op, picks, mode = sys.argv[1:]
handler = DiodeInductorChoices(model=TileModel(), mode=mode, picks=picks or None)
function, inputs = CASES[op]
with install(handler), interpreted(MonkeyPatch()) as ran:
    result = compile_and_run(function, *inputs)
torch.testing.assert_close(result, function(*inputs), rtol=1e-3, atol=1e-3)
for tuner in ran:
    print(kind_of(tuner), *(config_of_triton(op, config).describe() for config in tuner.configs))
"""
"""Program that runs a reduction. Triton's own functions are interpreted only if it is imported to that end."""


@pytest.mark.parametrize("config", ["picked", "first"])
def test_a_reduction_is_right(config: str, tmp_path: Path) -> None:
    """With a picked config, and with the first one of the heuristics."""
    op = "persistent_reduction"
    source = source_of(op)
    picked = config == "picked"
    if picked:
        picks_for(op).write(tmp_path / "picks.json")
    path = [*sys.path, str(Path(__file__).parent)]
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REDUCTION, op, str(tmp_path / "picks.json") if picked else "", "zero"],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    first = fused.first_config(source)
    assert first is not None
    assert ended.stdout.split("\n")[0] == f"fixed {(blocks(op, **PICKED[op]) if picked else first).describe()}"


def test_picks_serve_a_plain_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without max-autotune the source asks for less, and is the same problem."""
    function, inputs = CASES["pointwise"]
    with (
        install(DiodeInductorChoices(model=TileModel(), picks=picks_for("pointwise"))),
        interpreted(monkeypatch) as ran,
    ):
        torch.compile(function)(*inputs)
    assert [kind_of(tuner) for tuner in ran] == ["fixed"]
    with install(DiodeInductorChoices(model=TileModel(), mode="zero")), interpreted(monkeypatch) as ran:
        torch.compile(function)(*inputs)
    assert [kind_of(tuner) for tuner in ran] == ["pointwise"]


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"XBLOCK": 3, "YBLOCK": 2}, "XBLOCK must be a power of 2 up to "),
        ({"XBLOCK": 2**20, "YBLOCK": 2}, "XBLOCK must be a power of 2 up to "),
        ({"XBLOCK": 4}, "the kernel is a pointwise with XBLOCK, YBLOCK"),
        ({"XBLOCK": 4, "YBLOCK": 2, "ZBLOCK": 1}, "the kernel is a pointwise with XBLOCK, YBLOCK"),
        ({"XBLOCK": 4, "YBLOCK": True}, "YBLOCK must be a power of 2 up to "),
        ({"XBLOCK": 2048, "YBLOCK": 1024}, "blocks of 2,097,152 elements are more than Triton's 1,048,576"),
        ({"XBLOCK": 4, "YBLOCK": 2, "FOO": 1}, "no kernel takes FOO"),
        ({"XBLOCK": 4, "YBLOCK": 2, "num_warps": 3}, "num_warps one of 1, 2, 4, 8, 16, 32"),
        ({"XBLOCK": 4, "YBLOCK": 2, "num_warps": 64}, "num_warps one of 1, 2, 4, 8, 16, 32"),
    ],
)
def test_a_config_that_would_be_wrong_is_refused(
    sizes: dict[str, int], why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A larger block would read outside the tensors, as the source has no masks for it. The kernel goes without."""
    picks = picks_for("pointwise", blocks("pointwise", **sizes))
    with caplog.at_level(logging.WARNING, "diode_integration"):
        tuner, counts = compiled("pointwise", monkeypatch, mode="top_k", unknown="vendor", picks=picks)
    assert kind_of(tuner) == "pointwise"
    assert counts == {"picks_missed": 1, "fused_untuned": 1}
    assert sum(why in message for message in caplog.messages) == 1


def test_a_persistent_reduction_holds_its_whole_range() -> None:
    """Its block of rows times the range must fit into a block of Triton."""
    source = source_of("persistent_reduction")
    assert fused.why_not(source, blocks("persistent_reduction", XBLOCK=2048)) is None
    why = fused.why_not(source, blocks("persistent_reduction", XBLOCK=4096))
    assert why == "blocks of 2,097,152 elements are more than Triton's 1,048,576"


def test_the_first_config_asks_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one on the disk nor one over the network."""
    source = source_of("pointwise")
    asked: list[Any] = []
    monkeypatch.setattr("torch._inductor.runtime.autotune_cache.AutotuneCache.create", lambda *args: asked.append(args))
    assert fused.first_config(source) is not None
    assert asked == []


def test_a_pick_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The same plain compile goes on with Inductor's own configs, and one line says why."""
    op = "pointwise"
    function, inputs = CASES[op]
    stock = AsyncCompile.triton

    def compile_source(self: Any, name: str, text: str, *args: Any, **kwargs: Any) -> Any:
        if "fixed_config" in text:
            raise RuntimeError("out of resources")
        return stock(self, name, text, *args, **kwargs)

    monkeypatch.setattr(AsyncCompile, "triton", compile_source)
    handler = DiodeInductorChoices(model=TileModel(), picks=picks_for(op))
    with (
        interpreted(monkeypatch) as ran,
        install(handler),
        torch.no_grad(),
        caplog.at_level(logging.WARNING, "diode_integration"),
    ):
        torch._dynamo.reset()
        result = torch.compile(function)(*inputs)
    torch.testing.assert_close(result, function(*inputs))
    assert [kind_of(tuner) for tuner in ran] == [op]
    assert sum("out of resources" in line for line in caplog.messages) == 1


def test_picks_of_another_torch_are_missed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Inductor may compile the same source otherwise there; one line says what to do."""
    picks = picks_for("pointwise", environment=replace(here(), torch="2.9.0"))
    with caplog.at_level(logging.WARNING, "diode_integration"):
        _, counts = compiled("pointwise", monkeypatch, mode="zero", picks=picks)
    assert counts == {"picks_missed": 1, "fused_untuned": 1}
    [line] = [message for message in caplog.messages if "2.9.0" in message]
    assert "measure in this torch" in line
    allowed = replace(picks, allow_changed_template=True)
    assert compiled("pointwise", monkeypatch, mode="zero", picks=allowed)[1] == {"fused_picked": 1}


def test_a_failure_costs_no_compile(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the hook raises: the source stays as it is, and the log has one line."""
    monkeypatch.setattr(fused, "first_config", lambda _source: 1 / 0)
    with caplog.at_level(logging.WARNING, "diode_integration"):
        tuner, counts = compiled("pointwise", monkeypatch, mode="zero")
    assert kind_of(tuner) == "pointwise"
    assert counts["fallback_error"] == 1
    assert sum("division by zero" in message for message in caplog.messages) == 1


def test_entries_of_the_users_table_stay() -> None:
    """A kernel that Inductor's own table names is found there by the key that Inductor looks up, and left alone."""
    function, inputs = CASES["pointwise"]
    text = sources_of(function, *inputs)[0]
    source = read_source(text)
    assert source is not None
    with triton_choices_on_cpu():
        tuner = PyCodeCache.load(text.replace("Placeholder.KERNEL_NAME", "triton_poi_fused_clone_0"))
    tuner = tuner.triton_poi_fused_clone_0
    key = generate_lookup_hash_from_source_code(str(tuner.size_hints), tuner.fn.src)
    with inductor_config.patch(autotune_lookup_table={"of another kernel": {}}):
        assert not fused.is_in_users_table(source)
    with inductor_config.patch(autotune_lookup_table={key: {}}):
        assert fused.is_in_users_table(source)


def test_uninstall_restores_the_method() -> None:
    """Nothing is left on Inductor's class."""
    before = vars(TritonKernel)[fused.METHOD]
    with install(DiodeInductorChoices(model=TileModel())):
        assert vars(TritonKernel)[fused.METHOD] is not before
    assert vars(TritonKernel)[fused.METHOD] is before


def test_choices_are_locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A picks file of a block of compiles has fused kernels too, and serves the next process."""
    path = tmp_path / "picks.json"
    with lock(path, device="cpu"):
        compiled("pointwise", monkeypatch, mode="zero")
    [pick] = read_picks(path).picks.values()
    source = source_of("pointwise")
    assert (pick.problem.key, pick.configs) == (source.problem.key, (fused.first_config(source),))
    assert compiled("pointwise", monkeypatch, mode="top_k", unknown="stock", picks=path)[1] == {"fused_picked": 1}
