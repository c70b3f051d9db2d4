"""A picks file names a convolution's kernel: the vendor's, a template, or the product that a 1 x 1 convolution is."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import hooked, watching
from picks_of import here
from torch._inductor.kernel import conv

from diode_collectors.feedback.listening import AutotuningListener
from diode_collectors.inductor.adapter import detect_hardware
from diode_integration.decide.decision import DecidedBy
from diode_integration.install import install
from diode_integration.picks.lock import lock
from diode_store.exchange.picks import Pick, Picks
from diode_store.exchange.picks_reading import read_picks
from diode_store.ops.convolving import convolution_strides
from diode_store.records import KernelConfig, Problem, TensorSpec
from inductor_harness import compile_and_run

if TYPE_CHECKING:
    from pathlib import Path

    from hooked import Watch


VENDOR, PRODUCT, TEMPLATE = "aten::convolution", "aten::conv1x1_via_mm", "triton::convolution2d"
SETTINGS: dict[str, Any] = {"max_autotune_conv_backends": "ATEN,TRITON", "layout_optimization": False}


def convolve(
    handler: Any,
    kernel: int = 3,
    *,
    channels_last: bool = False,
    dynamic: bool | None = None,
    run_vendor: bool = True,
) -> Watch:
    """Compile a convolution, run the vendor's kernel whatever is left, and return what Inductor chose from."""
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    image = torch.randn(2, 16, 20, 20).to(memory_format=memory_format)
    weight = torch.randn(32, 16, kernel, kernel).to(memory_format=memory_format)

    def function(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(image, weight, padding=kernel // 2)

    with watching(run_vendor=run_vendor, **SETTINGS) as watch, install(handler):
        result = compile_and_run(function, image, weight, dynamic=dynamic)
    torch.testing.assert_close(result, function(image, weight), rtol=1e-4, atol=1e-3)
    return watch


def listed(kernel: int = 3, *, channels_last: bool = False) -> tuple[Problem, list[KernelConfig]]:
    """Return what a collector records of the convolution with Inductor's own choice."""
    heard: list[Any] = []
    with AutotuningListener(heard.append):
        convolve(hooked(mode="zero", unknown="stock"), kernel, channels_last=channels_last, run_vendor=False)
    [measurement] = heard
    return measurement.problem, [timing.config for timing in measurement.timings]


def picks_of(problem: Problem, config: KernelConfig, torch_version: str | None = None) -> Picks:
    """Return picks of this device with one convolution."""
    device, environment = detect_hardware("cpu"), here()
    assert device is not None
    environment = replace(environment, torch=torch_version) if torch_version else environment
    return Picks.of(device, [Pick(problem, (config,), environment, 12.5)])


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_template_is_left_alone(channels_last: bool) -> None:  # noqa: FBT001 - a case
    """The one of the file, of a dozen; nothing is timed, and the decision says where it is from."""
    problem, configs = listed(channels_last=channels_last)
    config = [each for each in configs if each.template == TEMPLATE and each.num_warps == 4][1]
    handler = hooked(mode="adaptive", hardware=None, picks=picks_of(problem, config))
    watch = convolve(handler, channels_last=channels_last)
    [left] = watch.kept
    assert len(watch.offered[0]) >= len(configs)
    assert (len(left), watch.timed) == (1, [])
    [decision] = handler.decisions()
    assert (decision.decided_by, decision.problem, decision.chosen[0].config) == (DecidedBy.PICKS, problem, config)
    assert handler.get_stats()["picked_from_file"] == 1


def test_the_vendors_kernel_is_lowered_without_a_list() -> None:
    """No template's code is generated for it."""
    problem, configs = listed()
    assert configs[0].template == VENDOR
    handler = hooked(mode="adaptive", hardware=None, picks=picks_of(problem, configs[0]))
    watch = convolve(handler)
    assert (watch.offered, watch.timed) == ([["convolution"]], [])
    [decision] = handler.decisions()
    assert (decision.decided_by, decision.reason.startswith("picked in")) == (DecidedBy.PICKS, True)


def test_a_1x1_convolution_becomes_a_product_if_the_file_says_so() -> None:
    """The hook then ranks the product as any other; without a pick zero mode leaves it to the library."""
    problem = with_kernel_of_1x1(listed()[0])
    handler = hooked(mode="zero", picks=picks_of(problem, KernelConfig(PRODUCT)), hardware=None)
    convolve(handler, 1, channels_last=True)
    assert [decision.op for decision in handler.decisions()] == ["mm"]
    without = hooked(mode="zero")
    convolve(without, 1, channels_last=True)
    assert [decision.op for decision in without.decisions()] == ["convolution"]


def test_a_1x1_convolution_of_channels_last_may_keep_a_template() -> None:
    """Inductor would make it a product before it lists a template; afterwards it does again."""
    plain, configs = listed()
    config = next(each for each in configs if each.template == TEMPLATE and each.num_warps == 4)
    heard: list[Any] = []
    problem = with_kernel_of_1x1(plain)
    handler = hooked(mode="adaptive", hardware=None, picks=picks_of(problem, config))
    before = conv.convert_1x1_conv_to_mm, conv.use_triton_template
    with AutotuningListener(heard.append):
        watch = convolve(handler, 1, channels_last=True)
    assert (conv.convert_1x1_conv_to_mm, conv.use_triton_template) == before
    assert "convolution" in watch.offered[0]
    assert [decision.problem for decision in handler.decisions()] == [problem]


def with_kernel_of_1x1(problem: Problem) -> Problem:
    """Return the 1 x 1 convolution of the same sizes, channels last."""
    sizes = problem.inputs[0].size, (*problem.inputs[1].size[:2], 1, 1)
    specs = tuple(TensorSpec("float32", each, convolution_strides(each, channels_last=True)) for each in sizes)
    return Problem.create("convolution", specs, {**dict(problem.scalars), "padding": 0})


@pytest.mark.parametrize("settings", [{"dynamic": True}, {"channels_last": True}])
def test_another_problem_has_no_pick(settings: dict[str, Any]) -> None:
    """A measurement at one size says nothing about all, and one of a memory format nothing about the other."""
    problem, configs = listed()
    handler = hooked(mode="zero", picks=picks_of(problem, configs[1]), hardware=None)
    watch = convolve(handler, **settings)
    assert watch.timed == []
    assert [decision.decided_by for decision in handler.decisions()] == [DecidedBy.VENDOR]


def test_picks_of_another_torch_are_missed(caplog: pytest.LogCaptureFixture) -> None:
    """A template may have changed since; one line says so, and the vendor's kernel is kept."""
    problem, configs = listed()
    picks = picks_of(problem, configs[1], "2.9.0")
    handler = hooked(mode="zero", hardware=None, picks=picks)
    with caplog.at_level(logging.WARNING, "diode_integration"):
        convolve(handler)
    assert handler.get_stats()["picks_missed"] == 1
    assert sum("torch 2.9.0" in message for message in caplog.messages) == 1
    vendors = hooked(mode="zero", hardware=None, picks=picks_of(problem, configs[0], "2.9.0"))
    convolve(vendors)
    assert [decision.decided_by for decision in vendors.decisions()] == [DecidedBy.PICKS]


def test_a_template_that_inductor_does_not_list() -> None:
    """The vendor's kernel stands in, and the miss is counted."""
    problem, configs = listed()
    unknown = replace(configs[1], block_m=4096)
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem, unknown))
    watch = convolve(handler)
    assert (watch.left, watch.timed) == ([["convolution"]], [])
    assert handler.get_stats()["picks_missed"] == 1


def test_a_failure_costs_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with a call, Inductor lowers it."""
    problem, configs = listed()
    handler = hooked(mode="zero", hardware=None, picks=picks_of(problem, configs[1]))
    monkeypatch.setattr("diode_integration.convolution.problem_of_call", lambda _given: 1 / 0)
    assert convolve(handler).timed == []
    assert handler.get_stats()["fallback_error"] == 1


@pytest.mark.parametrize(
    ("size", "weight", "settings"),
    [
        ((2, 16, 20, 20), (32, 16, 1, 1), {"stride": 2}),
        ((2, 16, 20, 20), (16, 1, 3, 3), {"padding": 1, "groups": 16}),
        ((2, 1, 28, 28), (8, 1, 3, 3), {"padding": 1}),
    ],
)
@pytest.mark.parametrize("layout_optimization", [True, False])
def test_contiguous_weights_of_an_image_of_channels_last(
    size: tuple[int, ...],
    weight: tuple[int, ...],
    settings: dict[str, Any],
    layout_optimization: bool,  # noqa: FBT001 - a case
    tmp_path: Path,
) -> None:
    """Some have both memory formats, so what a compile records is what the next compile looks up."""
    image = torch.randn(size).to(memory_format=torch.channels_last)
    weights = torch.randn(weight)

    def compiled(handler: Any) -> None:
        options = {**SETTINGS, "layout_optimization": layout_optimization, "conv_1x1_as_mm": False}
        with watching(**options), install(handler):
            compile_and_run(lambda x, w: torch.nn.functional.conv2d(x, w, **settings), image, weights)

    path = tmp_path / "picks.json"
    with lock(path, device="cpu"):
        compiled(hooked(mode="zero", unknown="stock"))
    handler = hooked(mode="adaptive", hardware=None, picks=path)
    compiled(handler)
    assert handler.get_stats()["picked_from_file"] == 1


def test_a_failure_before_the_lowering_costs_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hook does to Inductor is private to torch, and may be gone in another version."""
    problem, configs = listed()
    for config in configs[:2]:
        handler = hooked(mode="zero", hardware=None, picks=picks_of(problem, config))
        with monkeypatch.context() as broken:
            for name in ("pointwise_convolutions_kept", "patched"):
                broken.setattr(f"diode_integration.convolution.{name}", lambda **_: 1 / 0)
            convolve(handler)
        assert handler.get_stats()["fallback_error"] == 1


def test_choices_are_locked(tmp_path: Path) -> None:
    """A picks file of a block of compiles has convolutions that Inductor timed, and serves the next compile."""
    path = tmp_path / "picks.json"
    with lock(path, device="cpu"):
        convolve(hooked(mode="zero", unknown="stock"), run_vendor=False)
    [pick] = read_picks(path).picks.values()
    assert pick.problem.op == "convolution"
    handler = hooked(mode="adaptive", hardware=None, picks=path)
    assert convolve(handler).timed == []
    assert handler.get_stats()["picked_from_file"] == 1
