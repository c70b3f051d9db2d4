"""Features of convolutions and of their kernels."""

from __future__ import annotations

import numpy as np
import pytest

from diode_collectors.problems.problem import parse_problem
from diode_collectors.spool.reading import measurements_in
from diode_store.candidates.columns import ConfigColumns
from diode_store.devices.known import known_device
from diode_store.records import KernelConfig
from diode_store.system.resources import bundled_data_dir
from diode_trainer.convolution_features import (
    CONFIG_FEATURES,
    PROBLEM_FEATURES,
    ConvolutionInputs,
    convolution_problem_features,
)
from diode_trainer.feature_kinds import CONVOLUTIONS, PRODUCTS, kind_of

H200 = known_device("NVIDIA H200")
assert H200 is not None


def problem_of(text: str) -> dict[str, float]:
    """Return the features of a problem by name."""
    shape = parse_problem(text).problem().shape
    return dict(zip(PROBLEM_FEATURES, convolution_problem_features(shape, H200).tolist(), strict=True))


def kernels_of(text: str, *configs: KernelConfig) -> list[dict[str, float]]:
    """Return the features of kernels by name."""
    shape = parse_problem(text).problem().shape
    found = ConvolutionInputs(shape, H200, ConfigColumns.from_configs(configs)).configs
    return [dict(zip(CONFIG_FEATURES, each, strict=True)) for each in found.T.tolist()]


def test_every_measured_kernel_has_finite_features() -> None:
    """Of whatever sizes and of whichever kernel."""
    for m in measurements_in(bundled_data_dir() / "h200-2026-11-attention-convolutions-0000.seg"):
        if m.problem.op == "convolution":
            columns = ConfigColumns.from_configs([timing.config for timing in m.timings])
            inputs = ConvolutionInputs(m.problem.shape, m.hardware, columns)
            assert inputs.configs.shape == (len(CONFIG_FEATURES), len(columns))
            assert np.isfinite(inputs.configs).all()
            assert np.isfinite(inputs.problem).all()


def test_narrow_channels_are_told() -> None:
    """The library pads channels to a multiple of 8, and loads of 16 bytes need 8 in bf16."""
    narrow, wide = (problem_of(f"convolution:8x{n}x64x64:320x3x3/padding1") for n in (4, 320))
    assert (narrow["log_padding_in"], wide["log_padding_in"]) == (1.0, 0.0)
    assert (narrow["log_access_in"], wide["log_access_in"]) == (-1.0, 0.0)
    assert narrow["log_access_out"] == 0.0
    assert problem_of("convolution:8x320x64x64:3x3x3/padding1")["log_access_out"] == -3.0


def test_groups_share_rows() -> None:
    """Channels of all groups lie side by side, so a depthwise convolution has wide rows of narrow channels."""
    found = problem_of("convolution:8x96x56x56:96x7x7/padding3/groups96")
    assert (found["log_channels"], found["log_groups"], found["log_access_in"]) == (
        0.0,
        pytest.approx(np.log2(96)),
        0.0,
    )


def test_patches_are_told() -> None:
    """Where the stride is the kernel, patches do not overlap; a kernel of 1 x 1 makes no patch."""
    texts = "64x16x16/stride16", "64x16x16/stride8", "64x1x1"
    assert [problem_of(f"convolution:8x3x224x224:{text}")["is_patch"] for text in texts] == [1.0, 0.0, 0.0]


def test_kernels_without_a_template_have_flags_alone() -> None:
    """The library's kernel and the product of a 1 x 1 convolution hide their parameters."""
    template = KernelConfig("triton::convolution2d", block_m=64, block_n=64, block_k=32, num_stages=2, num_warps=4)
    vendor, product, generated = kernels_of(
        "convolution:8x64x56x56:96x1x1",
        KernelConfig("aten::convolution"),
        KernelConfig("aten::conv1x1_via_mm"),
        template,
    )
    assert {name for name, value in vendor.items() if value} == {"is_vendor"}
    assert {name for name, value in product.items() if value} == {"is_vendor", "is_vendor_product"}
    assert (generated["is_vendor"], generated["is_generated"], generated["log_iterations"]) == (0.0, 1.0, 1.0)
    assert generated["log_padding_n"] == pytest.approx(np.log2(128 / 96))


def test_convolutions_are_a_kind_of_their_own() -> None:
    """Beside other ops nothing is one kind, and a model is one of products."""
    assert kind_of({"convolution"}) is CONVOLUTIONS
    assert kind_of({"convolution", "flex_attention"}) is PRODUCTS
