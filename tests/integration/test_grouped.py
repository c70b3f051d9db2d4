"""Grouped products: the handler chooses among the configs that Inductor lists without asking it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import torch
from hooked import benchmarks, hooked, watching
from torch._inductor.kernel import mm_grouped

from diode_integration.decide.decision import DecidedBy
from diode_integration.install import install
from inductor_harness import FAKE_MULTIPROCESSORS, compile_and_run
from stand_ins import DOMAIN, TileModel, card_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hooked import Watch

    from diode_integration.choices import DiodeInductorChoices

GROUPS, ROWS, N, K = 4, 256, 128, 64
SHARED_MEMORY_BYTES = 232_448
KNOWS_GROUPS = replace(
    DOMAIN, ops=(*DOMAIN.ops, "grouped_mm"), templates=(*DOMAIN.templates, "triton::grouped_mm", "aten::_grouped_mm")
)


def model(**times: float) -> TileModel:
    """Return a model that knows grouped products."""
    return TileModel(card=card_of(KNOWS_GROUPS), favourite=(64, 64, 64), **times)


@contextmanager
def listed_as_on_a_gpu() -> Iterator[None]:
    """Have Inductor list the templates of a Hopper GPU for tensors on the CPU."""
    with ExitStack() as stack:
        for name, value in (
            ("can_use_triton_kernel", True),
            ("get_gpu_shared_memory", SHARED_MEMORY_BYTES),
            ("get_num_sms", FAKE_MULTIPROCESSORS),
        ):
            stack.enter_context(mock.patch.object(mm_grouped, name, return_value=value))
        yield


def compiled(handler: DiodeInductorChoices | None, *, by: str = "forward", **watched: object) -> Watch:
    """Compile a grouped product with a handler installed, and check the result."""
    generator = torch.Generator().manual_seed(0)
    offsets = torch.arange(1, GROUPS + 1, dtype=torch.int32) * (ROWS // GROUPS)
    rows = torch.randn(ROWS, K, generator=generator).bfloat16()
    weights = torch.randn(GROUPS, N, K, generator=generator).bfloat16().transpose(1, 2)
    gradient = torch.randn(ROWS, N, generator=generator).bfloat16()
    a, b = (rows, weights) if by == "forward" else (rows.t(), gradient)
    with watching(**watched) as watch, listed_as_on_a_gpu(), ExitStack() as stack:
        if handler is not None:
            stack.enter_context(install(handler))
        result = compile_and_run(torch._grouped_mm, a, b, offsets)
    torch.testing.assert_close(result, torch._grouped_mm(a, b, offsets))
    return watch


def test_stock_lists_many() -> None:
    """Without a handler all configs of Inductor's are candidates."""
    watch = compiled(None)
    assert len(watch.left[0]) > 10
    assert benchmarks() == 1


@pytest.mark.parametrize("by", ["forward", "gradient"])
def test_zero_mode_leaves_the_predicted_kernel(by: str) -> None:
    """One template is made, and nothing is benchmarked."""
    handler = hooked(model(vendor_us=50.0), mode="zero")
    watch = compiled(handler, by=by, run_vendor=True)
    assert [len(names) for names in watch.offered] == [2]  # the vendor kernel and the pick
    assert [name.startswith("triton_grouped_mm") for name in watch.left[0]] == [True]
    (decision,) = handler.decisions()
    assert decision.decided_by is DecidedBy.MODEL
    assert decision.problem is not None
    assert dict(decision.problem.shape.dimensions)["form"] == {"forward": "2d3d", "gradient": "2d2d"}[by]
    (chosen,) = decision.chosen
    config = chosen.config
    assert (config.template, config.block_m, config.block_n, config.block_k) == ("triton::grouped_mm", 64, 64, 64)


def test_zero_mode_keeps_a_faster_vendor_kernel() -> None:
    """No template is made of any config."""
    handler = hooked(model(vendor_us=1.0), mode="zero")
    watch = compiled(handler)
    assert (watch.offered, benchmarks()) == ([["_grouped_mm"]], 0)
    assert [decision.chosen[0].config.template for decision in handler.decisions()] == ["aten::_grouped_mm"]


def test_top_k_benchmarks_as_many() -> None:
    """The chosen few and the vendor kernel are timed."""
    handler = hooked(model(vendor_us=50.0), mode="top_k", top_k_configs=3, clock="inductor")
    watch = compiled(handler)
    assert len(watch.left[0]) == len(watch.timed) == 3 + ("_grouped_mm" in watch.left[0])


def test_a_model_that_does_not_know_the_op_abstains() -> None:
    """Zero mode keeps the vendor kernel, and another mode leaves the list to Inductor."""
    zero = hooked(mode="zero")
    assert compiled(zero).offered == [["_grouped_mm"]]
    assert [decision.decided_by for decision in zero.decisions()] == [DecidedBy.VENDOR]
    stock = hooked(mode="adaptive", unknown="stock")
    assert len(compiled(stock).left[0]) > 10
    assert [decision.decided_by for decision in stock.decisions()] == [DecidedBy.STOCK]


def test_observing_changes_nothing() -> None:
    """Inductor keeps its list, and the decision is recorded as observed."""
    handler = hooked(model(vendor_us=50.0), mode="zero", observe=True)
    assert len(compiled(handler).left[0]) > 10
    (decision,) = handler.decisions()
    assert decision.observed
    assert decision.chosen[0].config.template == "triton::grouped_mm"


def test_a_failing_handler_leaves_the_list_to_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error inside the hook is logged, and the compile goes on with everything."""
    handler = hooked(model(), mode="zero")
    monkeypatch.setattr(handler, "choose", mock.Mock(side_effect=ZeroDivisionError("division by zero")))
    assert len(compiled(handler).left[0]) > 10
    assert handler.get_stats()["fallback_error"] == 1


def test_uninstalled_the_functions_are_inductors_own() -> None:
    """The lowering and the list are those of before."""
    prune, lowering = (
        mm_grouped.early_config_prune,
        torch._inductor.lowering.lowerings[torch.ops.aten._grouped_mm.default],
    )
    with install(hooked()):
        assert mm_grouped.early_config_prune is not prune
    assert mm_grouped.early_config_prune is prune
    assert torch._inductor.lowering.lowerings[torch.ops.aten._grouped_mm.default] is lowering
