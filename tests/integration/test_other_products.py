"""Products beside mm, addmm and bmm: scaled float8, int8, and the sum of two products."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hooked import hooked, watching

from diode_integration.decide.decision import DecidedBy
from diode_integration.install import install
from inductor_harness import compile_and_run
from stand_ins import DOMAIN, TileModel, card_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_integration.decide.decision import Decision

M, N, K = 128, 256, 512
OPS = ("scaled_mm", "int_mm", "mm_plus_mm")
KNOWS_ALL = replace(
    DOMAIN,
    ops=(*DOMAIN.ops, *OPS),
    dtypes=(*DOMAIN.dtypes, "float8_e4m3fn", "int8"),
    templates=(*DOMAIN.templates, "triton::mm_plus_mm", *(f"aten::_{op}" for op in OPS)),
)
FP8 = torch.float8_e4m3fn


def values(rows: int, columns: int) -> torch.Tensor:
    """Return small random numbers."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


def decided(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, **times: float) -> tuple[Decision, list[str]]:
    """Compile a function of one product in zero mode, and return the decision and what was left."""
    model = TileModel(card=card_of(KNOWS_ALL), **times)
    handler = hooked(model, mode="zero")
    with watching(run_vendor=True) as watch, install(handler):
        compile_and_run(function, *inputs)
    (decision,) = handler.decisions()
    return decision, watch.left[0]


@pytest.mark.parametrize("fast_accum", [False, True])
def test_a_scaled_product_is_told_by_its_scales(*, fast_accum: bool) -> None:
    """The problem has the recipe, the accumulation and the output's dtype."""
    a, b = values(M, K).to(FP8), values(N, K).to(FP8).t()
    scales = torch.rand(M, 1), torch.rand(1, N)

    def scaled(*inputs: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(*inputs, out_dtype=torch.bfloat16, use_fast_accum=fast_accum)

    decision, left = decided(scaled, a, b, *scales, vendor_us=50.0)
    assert decision.decided_by is DecidedBy.MODEL
    assert decision.problem is not None
    wanted = {"scaling": "row", "out_dtype": "bfloat16", **({"fast_accum": True} if fast_accum else {})}
    assert dict(decision.problem.shape.dimensions) == wanted
    assert decision.problem.shape.layout == "nt"
    assert [name.startswith("triton") for name in left] == [True]
    assert decision.chosen[0].config.use_fast_accum is fast_accum


def test_a_product_of_bytes() -> None:
    """The pick is a Triton kernel, and the problem has 8-bit inputs."""
    a, b = (values(M, K) * 10).to(torch.int8), (values(K, N) * 10).to(torch.int8)
    decision, left = decided(torch._int_mm, a, b, vendor_us=50.0)
    assert decision.problem is not None
    assert (decision.op, decision.problem.shape.dtype, decision.problem.shape.out_dtype) == ("int_mm", "int8", "int32")
    assert [name.startswith("triton") for name in left] == [True]


@pytest.mark.parametrize(("vendor_us", "kernel"), [(50.0, "triton::mm_plus_mm"), (1.0, "aten::_mm_plus_mm")])
def test_a_sum_of_two_products(vendor_us: float, kernel: str) -> None:
    """Inductor makes one op of both products, and the hook picks one kernel for it."""
    a, b = values(M, K), values(K, N)
    decision, _ = decided(lambda a, b, c, d: a @ b + c @ d, a, b, a + 1, b - 1, vendor_us=vendor_us)
    assert decision.op == "mm_plus_mm"
    assert decision.chosen[0].config.template == kernel
