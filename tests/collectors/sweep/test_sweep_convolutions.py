"""A sweep over Inductor's real list for convolutions; no template runs on this CPU, so a script says their times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from test_sweep_triton import scripted
from torch._inductor.kernel import conv

from diode_collectors.problems.problem import parse_problem
from diode_store.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("sweeps")
VENDOR, PRODUCT, TEMPLATE = "aten::convolution", "aten::conv1x1_via_mm", "triton::convolution2d"


@pytest.fixture(autouse=True)
def _precision_stays() -> Iterator[None]:
    """Let no later test compute in another precision."""
    before = torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("text", ["convolution:2x16x32x32:32x3x3/tf32", "convolution:2x16x32x32:32x3x3/fp32"])
def test_the_precision_of_everything_else_stays(text: str) -> None:
    """Inductor's templates follow cuDNN's as a whole, which is unset in a user's process."""
    from diode_collectors.sweep.lane.takeover import allow_tf32

    cudnn: Any = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), getattr(cudnn, "fp32_precision", None)
    problem = parse_problem(text)
    allow_tf32(problem, on_cpu=True)
    assert (torch.get_float32_matmul_precision(), getattr(cudnn, "fp32_precision", None)) == before
    assert cudnn.allow_tf32 is problem.allow_tf32


@pytest.mark.parametrize(
    ("text", "templates"),
    [
        ("convolution:2x16x32x32:32x3x3/nt/fp32/stride2/padding1", {VENDOR, TEMPLATE}),
        ("convolution:2x16x32x32:32x3x3/tt/fp32/padding1", {VENDOR, TEMPLATE}),
        ("convolution:2x16x32x32:32x3x3/nt/tf32/padding1", {VENDOR, TEMPLATE}),
        ("convolution:2x16x32x32:16x3x3/nt/fp32/padding1/groups16", {VENDOR, TEMPLATE}),
        ("convolution:2x16x32x32:32x1x1/nt/fp32", {VENDOR, PRODUCT, TEMPLATE}),
        ("convolution:2x16x32x32:32x1x1/tt/fp32", {VENDOR, PRODUCT, TEMPLATE}),
        ("convolution:2x16x8x16x16:32x3x3x3/tt/fp32", {VENDOR, "triton::convolution3d"}),
    ],
)
def test_its_record_is_the_one_inductor_makes(text: str, templates: set[str], tmp_path: Path) -> None:
    """The vendor's kernel, the templates, and the product that a 1 x 1 convolution is, in the format asked for."""
    problem = parse_problem(text)
    assert str(problem) == text
    with scripted(tmp_path) as (measuring, _):
        found = measuring.measure(problem)
    assert found.measurement is not None, found.silent
    assert found.measurement.problem.key == problem.problem().key
    assert found.measurement.problem.shape == problem.shape
    timings = found.measurement.timings
    assert {timing.config.template for timing in timings} == templates
    assert {timing.outcome for timing in timings} == {Outcome.OK}
    assert all(not timing.config.kwargs for timing in timings), "sizes are the problem's, not the kernel's"


@pytest.mark.parametrize(
    "text", ["convolution:2x16x32x32:32x3x3/nt/fp32/padding2/dilation2", "convolution:2x16x32:32x3/tt/fp32"]
)
def test_nothing_to_choose(text: str, tmp_path: Path) -> None:
    """Inductor has no template for a dilation or for signals; the vendor's kernel alone can be timed nevertheless."""
    with scripted(tmp_path) as (measuring, _):
        assert measuring.measure(parse_problem(text)).silent == "Inductor had one choice only"
    with scripted(tmp_path, space="VENDOR") as (measuring, _):
        found = measuring.measure(parse_problem(text))
    assert found.measurement is not None, found.silent
    assert [timing.config.template for timing in found.measurement.timings] == [VENDOR]


def test_inductor_is_restored(tmp_path: Path) -> None:
    """After a sweep 1 x 1 convolutions are products again."""
    before = conv.convert_1x1_conv_to_mm, conv.use_triton_template
    with scripted(tmp_path) as (measuring, _):
        assert conv.convert_1x1_conv_to_mm is not before[0]
        measuring.measure(parse_problem("convolution:2x16x32x32:32x1x1/fp32"))
    assert (conv.convert_1x1_conv_to_mm, conv.use_triton_template) == before
