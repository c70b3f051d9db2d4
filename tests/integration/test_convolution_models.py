"""A model chooses the kernel of a convolution: the library's, or a template that it predicts to be clearly faster."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hooked import benchmarks, hooked, watching
from picks_of import here
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices

from diode_collectors.inductor.adapter import detect_hardware
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_integration import convolution
from diode_integration.decide.alone import AloneModels, alone_models
from diode_integration.decide.decision import DecidedBy
from diode_integration.inductor.convolutions import PRODUCT, VENDOR, candidates_of
from diode_integration.inductor.unranked import SELDOM_WINS
from diode_integration.install import install
from diode_integration.preview import Previewer
from diode_store.exchange.picks import Pick, Picks
from diode_store.records import KernelConfig
from inductor_harness import compile_and_run
from stand_ins import H200

NARROW = "convolution:8x4x64x64:320x3x3/padding1"
"""A first layer of a diffusion model; the library pads its 4 channels to 8."""
WIDE = "convolution:2x320x32x32:320x3x3/padding1"
UNKNOWN = "convolution:2x4x32x32:320x3x3/padding1/fp32"
SETTINGS: dict[str, Any] = {"max_autotune_conv_backends": "ATEN,TRITON"}


@pytest.fixture(autouse=True)
def lists_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Inductor list for the CPU what it lists for a CUDA device."""
    monkeypatch.setattr(
        InductorChoices,
        "get_conv_configs",
        lambda self, _device: self.get_config_heuristics("cuda").get_conv_configs(),
    )


def compiled(handler: Any, text: str, *, dynamic: bool | None = None, **settings: Any) -> list[str]:
    """Compile a convolution, run the library's kernel whatever is left, and return the names of Inductor's choices."""
    problem = parse_problem(text)
    data, weights = (
        torch.randn(spec.size, dtype=getattr(torch, spec.dtype)).to(memory_format=torch.channels_last)
        for spec in problem.inputs()
    )
    padding, stride = (
        int(str(problem.shape.dimension(name, usual))[0]) for name, usual in (("padding", 0), ("stride", 1))
    )

    def function(data: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(data, weights, padding=padding, stride=stride)

    with watching(run_vendor=True, **SETTINGS, **settings) as watch, install(handler):
        result = compile_and_run(function, data, weights, dynamic=dynamic)
    torch.testing.assert_close(result, function(data, weights), rtol=0.05, atol=0.5)
    assert watch.timed == []
    [offered] = watch.offered
    return offered


@pytest.mark.parametrize("mode", ["zero", "adaptive"])
def test_a_template_is_kept_where_it_is_clearly_faster(mode: str) -> None:
    """Of a dozen, in every mode, with nothing timed."""
    handler = hooked(mode=mode, hardware=H200)
    assert len(compiled(handler, NARROW)) > 3
    [decision] = handler.decisions()
    assert (decision.decided_by, len(decision.chosen)) == (DecidedBy.MODEL, 1)
    chosen = decision.chosen[0].config
    assert (chosen.template, chosen.num_warps) == ("triton::convolution2d", 4)
    assert "below the library's kernel" in decision.reason
    assert decision.problem is not None
    assert str(SweepProblem.of_shape(decision.problem.shape)) == str(parse_problem(NARROW))
    assert (benchmarks(), handler.get_stats()["kept_alone"]) == (0, 1)


@pytest.mark.parametrize("mode", ["zero", "adaptive"])
def test_the_librarys_kernel_is_lowered_without_a_list(mode: str) -> None:
    """So that no template's code is generated."""
    handler = hooked(mode=mode, hardware=H200)
    assert compiled(handler, WIDE) == ["convolution"]
    [decision] = handler.decisions()
    assert (decision.decided_by, decision.chosen[0].config) == (DecidedBy.MODEL, VENDOR)
    assert decision.reason == "the library's kernel is predicted fastest"


@pytest.mark.parametrize("unknown", ["vendor", "auto"])
def test_a_convolution_that_no_model_knows(unknown: str) -> None:
    """It counts as a fallback with its problem, and the library's kernel stays."""
    handler = hooked(mode="zero", hardware=H200, unknown=unknown)
    assert compiled(handler, UNKNOWN) == ["convolution"]
    [decision] = handler.decisions()
    assert decision.decided_by is DecidedBy.VENDOR
    assert decision.reason.startswith("dtype: of convolution the model knows bfloat16, float16, not ")
    assert decision.problem is not None
    assert handler.get_stats()["fallback_dtype"] == 1


def test_inductor_tunes_what_no_model_knows_if_asked() -> None:
    """The hook has no part in it then."""
    handler = hooked(mode="zero", hardware=H200, unknown="stock")
    assert len(compiled(handler, UNKNOWN)) > 3
    assert handler.decisions() == []


def test_without_the_library_among_the_backends_inductor_chooses() -> None:
    """An op lowered without tuning would have no kernel at all."""
    handler = hooked(mode="zero", hardware=H200)
    for backends, failed in (("TRITON", 0), ("ATEN,TRITON", 1)):  # a call without arguments fails if it is looked at
        with inductor_config.patch(max_autotune=True, max_autotune_conv_backends=backends):
            assert handler.convolution((), {}) is None
        assert handler.get_stats().get("fallback_error", 0) == failed


def test_a_handler_that_observes_records_its_choice() -> None:
    """Inductor goes on as without it."""
    handler = hooked(mode="zero", hardware=H200, observe=True)
    assert len(compiled(handler, NARROW)) > 3
    [decision] = handler.decisions()
    assert (decision.observed, decision.decided_by) == (True, DecidedBy.MODEL)


def test_sizes_that_vary_keep_the_librarys_kernel() -> None:
    """A model knows one size."""
    handler = hooked(mode="zero", hardware=H200)
    assert compiled(handler, NARROW, dynamic=True) == ["convolution"]
    [decision] = handler.decisions()
    assert (decision.decided_by, decision.problem) == (DecidedBy.VENDOR, None)


def test_without_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's kernel stays."""
    monkeypatch.setattr("diode_integration.choices.alone_models", lambda: None)
    handler = hooked(mode="zero", hardware=H200)
    assert compiled(handler, NARROW) == ["convolution"]
    assert "no model ranks convolutions" in handler.decisions()[0].reason


def test_a_product_is_ranked_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a model says that a 1 x 1 convolution is faster as a product, the models of products choose its kernel."""
    whole = AloneModels.choose

    def choose(self: AloneModels, *arguments: Any) -> Any:
        return whole(self, *arguments)._replace(config=PRODUCT)

    monkeypatch.setattr(AloneModels, "choose", choose)
    handler = hooked(mode="zero", hardware=H200)
    compiled(handler, "convolution:2x64x14x14:32x1x1")
    assert [decision.op for decision in handler.decisions()] == ["mm"]


def test_a_template_without_code_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's kernel stands in, in the same compile."""
    missing = KernelConfig("triton::convolution2d", block_m=4096, block_n=64, block_k=16, num_stages=2, num_warps=4)
    whole = convolution._predicted
    monkeypatch.setattr(
        convolution,
        "_predicted",
        lambda *arguments: whole(*arguments)._replace(config=missing),  # type: ignore[union-attr]
    )
    handler = hooked(mode="zero", hardware=H200)
    assert "convolution" in compiled(handler, NARROW)
    [decision] = handler.decisions()
    assert decision.decided_by is DecidedBy.VENDOR
    assert "which the model picks" in decision.reason


def test_a_failure_costs_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong, Inductor lowers the call; zero mode keeps the library's kernel."""
    monkeypatch.setattr(AloneModels, "choose", lambda *_: 1 / 0)
    handler = hooked(mode="zero", hardware=H200)
    assert compiled(handler, NARROW) == ["convolution"]
    assert handler.get_stats()["fallback_error"] == 1


@pytest.mark.parametrize(("text", "product"), [("convolution:2x64x56x56:64x1x1", True), (NARROW, False)])
def test_what_there_is_to_choose_from(text: str, product: bool) -> None:  # noqa: FBT001 - a case
    """Templates with a loop over the kernel have at most 4 warps, as Triton computes wrong results with 8."""
    first, *others = candidates_of(parse_problem(text).problem())
    templates = [each for each in others if each.template == "triton::convolution2d"]
    assert (first, others[0] == PRODUCT) == (VENDOR, product)
    assert len(templates) >= 3
    assert any(each.num_warps == 8 for each in templates) is product


def test_an_input_beyond_32_bits_has_no_template() -> None:
    """A template would read outside of it."""
    assert candidates_of(parse_problem("convolution:128x2048x112x112:64x1x1").problem()) == [VENDOR]


def test_a_pick_whose_results_cannot_be_trusted() -> None:
    """The model chooses instead, and the log says why."""
    device, problem = detect_hardware("cpu"), parse_problem(NARROW).problem()
    assert device is not None
    measured = KernelConfig("triton::convolution2d", block_m=128, block_n=128, block_k=16, num_stages=3, num_warps=8)
    picks = Picks.of(device, [Pick(problem, (measured,), here(), 12.5)])
    handler = hooked(mode="zero", hardware=None, picks=picks)
    compiled(handler, NARROW)
    assert [each.decided_by for each in handler.decisions()] == [DecidedBy.VENDOR]
    assert handler.get_stats()["picks_missed"] == 1


@pytest.mark.parametrize("kernel", ["11x11", "1x11", "11x1"])
def test_a_kernel_of_ones_in_writing_alone_is_no_pointwise_one(kernel: str) -> None:
    """Its templates have a loop over the kernel."""
    found = candidates_of(parse_problem(f"convolution:8x64x56x56:64x{kernel}").problem())
    assert {each.num_warps for each in found[1:]} <= {1, 2, 4}


@pytest.mark.parametrize("words", ["dilation2", "stride2"])
def test_dilated_convolutions_have_no_template(words: str) -> None:
    """A stride is no obstacle, but such a convolution is no product."""
    found = candidates_of(parse_problem(f"convolution:2x64x56x56:64x1x1/{words}").problem())
    assert (len(found) == 1, PRODUCT in found) == (words == "dilation2", False)


def test_signals_and_volumes_have_no_template() -> None:
    """The model never saw their templates."""
    for text in ("convolution:8x64x4096:128x3", "convolution:2x16x8x32x32:32x3x3x3"):
        assert candidates_of(parse_problem(text).problem()) == [VENDOR]


def test_a_pick_of_a_sweep_is_found_by_a_users_compile() -> None:
    """A sweep turns off cuDNN's TF32 for bf16, a user's compile does not; the kernel is the same."""
    device, problem = detect_hardware("cpu"), parse_problem(NARROW).problem()
    assert device is not None
    config = next(each for each in candidates_of(problem) if each.template == "triton::convolution2d")
    measured = KernelConfig(**{**{name: getattr(config, name) for name in NAMES}, "allow_tf32": False})
    picks = Picks.of(device, [Pick(problem, (measured,), here(), 12.5)])
    handler = hooked(mode="zero", hardware=None, picks=picks)
    assert torch.backends.cudnn.allow_tf32
    compiled(handler, NARROW)
    [decision] = handler.decisions()
    assert decision.decided_by is DecidedBy.PICKS


NAMES = ("template", "block_m", "block_n", "block_k", "num_stages", "num_warps")


def test_a_preview_says_what_a_compile_does() -> None:
    """The same kernel, without a GPU; where the model abstains, the hook's choice."""
    texts = NARROW, WIDE, "convolution:8x64x4096:128x3"
    narrow, wide, signal = Previewer(H200, mode="zero").previews([parse_problem(text).problem() for text in texts])
    for text, preview in ((NARROW, narrow), (WIDE, wide)):
        handler = hooked(mode="zero", hardware=H200)
        compiled(handler, text)
        assert preview.decision is not None
        assert preview.decision.chosen == handler.decisions()[0].chosen
    assert signal.decision is not None
    assert (signal.decision.decided_by, signal.ranked) == (DecidedBy.VENDOR, ())
    (auto,) = Previewer(H200, mode="adaptive").previews([parse_problem(texts[2]).problem()])
    assert auto.reason.endswith(SELDOM_WINS)


def test_the_models_are_part_of_the_cache_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile with other models must not find what these chose."""
    found = alone_models()
    assert found is not None
    with_models = hooked(mode="zero", hardware=H200).uuid()
    assert found.key in with_models
    monkeypatch.setattr("diode_integration.choices.alone_models", lambda: None)
    assert hooked(mode="zero", hardware=H200).uuid() != with_models
