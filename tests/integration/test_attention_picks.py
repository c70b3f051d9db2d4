"""A picks file names the config of flex attention, in every compile."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._inductor.config as inductor_config
from hooked import hooked
from picks_of import here
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from diode_collectors.inductor.adapter import detect_hardware
from diode_collectors.inductor.attention import mask_function
from diode_integration.decide.decision import DecidedBy
from diode_integration.install import install
from diode_store.candidates.names import kernel_config
from diode_store.errors import SettingsError
from diode_store.exchange.picks import Pick, Picks
from diode_store.ops.attending import Mask, attention_strides
from diode_store.records import KernelConfig, Problem, TensorSpec
from flex_on_cpu import flex_on_cpu
from inductor_harness import triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARD = kernel_config("triton::flex_attention", {"BLOCK_M": 32, "BLOCK_N": 16, "num_stages": 1, "num_warps": 2})
BACKWARD = kernel_config(
    "triton::flex_attention_backward",
    {"BLOCK_M1": 16, "BLOCK_N1": 32, "BLOCK_M2": 32, "BLOCK_N2": 16, "num_stages": 1, "num_warps": 2},
)
OF_OP = {"flex_attention": FORWARD, "flex_attention_backward": BACKWARD}
SIZE = (1, 2, 128, 32)


def problem(op: str = "flex_attention", mask: str = "causal", **changes: Any) -> Problem:
    """Return the problem of the call that ``attended`` compiles."""
    spec = TensorSpec("float32", SIZE, attention_strides(SIZE, "n"))
    return Problem.create(op, (spec,) * 3, {"mask": mask, "block": 64, **changes})


def picks_of(*problems: Problem, config: KernelConfig | None = None, torch_version: str | None = None) -> Picks:
    """Return picks of this device."""
    device, environment = detect_hardware("cpu"), here()
    assert device is not None
    environment = replace(environment, torch=torch_version) if torch_version else environment
    return Picks.of(device, [Pick(each, (config or OF_OP[each.op],), environment, 12.5) for each in problems])


def attended(
    handler: Any,
    mask: str = "causal",
    mode: str | None = None,
    *,
    gradient: bool = False,
    other_mask: Callable[..., Any] | None = None,
    **options: Any,
) -> list[dict[str, int]]:
    """Compile attention and return the blocks of each kernel."""
    inputs = [torch.zeros(SIZE).requires_grad_(gradient) for _ in range(3)]
    function, length = other_mask or mask_function(Mask.of("", mask), SIZE[2], SIZE[2]), SIZE[2]
    block_mask = create_block_mask(function, None, None, length, length, device="cpu", BLOCK_SIZE=64)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return flex_attention(query, key, value, block_mask=block_mask, **options)  # type: ignore[return-value]

    settings = inductor_config.patch(max_autotune_gemm_backends="TRITON,ATEN")
    with triton_choices_on_cpu(), settings, flex_on_cpu() as compiled, install(handler):
        torch._dynamo.reset()
        with torch.set_grad_enabled(gradient):
            result = torch.compile(attend, **({"mode": mode} if mode else {}))(*inputs)
            if gradient:
                torch.autograd.grad(result, inputs, torch.ones_like(result))
    return compiled


def blocks_of(config: KernelConfig) -> dict[str, int]:
    """Return a config's blocks as a kernel's source names them."""
    columns = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, **dict(config.kwargs)}
    return {name: int(size) for name, size in columns.items() if size}


@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_the_picked_config_is_the_only_one(mode: str | None) -> None:
    """In a plain compile too, where Inductor takes one fixed config; nothing is timed."""
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem()))
    assert attended(handler, mode=mode) == [blocks_of(FORWARD)]
    [decision] = [each for each in handler.decisions() if each.op == "flex_attention"]
    assert (decision.decided_by, decision.problem, decision.chosen[0].config) == (DecidedBy.PICKS, problem(), FORWARD)
    assert handler.get_stats()["picked_from_file"] == 1


def test_gradients_have_a_pick_of_their_own() -> None:
    """The backward pass is another op, with four block sizes."""
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem(), problem("flex_attention_backward")))
    assert attended(handler, gradient=True) == [blocks_of(FORWARD), blocks_of(BACKWARD)]
    assert handler.get_stats()["picked_from_file"] == 2


@pytest.mark.parametrize("mask", ["window50", "prefix40", "documents48"])
def test_a_mask_is_known_by_what_it_computes(mask: str) -> None:
    """A pick for one mask serves that mask alone."""
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem(mask=mask)))
    assert attended(handler, mask) == [blocks_of(FORWARD)]
    assert attended(handler, "causal") != [blocks_of(FORWARD)]


def test_a_mask_that_nobody_described_has_no_pick() -> None:
    """Nor has one that looks at a tensor; Inductor chooses, and nothing is said."""
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem()))
    stock = attended(hooked(mode="zero", hardware=None))
    stripes = attended(handler, other_mask=lambda _b, _h, q, k: (q >= k) & ((q - k) % 3 < 2))
    table = torch.arange(SIZE[2])
    captured = attended(handler, other_mask=lambda _b, _h, q, k: table[q] >= table[k])
    assert stripes == captured == stock != [blocks_of(FORWARD)]
    stats = handler.get_stats()
    assert (stats.get("fallback_error", 0), stats["picked_from_file"]) == (0, 0)


CALLS: dict[str, dict[str, Any]] = {
    "a function of scores": {"score_mod": lambda score, _b, _h, q, k: score + q - k},
    "blocks of the caller": {"kernel_options": {"BLOCK_M": 64, "BLOCK_N": 64}},
    "warps of the caller": {"kernel_options": {"fwd_num_warps": 8}},
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_that_are_other_kernels_have_no_pick(case: str) -> None:
    """The measured kernel had no function of scores, and all of its config."""
    compiled = []
    for picks in (picks_of(problem()), None):
        handler = hooked(mode="zero", hardware=None, picks=picks)
        compiled.append(attended(handler, **CALLS[case]))
        assert handler.get_stats().get("fallback_error", 0) == handler.get_stats()["picked_from_file"] == 0
    assert compiled[0] == compiled[1] != [blocks_of(FORWARD)]


def test_masks_that_differ_by_head_have_no_pick() -> None:
    """Whatever the first head sees."""
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem()))
    function = lambda _b, h, q, k: torch.where(h == 0, q >= k, (q >= k) & (q - k < 9))  # noqa: E731 - one of many
    assert attended(handler, other_mask=function) != [blocks_of(FORWARD)]


def test_a_mask_that_is_an_argument_of_varying_size(caplog: pytest.LogCaptureFixture) -> None:
    """Its block sizes are symbols then; nothing is picked, and nothing is said."""
    mask = create_block_mask(lambda _b, _h, q, k: q >= k, None, None, 128, 128, device="cpu", BLOCK_SIZE=64)
    for picks in (picks_of(problem()), None):
        handler = hooked(mode="zero", hardware=None, picks=picks)
        with triton_choices_on_cpu(), flex_on_cpu(), install(handler), torch.no_grad(), caplog.at_level("WARNING"):
            torch._dynamo.reset()
            attend: Any = torch.compile(lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask), dynamic=True)
            attend(*[torch.zeros(SIZE)] * 3, mask)
        assert handler.get_stats().get("fallback_error", 0) == 0
    assert not [line for line in caplog.messages if "torch-diode" in line or "stock Inductor" in line]


def test_keys_of_one_sequence_have_no_pick(caplog: pytest.LogCaptureFixture) -> None:
    """Which torch allows for many sequences of queries."""
    mask = create_block_mask(lambda _b, _h, q, k: q >= k, 3, None, 128, 128, device="cpu", BLOCK_SIZE=64)
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem()))
    with triton_choices_on_cpu(), flex_on_cpu(), install(handler), torch.no_grad(), caplog.at_level("WARNING"):
        torch._dynamo.reset()
        keys = torch.zeros(SIZE)
        attend: Any = torch.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=mask))
        attend(torch.zeros(3, *SIZE[1:]), keys, keys)
    assert handler.get_stats().get("fallback_error", 0) == handler.get_stats()["picked_from_file"] == 0


def test_picks_of_products_alone_leave_plain_compiles_alone() -> None:
    """No graph is copied in case a pick fails."""
    products = Problem.create("mm", (TensorSpec("float32", (8, 8), (8, 1)),) * 2)
    device = detect_hardware("cpu")
    assert device is not None
    picks = Picks.of(device, [Pick(products, (kernel_config("mm", {}),), here(), 1.0)])
    assert not hooked(mode="zero", hardware=None, picks=picks).serves_plain
    assert hooked(mode="zero", hardware=None, picks=picks_of(problem())).serves_plain


def test_plain_compiles_can_be_left_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """By a setting or a variable; without it one line says that they are not."""
    stock = attended(hooked(mode="zero", hardware=None))
    options: dict[str, Any] = {"mode": "zero", "hardware": None, "picks": picks_of(problem())}
    with caplog.at_level(logging.INFO, "diode_integration"):
        assert attended(hooked(**options, plain=False)) == stock
        assert not [line for line in caplog.messages if "DIODE_PLAIN" in line]
        monkeypatch.setenv("DIODE_PLAIN", "0")
        assert attended(hooked(**options)) == stock
        monkeypatch.setenv("DIODE_PLAIN", "1")
        handler = hooked(**options)
        for _ in range(2):
            assert attended(handler) == [blocks_of(FORWARD)]
    assert len([line for line in caplog.messages if "DIODE_PLAIN" in line]) == 1
    assert hooked(**options).uuid() != hooked(**options, plain=False).uuid()
    monkeypatch.setenv("DIODE_PLAIN", "perhaps")
    with pytest.raises(SettingsError, match="DIODE_PLAIN must be 1 or 0, not 'perhaps'"):
        hooked(**options)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"block_m": 48}, "block_m must be a power of 2, not 48"),
        ({"block_n": 128}, "block_n 128 does not divide the 64 of the mask's blocks"),
        ({"block_m": None}, "block_m must be a power of 2, not None"),
        ({"num_warps": None}, "num_stages and num_warps must be positive"),
    ],
)
def test_a_config_that_does_not_fit_the_mask(
    caplog: pytest.LogCaptureFixture, changes: dict[str, Any], why: str
) -> None:
    """Inductor would raise; one line says why, and Inductor's own config is taken."""
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem(), config=replace(FORWARD, **changes)))
    with caplog.at_level(logging.WARNING, "diode_integration"):
        assert attended(handler) == attended(hooked(mode="zero", hardware=None))
    assert sum(why in line for line in caplog.messages) == 1
    assert handler.get_stats()["picks_missed"] == 1


def test_picks_of_another_torch_are_missed() -> None:
    """The template may have changed since."""
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem(), torch_version="2.9.0"))
    assert attended(handler) != [blocks_of(FORWARD)]
    assert handler.get_stats()["picks_missed"] == 1


def test_a_failure_costs_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with a call, Inductor lowers it."""
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem()))
    with monkeypatch.context() as broken:
        broken.setattr("diode_collectors.inductor.attention.Call.of", lambda _arguments: 1 / 0)
        assert attended(handler) != [blocks_of(FORWARD)]
    assert handler.get_stats()["fallback_error"] == 1


def test_a_pick_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Inductor's own config takes its place in the same compile, and one line says why."""
    stock = attended(hooked(mode="zero", hardware=None))
    monkeypatch.setattr("flex_on_cpu.REFUSED", [blocks_of(FORWARD)])
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem()))
    with caplog.at_level(logging.WARNING, "diode_integration"):
        assert attended(handler) == [blocks_of(FORWARD), *stock]
    assert sum("out of resources" in line for line in caplog.messages) == 1


def test_sizes_that_vary_have_no_pick() -> None:
    """A measurement at one size says nothing about all; the first, static compile has it."""
    found = {}
    for dynamic in (True, None):
        handler = hooked(mode="zero", hardware=None, picks=picks_of(problem(mask="")))
        with triton_choices_on_cpu(), flex_on_cpu() as compiled, install(handler), torch.no_grad():
            torch._dynamo.reset()
            attend: Any = torch.compile(flex_attention, dynamic=dynamic)
            for length in (128, 192):
                attend(*[torch.zeros(*SIZE[:2], length, SIZE[3])] * 3)
        found[dynamic] = [blocks == blocks_of(FORWARD) for blocks in compiled]
        assert handler.get_stats().get("fallback_error", 0) == 0
    assert found == {True: [False], None: [True, False]}
