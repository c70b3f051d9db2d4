"""The options of the hook, and observing without choosing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import OPS, compile_op, each_op, each_path, hooked
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

from diode_collectors.inductor.adapter import POLICY_ANNOTATION
from diode_integration.choices import DiodeInductorChoices
from diode_integration.install import install
from diode_store.errors import HardwareError, ModelError, SettingsError
from diode_trainer.policy import Mode
from inductor_harness import compile_and_run, quiet_torch
from stand_ins import H200, TileModel

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.quick(1)
@each_op
@each_path
def test_observing_changes_nothing(op: str, deferred: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """When it only observes, the hook records what it would have kept, and stock Inductor chooses."""
    stock = compile_op(op, None, deferred=deferred)
    handler = hooked(TileModel(vendor_us=20.5), observe=True)
    watch = compile_op(op, handler, deferred=deferred)
    assert watch.left == stock.left
    assert watch.timed == stock.timed
    assert all(POLICY_ANNOTATION not in choice.annotations for choice in watch.kept[0])
    (decision,) = handler.decisions()
    assert decision.observed
    assert decision.candidates > 500
    assert len(decision.chosen) == 4
    assert ": would keep 4 of " in decision.describe()
    assert handler.get_stats()["configs_filtered"] == 0


@pytest.mark.quick(1)
@each_op
def test_observing_a_cpu_as_if_it_were_a_gpu(op: str) -> None:
    """On a machine without a GPU, observing ranks what the named GPU would have been offered."""
    function, shapes = OPS[op]
    inputs = [torch.randn(shape).to(torch.bfloat16) for shape in shapes]
    handler = hooked(TileModel(vendor_us=20.5), observe=True)
    with quiet_torch(), fresh_cache(), install(handler), inductor_config.patch(fx_graph_cache=False):
        result = compile_and_run(function, *inputs)
    torch.testing.assert_close(result, function(*inputs), rtol=2e-2, atol=2e-1)
    (decision,) = handler.decisions()
    assert decision.candidates > 1000
    assert len(decision.chosen) == 4


def test_nothing_is_ranked_as_if_on_a_gpu_unless_observing() -> None:
    """Kernels of another device cannot be run, so only observing lists them."""
    handler = hooked()
    with quiet_torch(), fresh_cache(), install(handler), inductor_config.patch(fx_graph_cache=False):
        compile_and_run(OPS["mm"][0], torch.randn(128, 512), torch.randn(512, 256))
    assert [decision.candidates for decision in handler.decisions()] == [1]


def test_no_model_is_an_error_without_fallback(tmp_path: Path) -> None:
    """Without fallback a missing model is an error, outside of any compile."""
    with pytest.raises(ModelError, match="no such model"):
        DiodeInductorChoices(tmp_path / "none.pt", enable_fallback=False)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"search_space": "ALL"}, SettingsError, "search_space must be EXHAUSTIVE, DEFAULT or inherit, not 'ALL'"),
        ({"mode": "two"}, SettingsError, "mode must be one of top_k, zero, adaptive, not 'two'"),
        ({"top_k_configs": 0}, SettingsError, "top_k_configs must be a whole number of at least 1, not 0"),
        (
            {"top_k_configs": 3, "kernel_price": 0.01},
            SettingsError,
            "kernel_price is for adaptive mode, the other options for top_k mode; name a mode",
        ),
        (
            {"hardware": "abacus"},
            HardwareError,
            "no device is known by the name 'abacus'; pass a Hardware record instead",
        ),
    ],
    ids=["search_space", "mode", "top_k", "two modes", "hardware"],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """An option that cannot be used is refused in one line when the handler is made."""
    with pytest.raises(error) as refused:
        hooked(**options)
    assert str(refused.value) == message


def test_every_option_that_changes_choices_is_in_the_uuid() -> None:
    """Handlers that may choose differently have different cache keys; equal ones have equal keys."""
    variants: list[dict[str, Any]] = [
        {},
        {"model": TileModel(sha256="b" * 64)},
        {"top_k_configs": 2},
        {"performance_threshold": 1.2},
        {"mode": Mode.ZERO},
        {"mode": Mode.ADAPTIVE},
        {"mode": Mode.ADAPTIVE, "kernel_price": 0.01},
        {"search_space": "DEFAULT"},
        {"search_space": "inherit"},
        {"hardware": "NVIDIA B200"},
        {"hardware": None},
        {"hardware": replace(H200, multiprocessors=16)},
        {"observe": True},
    ]
    uuids = [hooked(**options).uuid() for options in variants]
    assert len(set(uuids)) == len(variants)
    assert uuids == [hooked(**options).uuid() for options in variants]


def test_hardware_may_be_a_record() -> None:
    """A device without a known name can be passed as a record."""
    handler = hooked(hardware=H200)
    compile_op("mm", handler)
    assert handler.get_stats()["model_selections"] == 1
