"""A model chooses the config of flex attention, in every compile."""

from __future__ import annotations

import logging
import shutil
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._inductor.config as inductor_config
from hooked import benchmarks, hooked
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from diode_integration.decide.decision import DecidedBy
from diode_integration.install import install
from diode_store.ops.attending import BACKWARD, DECODING, FORWARD
from diode_store.system.resources import trained_models_dir
from diode_trainer.card import ATTENTION_PURPOSE
from flex_on_cpu import flex_on_cpu
from inductor_harness import triton_choices_on_cpu
from stand_ins import H200

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from diode_integration.choices import DiodeInductorChoices
    from diode_integration.decide.decision import Decision

HEADS, LENGTH, SIZE = 16, 1024, 64
PLAIN = {"BLOCK_M": 128, "BLOCK_N": 64}
"""Blocks that a plain compile takes on a device for which Inductor has no table, as the CPU is."""


def causal(_b: Any, _h: Any, q: Any, k: Any) -> Any:
    """Let each query see the keys up to its own."""
    return q >= k


def attended(  # noqa: PLR0913 - each is one property of a call
    handler: DiodeInductorChoices | None,
    mode: str | None = None,
    *,
    gradient: bool = False,
    queries: int = LENGTH,
    size: int = SIZE,
    dtype: torch.dtype = torch.bfloat16,
    mask: Callable[..., Any] = causal,
    dynamic: bool | None = None,
    block: int = 128,
) -> list[dict[str, int]]:
    """Compile attention and return the blocks of each kernel."""
    shapes = [(1, HEADS, length, size) for length in (queries, LENGTH, LENGTH)]
    inputs = [torch.zeros(shape, dtype=dtype).requires_grad_(gradient) for shape in shapes]
    blocks = None
    if queries == LENGTH:
        blocks = create_block_mask(mask, None, None, queries, LENGTH, device="cpu", BLOCK_SIZE=block)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return flex_attention(query, key, value, block_mask=blocks)  # type: ignore[return-value]

    settings = inductor_config.patch(max_autotune_gemm_backends="TRITON,ATEN")
    with (
        triton_choices_on_cpu(),
        settings,
        flex_on_cpu(multiprocessors=132) as compiled,
        nullcontext() if handler is None else install(handler),
    ):
        torch._dynamo.reset()
        counters.clear()
        with torch.set_grad_enabled(gradient):
            result = torch.compile(attend, dynamic=dynamic, **({"mode": mode} if mode else {}))(*inputs)
            if gradient:
                torch.autograd.grad(result, inputs, torch.ones_like(result))
    return compiled


def of_attention(handler: DiodeInductorChoices) -> list[Decision]:
    """Return a handler's decisions on attention."""
    return [each for each in handler.decisions() if each.op in {FORWARD, BACKWARD, DECODING}]


@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("hook_mode", ["zero", "top_k"])
def test_one_config_and_nothing_is_timed(mode: str | None, hook_mode: str) -> None:
    """Inductor would time its list with a mask that is not the caller's, so every mode keeps one config."""
    handler = hooked(mode=hook_mode, hardware=H200)
    [blocks] = attended(handler, mode)
    [decision] = of_attention(handler)
    assert (decision.decided_by, decision.op, len(decision.chosen)) == (DecidedBy.MODEL, FORWARD, 1)
    config = decision.chosen[0].config
    assert blocks == {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n} != PLAIN
    assert benchmarks() == 0
    assert "below Inductor's default" in decision.reason


def test_gradients_and_decoding() -> None:
    """Each op has a model of its own."""
    handler = hooked(mode="zero", hardware=H200)
    attended(handler, gradient=True)
    assert [(each.op, each.decided_by) for each in of_attention(handler)] == [
        (FORWARD, DecidedBy.MODEL),
        (BACKWARD, DecidedBy.MODEL),
    ]
    decoding = hooked(mode="zero", hardware=H200)
    attended(decoding, queries=1)
    [decision] = of_attention(decoding)
    assert (decision.op, decision.decided_by) == (DECODING, DecidedBy.MODEL)
    assert (decision.chosen[0].config.block_n, decision.chosen[0].config.num_stages) != (64, 1)


CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "head size": ({"size": 32}, "head size 64, 96, 128, 192, 256, not 32"),
    "dtype": ({"dtype": torch.float32}, "the model knows bfloat16, float16, not float32"),
    "mask": ({"mask": lambda _b, _h, q, k: (q >= k) & ((q - k) % 3 < 2)}, "a mask or scores that have no name"),
}


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_calls_that_no_model_knows(case: str, mode: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """Zero mode leaves the config of a plain compile; nothing is timed, and one line says why."""
    changes, why = CALLS[case]
    handler = hooked(mode="zero", hardware=H200)
    with caplog.at_level(logging.INFO, "diode_integration"):
        found = attended(handler, mode, **changes)
        attended(handler, mode, **changes)
    assert sum(why in line for line in caplog.messages) == 1
    assert found == attended(None, **changes)
    assert benchmarks() == 0
    decision = of_attention(handler)[0]
    assert decision.decided_by is DecidedBy.STOCK
    assert why in decision.reason
    assert ("plain compile is kept" in decision.reason) is (mode is not None)
    reason = decision.reason.partition(":")[0]
    assert handler.get_stats()[f"fallback_{reason}"] == len(of_attention(handler))


def test_a_list_stays_where_stock_is_asked_for() -> None:
    """Inductor then tunes what no model knows."""
    handler = hooked(mode="zero", unknown="stock", hardware=H200)
    attended(handler, "max-autotune-no-cudagraphs", size=32)
    assert of_attention(handler)[0].reason.endswith("64, 96, 128, 192, 256, not 32")
    assert benchmarks() > 0


def test_a_default_that_does_not_fit_the_mask() -> None:
    """A plain compile would fail, so Inductor's list stays; a model still finds one that fits."""
    handler = hooked(mode="zero", hardware=H200)
    [blocks] = attended(handler, "max-autotune-no-cudagraphs", block=64)
    assert blocks["BLOCK_M"] <= 64


@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_sizes_that_vary(mode: str | None) -> None:
    """A model knows one size; the config of a plain compile stays, and nothing is timed."""
    handler = hooked(mode="zero", hardware=H200)
    assert attended(handler, mode, dynamic=True) == attended(None, dynamic=True)
    assert benchmarks() == 0
    assert handler.get_stats().get("fallback_error", 0) == 0
    assert "symbolic sizes" in of_attention(handler)[0].reason


def test_tuning_of_products_alone_is_a_plain_compile_of_attention() -> None:
    """Inductor lists configs of attention for max_autotune, whatever max_autotune_gemm says."""
    with inductor_config.patch(max_autotune_gemm=True):
        assert attended(hooked(mode="zero", hardware=H200, plain=False)) == attended(None)


def test_damaged_models_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They must not be part of a cache key, since other kernels would be cached under it."""
    whole = hooked(mode="zero", hardware=H200)
    shutil.copytree(trained_models_dir(), tmp_path / "models")
    next((tmp_path / "models" / ATTENTION_PURPOSE).glob("flex_attention_v1.pt")).write_bytes(b"torn")
    monkeypatch.setattr("diode_trainer.catalogue.trained_models_dir", lambda: tmp_path / "models")
    torn = hooked(mode="zero", hardware=H200)
    assert torn.uuid() != whole.uuid()
    assert attended(torn) == attended(None)
    assert of_attention(torn)[0].reason == "no_model: no model knows flex_attention"


def test_plain_compiles_can_be_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """One line says that they are not."""
    with caplog.at_level(logging.INFO, "diode_integration"):
        left_alone = hooked(mode="zero", hardware=H200, plain=False)
        assert attended(left_alone) == attended(None)
        assert not of_attention(left_alone)
        assert not [line for line in caplog.messages if "DIODE_PLAIN" in line]
        handler = hooked(mode="zero", hardware=H200)
        for _ in range(2):
            assert attended(handler) != attended(None)
    assert len([line for line in caplog.messages if "DIODE_PLAIN" in line]) == 1
    assert handler.uuid() != left_alone.uuid()


def test_an_observer_changes_nothing() -> None:
    """It records what it would keep."""
    handler = hooked(mode="zero", hardware=H200, observe=True)
    attended(handler, "max-autotune-no-cudagraphs")
    [decision] = of_attention(handler)
    assert (decision.observed, decision.decided_by) == (True, DecidedBy.MODEL)


def test_in_zero_mode_nothing_is_timed_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With max-autotune the default takes the place of a config that does not compile."""
    mode = "max-autotune-no-cudagraphs"
    stock, [blocks] = attended(None), attended(hooked(mode="zero", hardware=H200), mode)
    monkeypatch.setattr("flex_on_cpu.REFUSED", [blocks])
    assert attended(hooked(mode="zero", hardware=H200), mode) == [blocks, *stock]
    assert benchmarks() == 0


def test_a_default_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's list comes back, in which stock finds another."""
    mode, size = "max-autotune-no-cudagraphs", 32
    [default] = attended(hooked(mode="zero", hardware=H200), mode, size=size)
    monkeypatch.setattr("flex_on_cpu.REFUSED", [default])
    found = attended(hooked(mode="zero", hardware=H200), mode, size=size)
    assert found[0] == default
    assert found[-1] != default


def test_a_config_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Inductor's own config takes its place in the same compile, and one line says why."""
    stock, [blocks] = attended(None), attended(hooked(mode="zero", hardware=H200))
    monkeypatch.setattr("flex_on_cpu.REFUSED", [blocks])
    with caplog.at_level(logging.WARNING, "diode_integration"):
        assert attended(hooked(mode="zero", hardware=H200)) == [blocks, *stock]
    assert sum("out of resources" in line for line in caplog.messages) == 1
