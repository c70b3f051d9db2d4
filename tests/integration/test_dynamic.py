"""Matrix products of dynamic size, in real compiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hooked import hooked, watching
from torch._inductor import config as inductor_config

from diode_collectors.inductor import indexing
from diode_integration.decide.decision import DecidedBy
from diode_integration.decide.ranking import SizeRange
from diode_integration.install import install
from diode_store.records import is_vendor_template
from diode_trainer.policy import ANY_RATIO
from inductor_harness import quiet_torch
from stand_ins import TileModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape

VENDOR_ALONE = {"max_autotune_gemm_backends": "ATEN", "fx_graph_cache": False}
B = torch.randn(512, 256, generator=torch.Generator().manual_seed(1))


@dataclass
class TallModel(TileModel):
    """Predicts the least time for a tile as tall as the matrix: each power of two away from it costs 10%."""

    def predict_us(self, shape: ProblemShape, _device: Hardware, columns: ConfigColumns) -> NDArray[np.float64]:
        """Return microseconds, shape (n,)."""
        self.asked += 1
        away = np.abs(np.log2(np.maximum(columns.block_m, 1) / shape.m))
        wide = 0.01 * np.abs(np.log2(np.maximum(columns.block_n, 1) / 64))
        return np.where(columns.template_mask(is_vendor_template), 1000.0, 20.0 * 1.1 ** (away + wide))


def rows(count: int, **stated: int) -> torch.Tensor:
    """Return a matrix of ``count`` rows, dynamic if a range of them is stated."""
    a = torch.randn(count, 512, generator=torch.Generator().manual_seed(count))
    if stated:
        torch._dynamo.mark_dynamic(a, 0, **stated)
    return a


def compiled() -> Any:
    """Return a compiled product, from nothing."""
    torch._dynamo.reset()
    return torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")


@torch.no_grad()
def test_a_stated_range_is_decided_by_worst_regret() -> None:
    """Over 2 to 1024 rows the tile of 32 is never far off, although the hint of 16 rows would have 16."""
    handler = hooked(TallModel(), mode="zero")
    a = rows(16, min=2, max=1024)
    with watching(run_vendor=True), install(handler):
        product = compiled()(a, B)
    torch.testing.assert_close(product, a @ B, rtol=1e-4, atol=1e-3)
    (decision,) = handler.decisions()
    assert decision.problem is not None
    assert decision.problem.shape.m == 16
    (kept,) = decision.chosen
    assert kept.config.block_m == 32
    assert "worst regret" in decision.reason
    assert decision.reason.endswith("in 2 to 1,024")


@torch.no_grad()
@pytest.mark.parametrize("most", [128, 1024])
def test_the_upper_end_of_a_range_must_be_indexed_too(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Triton's kernels would read memory outside the largest matrices the vendor's kernel is kept for all."""
    monkeypatch.setattr(indexing, "k_has_32_bits", lambda: True)
    monkeypatch.setattr(indexing, "MOST_INDEXED", 512 * 1024)  # K times the stride of a transposed A of 1024 rows
    handler = hooked(TallModel(), mode="zero")
    a = torch.randn(512, 16).t()
    torch._dynamo.mark_dynamic(a, 0, min=2, max=most)
    with watching(run_vendor=True), install(handler):
        compiled()(a, B)
    assert handler.get_stats().get("fallback_overflow", 0) == (most == 1024)


@torch.no_grad()
def test_blocks_fit_the_upper_end_of_a_range() -> None:
    """Inductor scales blocks down to the hint; where 4096 rows may come, larger tiles are ranked at 16 rows too."""
    handler = hooked(TallModel(), mode="zero")
    with watching(run_vendor=True), install(handler):
        compiled()(rows(600, min=512, max=4096), B)
        compiled()(rows(16, min=2, max=4096), B)
        unstated = rows(16)
        torch._dynamo.mark_dynamic(unstated, 0)
        compiled()(unstated, B)
    ranged, wide, at_hint = handler.decisions()
    assert [decision.chosen[0].config.block_m for decision in (ranged, wide, at_hint)] == [128, 32, 16]
    assert ranged.candidates == wide.candidates > at_hint.candidates
    assert "worst regret" not in at_hint.reason


@torch.no_grad()
@pytest.mark.parametrize(
    ("dynamic", "once"),
    [
        pytest.param(None, True, id="K is a number: one iteration, whatever the stages"),
        pytest.param({}, False, id="K is an argument"),
        pytest.param({"min": 4, "max": 16}, False, id="of a stated range"),
    ],
)
def test_where_k_is_an_argument_a_number_of_stages_makes_a_kernel(dynamic: dict[str, int] | None, once: bool) -> None:  # noqa: FBT001
    """Its loop may have many iterations then, so that a kernel is not another's under a second name."""
    handler = hooked(TallModel(), mode="top_k", top_k_configs=40, performance_threshold=ANY_RATIO)
    a, b = torch.randn(64, 16), torch.randn(16, 256)
    if dynamic is not None:
        torch._dynamo.mark_dynamic(a, 1, **dynamic)
        torch._dynamo.mark_dynamic(b, 0, **dynamic)
    with watching(run_vendor=True), install(handler):
        compiled()(a, b)
    (decision,) = handler.decisions()
    kept = [choice.config for choice in decision.chosen if not choice.config.is_vendor]
    assert len(kept) > 5
    assert (len({replace(config, num_stages=1) for config in kept}) == len(kept)) is once


@dataclass
class TurningModel(TileModel):
    """Predicts the vendor's kernel to be fastest up to 16 rows, and ten times too slow above; templates are steady."""

    def predict_us(self, shape: ProblemShape, _device: Hardware, columns: ConfigColumns) -> NDArray[np.float64]:
        """Return microseconds, shape (n,)."""
        return np.where(columns.template_mask(is_vendor_template), 10.0 if shape.m <= 16 else 110.0, 11.0)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["zero", "top_k"])
def test_regret_counts_over_all_calls_of_an_op(mode: str) -> None:
    """Some versions of torch list an addmm's vendor's kernels in a call of their own, where they are always best."""
    handler = hooked(TurningModel(), mode=mode)
    bias = torch.randn(256)
    torch._dynamo.reset()
    with watching(run_vendor=True), install(handler):
        torch.compile(torch.addmm, mode="max-autotune-no-cudagraphs")(bias, rows(16, min=2, max=1024), B)
    (decision,) = handler.decisions()
    assert decision.chosen[0].config.template == "triton::mm"
    assert "worst regret 10.0% over" in decision.reason


@torch.no_grad()
def test_sizes_at_which_nothing_runs_do_not_count() -> None:
    """A prediction of for ever at one size is no reason against every candidate."""
    predicted = np.array([[10.0, 12.0], [np.inf, np.inf], [30.0, 24.0]])
    at_hint, note = SizeRange(predicted, "s in 2 to 9").worst_regret_us()
    assert at_hint.tolist() == pytest.approx([12.5, 12.0])
    assert note == "worst regret 20.0% over s in 2 to 9"


@torch.no_grad()
def test_without_a_range_the_hint_decides() -> None:
    """Rows that became dynamic by themselves count as what was there when Inductor compiled."""
    handler = hooked(TallModel(), mode="zero")
    with watching(run_vendor=True), install(handler):
        product = compiled()
        for count in (64, 32, 128):
            a = rows(count)
            torch.testing.assert_close(product(a, B), a @ B, rtol=1e-4, atol=1e-3)
    static, dynamic = handler.decisions()
    assert [d.problem.shape.m for d in (static, dynamic) if d.problem] == [64, 32]
    assert [d.chosen[0].config.block_m for d in (static, dynamic)] == [64, 32]


def norm_of_product(a: torch.Tensor) -> torch.Tensor:
    """Return something of whose backward graph Inductor guards the number of rows."""
    return torch.nn.functional.layer_norm(a @ B, (B.shape[1],)).square().sum()


@pytest.mark.parametrize("guarded", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_guard_states_nothing(guarded: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """A condition on the number of rows, of the program's or of Inductor's own, leaves the decision to the hint."""
    function = (lambda a: norm_of_product(a) if a.shape[0] < 1000 else a.sum()) if guarded else norm_of_product
    handler = hooked(TileModel(vendor_us=1.0), mode="zero")
    torch._dynamo.reset()
    with quiet_torch(), install(handler), inductor_config.patch(VENDOR_ALONE):
        product = torch.compile(function, options={"max_autotune_gemm": True})
        for count in (48, 16):
            product(rows(count).requires_grad_()).backward()
    assert len(handler.decisions()) == 4
    assert not [decision.reason for decision in handler.decisions() if "worst regret" in decision.reason]


def test_a_stated_range_is_the_backward_graphs_too() -> None:
    """It was stated for both."""
    handler = hooked(TileModel(vendor_us=1.0), mode="zero")
    torch._dynamo.reset()
    with quiet_torch(), install(handler), inductor_config.patch(VENDOR_ALONE):
        product = torch.compile(torch.mm, options={"max_autotune_gemm": True})
        a = rows(16).requires_grad_()
        torch._dynamo.mark_dynamic(a, 0, min=2, max=64)
        product(a, B).backward(torch.ones(16, 256))
    forward, backward = handler.decisions()
    assert all("worst regret" in decision.reason for decision in (forward, backward))
    assert forward.chosen[0].predicted_us == 1.0  # at the hint


@torch.no_grad()
def test_recompiles_ask_the_model_once() -> None:
    """A graph that is compiled again, with the same hint, is decided by what was predicted the first time."""
    model = TallModel()
    handler = hooked(model, mode="zero")
    with watching(run_vendor=True), install(handler):
        compiled()(rows(64, min=2, max=1024), B)
        asked = model.asked
        compiled()(rows(64, min=2, max=1024), B)
    first, again = handler.decisions()
    assert (first.chosen, first.reason) == (again.chosen, again.reason)
    assert model.asked == asked


@torch.no_grad()
def test_sizes_outside_the_domain_are_left_out() -> None:
    """Of a range that goes beyond what the model knows, the part that it knows decides, and the reason says so."""
    handler = hooked(TallModel(), mode="zero")
    with watching(run_vendor=True), install(handler):
        compiled()(rows(64, min=2, max=100_000), B)
    (decision,) = handler.decisions()
    assert decision.decided_by is DecidedBy.MODEL
    assert decision.reason.endswith("in 2 to 100,000 (2 of 6 sizes are outside what the model knows)")


@torch.no_grad()
@pytest.mark.parametrize(("mode", "chooser"), [("zero", DecidedBy.VENDOR), ("top_k", DecidedBy.STOCK)])
def test_sizes_that_depend_on_data_are_nobodys(mode: str, chooser: DecidedBy) -> None:
    """The model abstains, whatever Inductor takes such a size for."""
    handler = hooked(TallModel(), mode=mode)
    a = rows(64)
    torch._dynamo.decorators.mark_unbacked(a, 0)
    with watching(run_vendor=True), install(handler):
        product = compiled()(a, B)
    torch.testing.assert_close(product, a @ B, rtol=1e-4, atol=1e-3)
    (decision,) = handler.decisions()
    assert (decision.decided_by, decision.problem) == (chooser, None)
    assert decision.reason.startswith("unbacked: sizes that depend on data have no hint: u0")
    assert handler.get_stats()["fallback_unbacked"] == 1
