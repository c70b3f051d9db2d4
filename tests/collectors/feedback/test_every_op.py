"""Every matrix product that Inductor autotunes, as a real compile on this CPU reports it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diode_collectors.inductor.adapter import config_of_ktc
from diode_store.records import Outcome, TensorSpec
from diode_store.wire.codec import decode, encode
from inductor_events import events, with_cuda_list

F32, BF16, F8 = "float32", "bfloat16", "float8_e4m3fn"


def normal(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a row-major tensor."""
    return torch.zeros(size).to(dtype)


def product_of_strided(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply every other row of ``a`` by a transposed ``b``."""
    return torch.mm(a[::2], b.t())


def scaled(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """Multiply in float8."""
    return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16)


def plus(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Add two products."""
    return torch.mm(a, b) + torch.mm(c, d)


CASES: dict[str, tuple[Any, tuple[torch.Tensor, ...], tuple[TensorSpec, ...], tuple[Any, ...], str, str]] = {
    "mm": (
        product_of_strided,
        (normal(128, 96), normal(48, 96)),
        (TensorSpec(F32, (64, 96), (192, 1)), TensorSpec(F32, (96, 48), (1, 96))),
        (),
        "aten::mm",
        "triton::mm",
    ),
    "addmm": (
        lambda c, a, b: torch.addmm(c, a, b, alpha=2, beta=0.5),
        (normal(48, dtype=torch.bfloat16), normal(64, 96, dtype=torch.bfloat16), normal(96, 48, dtype=torch.bfloat16)),
        (
            TensorSpec(BF16, (64, 48), (0, 1)),
            TensorSpec(BF16, (64, 96), (96, 1)),
            TensorSpec(BF16, (96, 48), (48, 1)),
        ),
        (("alpha", 2), ("beta", 0.5)),
        "aten::addmm",
        "triton::mm",
    ),
    "bmm": (
        lambda a, b: torch.bmm(a.transpose(0, 1), b),
        (normal(64, 4, 32), normal(4, 32, 48)),
        (TensorSpec(F32, (4, 64, 32), (32, 128, 1)), TensorSpec(F32, (4, 32, 48), (1536, 48, 1))),
        (),
        "aten::bmm",
        "triton::bmm",
    ),
    "baddbmm": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=2),
        (normal(64, 48), normal(4, 64, 32), normal(4, 32, 48)),
        (
            TensorSpec(F32, (4, 64, 48), (0, 48, 1)),
            TensorSpec(F32, (4, 64, 32), (2048, 32, 1)),
            TensorSpec(F32, (4, 32, 48), (1536, 48, 1)),
        ),
        (("beta", 2),),
        "aten::baddbmm",
        "triton::bmm",
    ),
    "scaled_mm": (
        scaled,
        (
            normal(64, 96, dtype=torch.float8_e4m3fn),
            normal(48, 96, dtype=torch.float8_e4m3fn),
            *2 * (torch.tensor(1.0),),
        ),
        (
            TensorSpec(F8, (64, 96), (96, 1)),
            TensorSpec(F8, (96, 48), (1, 96)),
            TensorSpec(F32, (1, 1), (1, 1)),
            TensorSpec(F32, (1, 1), (1, 1)),
        ),
        (("out_dtype", BF16),),
        "aten::_scaled_mm",
        "triton::mm",
    ),
    "mm_plus_mm": (
        plus,
        (normal(64, 96), normal(96, 48), normal(64, 96) + 1, normal(96, 48) + 1),
        2 * (TensorSpec(F32, (64, 96), (96, 1)), TensorSpec(F32, (96, 48), (48, 1))),
        (),
        "aten::_mm_plus_mm",
        "triton::mm_plus_mm",
    ),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("deferred", [False, True], ids=["lowering", "scheduler"])
@pytest.mark.parametrize("op", CASES)
def test_each_op_is_recorded_as_it_was_timed(op: str, deferred: bool) -> None:  # noqa: FBT001 - a case
    """Sizes, strides and dtypes of every input, true scalars, the vendor's kernel and all of Triton's."""
    function, inputs, specs, scalars, vendor, triton = CASES[op]
    [measurement] = events(function, *inputs, deferred=deferred)
    assert (measurement.problem.op, measurement.problem.inputs) == (op, specs)
    assert measurement.problem.scalars == scalars
    shape = measurement.problem.shape
    assert (shape.b, shape.m, shape.n) == (4 if "bmm" in op else 1, 64, 48)
    assert [timing.runtime_us for timing in measurement.timings if timing.config.template == vendor] == [500.0]
    assert {timing.config.template for timing in measurement.timings if not timing.config.is_vendor} == {triton}
    blocks = {timing.config.block_m for timing in measurement.timings if timing.config.template == triton}
    assert {32, 64} <= blocks
    assert {timing.outcome for timing in measurement.timings} <= {Outcome.OK, Outcome.FAILED_UNSPECIFIED}
    assert measurement.extra == {}
    assert decode(encode(measurement)) == measurement


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", [torch.mm, torch.bmm])
def test_every_input_of_symbolic_size_has_numbers(function: Any) -> None:
    """With dynamic shapes sizes and strides are those that were timed."""
    batch = () if function is torch.mm else (4,)
    a, b = normal(*batch, 64, 96), normal(*batch, 96, 48)
    [fixed] = events(function, a, b)
    [dynamic] = events(function, a, b, dynamic=True)
    assert dynamic.problem == fixed.problem


def test_persistent_tma_kernels_say_what_they_are() -> None:
    """Their own arguments are kept beside the blocks."""
    inputs = normal(64, 96, dtype=torch.bfloat16), normal(96, 48, dtype=torch.bfloat16)
    seen: list[Any] = []
    look = with_cuda_list("triton::mm_persistent_tma")
    events(torch.mm, *inputs, look=lambda *call: seen.extend(config_of_ktc(ktc) for ktc in look(*call)))
    found = [config for config in seen if config.template == "triton::mm_persistent_tma"]
    assert len(found) > 20
    assert all(config.block_m and config.block_n and config.block_k and config.num_warps for config in found)
    assert {"A_ROW_MAJOR", "B_ROW_MAJOR", "NUM_SMS"} <= {name for name, _ in found[0].kwargs}
