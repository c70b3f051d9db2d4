"""Previews of scaled, int8 and grouped products, of sums, and of ops that no model ranks, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from torch._inductor.kernel import mm_grouped

from diode_collectors.problems.problem import parse_problem
from diode_integration import preview
from diode_integration.choices import DiodeInductorChoices
from diode_integration.decide.decision import DecidedBy
from diode_integration.preview import Preview, Previewer
from diode_store.devices.known import known_device
from stand_ins import KNOWS_OTHERS, TileModel, card_of

if TYPE_CHECKING:
    from diode_store.records import Hardware

H200 = known_device("NVIDIA H200")
A100 = known_device("NVIDIA A100-SXM4-80GB")


@pytest.fixture(autouse=True)
def _knowing_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have previews ask a model that knows these ops."""
    model = TileModel(card=card_of(KNOWS_OTHERS), vendor_us=50.0)

    def handler(_path: object = None, **options: object) -> DiodeInductorChoices:
        return DiodeInductorChoices(**{"model": model, **options})

    monkeypatch.setattr(preview, "DiodeInductorChoices", handler)


def of(*shapes: str, hardware: Hardware | None = H200) -> list[Preview]:
    """Return the previews of products."""
    assert hardware is not None
    return list(Previewer(hardware, top=200).previews([parse_problem(each).problem() for each in shapes]))


@pytest.mark.parametrize(
    ("shape", "template", "least"),
    [
        ("scaled_mm:16x6144x4096/row/fast", "triton::mm", 100),
        ("scaled_mm:64x256x512/tensor/bias", "triton::mm", 100),
        ("int_mm:128x256x512", "triton::mm", 8),
        ("mm_plus_mm:64x64x64", "triton::mm_plus_mm", 6),
        ("grouped_mm:2048x4096x2048:8", "triton::grouped_mm", 20),
        ("grouped_mm:256x4096x2048:8/2d2d", "triton::grouped_mm", 20),
        ("grouped_mm:256x256x512:4/3d2d", "triton::grouped_mm", 20),
        ("grouped_mm:256x256x128:4/3d3d", "triton::grouped_mm", 20),
        ("scaled_grouped_mm:2048x4096x2048:8/fast", "triton::scaled_grouped_mm", 20),
    ],
)
def test_a_model_ranks_the_kernels_of_a_gpu(shape: str, template: str, least: int) -> None:
    """Beside the vendor kernel stands what Inductor lists on a GPU, with the accumulation that the product asks for."""
    (found,) = of(shape)
    assert found.decision is not None
    assert found.decision.decided_by is DecidedBy.MODEL
    assert found.decision.problem is not None
    assert found.decision.problem.shape == found.problem.shape
    assert found.decision.candidates > least
    listed = [each.config for each in found.ranked if not each.config.is_vendor]
    assert {config.template for config in listed} == {template}
    if "scaled" in shape or "grouped" in shape:
        assert {config.use_fast_accum for config in listed} == {"fast" in shape}


@pytest.mark.quick(1)
def test_scales_in_blocks_have_the_vendor_kernel_alone() -> None:
    """Inductor has only a TMA template for them, which it lists on request."""
    (found,) = of("scaled_mm:16x256x512/1x128+128x128")
    assert found.decision is not None
    assert [each.config.template for each in found.ranked] == ["aten::_scaled_mm"]


def test_accumulation_tells_lists_apart() -> None:
    """Two products of one class share a list, but not how they add up."""
    fast, exact = of("scaled_mm:64x256x512/row/fast", "scaled_mm:64x256x512/row")
    for found, is_fast in ((fast, True), (exact, False)):
        assert {each.config.use_fast_accum for each in found.ranked if not each.config.is_vendor} == {is_fast}


def test_shared_memory_is_the_devices() -> None:
    """A GPU with half the shared memory has fewer grouped kernels; the functions of Inductor stay as they are."""
    assert H200 is not None
    before = vars(mm_grouped).copy()
    small = replace(H200, name="NVIDIA H200 small", shared_memory_per_block_bytes=100_000)
    known, few = (of("grouped_mm:2048x4096x2048:8", hardware=each)[0].decision for each in (H200, small))
    assert known is not None
    assert few is not None
    assert 1 < few.candidates < known.candidates
    assert vars(mm_grouped) == before


def test_a_compile_knows_no_skew() -> None:
    """Groups of different sizes are decided as if equal."""
    skewed, equal = of("grouped_mm:2048x4096x2048:8/skew1", "grouped_mm:2048x4096x2048:8")
    assert skewed.decision is not None
    assert equal.decision is not None
    assert skewed.problem.shape.dimension("skew") == 1
    assert skewed.ranked == equal.ranked


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("shape", "needed"),
    [("scaled_mm:16x256x512", "8.9"), ("grouped_mm:64x256x512:4", "9.0"), ("scaled_grouped_mm:64x256x512:4", "9.0")],
)
def test_a_gpu_without_kernels(shape: str, needed: str) -> None:
    """An A100 has no float8 and no grouped kernels; that is said, and others are asked about as ever."""
    refused, other = of(shape, "mm:64x64x64", hardware=A100)
    assert refused.decision is None
    op = shape.partition(":")[0]
    assert refused.reason == f"{op} needs compute capability {needed}, and NVIDIA A100-SXM4-80GB has 8.0"
    assert other.decision is not None


def test_a_model_of_attention_names_one_config() -> None:
    """The configs are Inductor's for that GPU, of those that fit the mask, with the records' names."""
    texts = ("flex_attention:4x16x2048x64/causal", "flex_decoding:8x32x1x128:8x8192")
    for found in of(*texts, "flex_attention_backward:4x16x2048x64/causal"):
        assert found.decision is not None
        assert (found.decision.decided_by, len(found.decision.chosen)) == (DecidedBy.MODEL, 1)
        assert {each.config.template for each in found.ranked} == {f"triton::{found.problem.op}"}
        times = [each.predicted_us or 0.0 for each in found.ranked]
        assert times == sorted(times)
        assert found.decision.chosen[0] in found.ranked
    small, decoded = of("flex_attention:4x16x2048x64/causal/block64", texts[1])
    assert {each.config.block_m for each in small.ranked} <= {16, 32, 64}
    assert {each.config.block_m for each in decoded.ranked} == {16}
    (unknown,) = of("flex_attention:4x16x2048x80/causal")
    assert "head size 64, 96, 128, 192, 256, not 80" in unknown.reason


def test_a_similar_gpu_has_to_gain_more() -> None:
    """No model learned from an H100; the decision names the device that one learned from."""
    (found,) = of("flex_decoding:8x32x1x128:8x8192", hardware=known_device("NVIDIA H100 80GB HBM3"))
    assert found.decision is not None
    assert found.decision.similar_to == "NVIDIA H200"
