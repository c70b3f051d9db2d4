"""What follows a matrix product counts against a vendor's kernel where a template would take it in, and only there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from hooked import hooked, watching
from test_adaptive import CALIBRATION
from test_predictor import problem
from torch._inductor import config as inductor_config
from torch._inductor.exc import InductorError
from torch._inductor.graph import GraphLowering

from diode_integration.decide.ranking import Ranking
from diode_integration.inductor import products
from diode_integration.install import install
from diode_trainer.policy import Mode, Policy, Spread, select
from inductor_harness import compile_and_run
from stand_ins import H200, TileModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from diode_integration.decide.decision import Decision

SIZE = 1024
UNFUSED_US = 1.5 + 1e6 * 2 * 4 * SIZE**2 / 4.8e12
"""A launch, and a float32 result written and read at an H200's 4.8 TB/s: 3.2 us."""
VENDOR_US, TEMPLATE_US = 10.0, 11.0
"""What is predicted of the kernels alone."""

TAKEN_IN: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "relu": lambda a, b, _: F.relu(a @ b),
    "squared relu": lambda a, b, _: F.relu(a @ b) ** 2,
    "leaky relu": lambda a, b, _: F.leaky_relu(a @ b),
    "cast": lambda a, b, _: (a @ b).to(torch.bfloat16),
    "scale and shift": lambda a, b, c: (a @ b) * c[0] + 1,
    "multiplied": lambda a, b, c: (a @ b) * c,
    "multiplied by what is cheap": lambda a, b, c: (a @ b) * (F.relu(c) + 1).t(),
    "clamped and masked": lambda a, b, c: torch.where(c > 0, (a @ b).clamp(-1, 1), 0),
    "through views": lambda a, b, _: F.relu((a @ b).view(4, -1, SIZE)).transpose(0, 1),
    "bias and relu": lambda a, b, c: F.relu(torch.addmm(c[0], a, b)),
    "batched": lambda a, b, _: F.relu(torch.bmm(a[None], b[None])),
    "two of them": lambda a, b, c: (F.relu(a @ b), (a @ b) * c),
    "and another product": lambda a, b, c: F.relu(a @ b) @ c,
}
LEFT: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "nothing": lambda a, b, _: a @ b,
    "a view": lambda a, b, _: (a @ b).view(-1),
    "gelu, which computes": lambda a, b, _: F.gelu(a @ b),
    "silu, which computes": lambda a, b, _: F.silu(a @ b),
    "relu, and later a logarithm": lambda a, b, _: torch.log1p(F.relu(a @ b)),
    "a cube": lambda a, b, _: (a @ b) ** 3,
    "a sum": lambda a, b, _: (a @ b).sum(-1),
    "relu, then a sum": lambda a, b, _: F.relu(a @ b).sum(-1),
    "relu, then a normalisation": lambda a, b, c: F.layer_norm((a @ b) * c, (SIZE,)),
    "a part": lambda a, b, _: F.relu((a @ b)[:, ::2]),
    "more than there was": lambda a, b, c: (a @ b)[None] * c[:3, :1, None],
    "the result itself, too": lambda a, b, c: (a @ b, (a @ b) * c),
    "a view of the result, too": lambda a, b, c: ((a @ b).view(-1), (a @ b) * c),
    "rows chosen": lambda a, b, _: F.relu(a @ b)[torch.arange(3)],
    "a gate, which computes beside it": lambda a, b, c: (a @ b) * F.silu(c),
    "dropout, which draws beside it": lambda a, b, _: F.dropout(a @ b),
    "a norm beside it": lambda a, b, c: F.relu(a @ b) * F.layer_norm(c, (SIZE,)),
    "a softmax beside it": lambda a, b, c: (a @ b) * 2 + c.softmax(-1),
    "a sum beside it": lambda a, b, c: F.relu(a @ b) * c.sum(-1, keepdim=True),
    "written into a tensor": lambda a, b, c: c.copy_(F.relu(a @ b)),
    "a tensor that it changes": lambda a, b, c: c.mul_(a @ b),
    "a residual, which is part of an addmm": lambda a, b, c: a @ b + c,
}


class Lowered(Exception):  # noqa: N818 - no error
    """Everything is decided."""


def decided(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> list[Decision]:
    """Return what is decided in zero mode for the products of a function, up to where Inductor generates code.

    The kernel that follows the vendor's would be Triton's, which nothing here can build.
    """
    handler = hooked(TileModel(vendor_us=VENDOR_US, template_us=TEMPLATE_US), **{"mode": "zero", **options})
    stopping = mock.patch.object(GraphLowering, "codegen", side_effect=Lowered)
    with watching(), install(handler), torch.no_grad(), stopping, pytest.raises(InductorError):
        compile_and_run(function, *inputs)
    return [decision for decision in handler.decisions() if not decision.abstained]


def square(count: int = 1) -> list[Tensor]:
    """Return square matrices."""
    return [torch.zeros(SIZE, SIZE) for _ in range(count)]


def is_template(decision: Decision) -> bool:
    """Whether a template was chosen."""
    return not decision.chosen[0].config.is_vendor


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", TAKEN_IN)
def test_a_template_saves_the_kernel_that_would_follow(name: str) -> None:
    """Behind the vendor's kernel it would be one more; the record has the times of the kernels alone."""
    decision = decided(TAKEN_IN[name], *square(3))[0]
    assert is_template(decision)
    assert decision.chosen[0].predicted_us == TEMPLATE_US
    assert decision.vendor_us == VENDOR_US
    assert decision.reason.endswith(f"; {UNFUSED_US:.1f} us are counted for what a vendor's leaves unfused")


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", LEFT)
def test_nothing_is_counted_where_a_template_saves_nothing(name: str) -> None:
    """Nothing follows, or its arithmetic takes a template as long, or Inductor would not fuse it."""
    decision = decided(LEFT[name], *square(3))[0]
    assert not is_template(decision)
    assert "counted" not in decision.reason


def test_what_follows_two_products_is_taken_in_by_the_later() -> None:
    """Inductor fuses it into one of them, the one that is computed last."""
    decisions = decided(lambda a, b, c: F.relu(a @ b) * (a @ c), *square(3))
    assert [is_template(decision) for decision in decisions] == [False, True]


def test_a_long_way_is_not_looked_at() -> None:
    """A compile waits for it, and it is looked at once: of a thousand nodes nothing is counted."""

    def chain(count: int) -> Any:
        graph = torch.fx.Graph()
        a = graph.placeholder("a")
        b = before = product = graph.call_function(torch.ops.aten.mm.default, (a, a))
        for _ in range(count):
            b, before = graph.call_function(torch.ops.aten.add.Tensor, (b, before)), b
        graph.output(b)
        for node in graph.nodes:
            node.meta["val"] = torch.empty(8, 8, device="meta")
        return product

    with mock.patch.object(products, "_name", side_effect=products._name) as asked:
        assert products._is_followed_cheaply(chain(900))
        assert asked.call_count < 10 * 900
    assert not products._is_followed_cheaply(chain(1100))


def test_nothing_is_counted_where_inductor_is_not_to_fuse() -> None:
    """``epilogue_fusion`` switches it off."""
    with inductor_config.patch(epilogue_fusion=False):
        (decision,) = decided(TAKEN_IN["relu"], *square(3))
    assert not is_template(decision)


def test_top_k_keeps_both() -> None:
    """Where Inductor benchmarks, it weighs them itself; what is counted settles which templates are worth it."""
    (decision,) = decided(TAKEN_IN["relu"], *square(3), mode="top_k")
    assert [choice.config.is_vendor for choice in decision.chosen] == [False, False, False, True]
    assert decision.chosen[-1].predicted_us == VENDOR_US


@pytest.mark.parametrize("function", [TAKEN_IN["relu"], lambda a, b, c: (a @ b).view(-1) * c.view(-1)])
def test_symbolic_sizes_count_at_their_hints(function: Callable[..., Tensor]) -> None:
    """Without a stated range the one size that is known counts, and the program gets no guard for it."""
    a, b, c = square(3)
    torch._dynamo.mark_dynamic(a, 0)
    torch._dynamo.mark_dynamic(c, 0)
    (decision,) = decided(function, a, b, c)
    assert is_template(decision)


def test_nothing_is_counted_over_a_range() -> None:
    """Regret over a range is of the kernels alone."""
    a, b, c = square(3)
    torch._dynamo.mark_dynamic(a, 0, min=2, max=2048)
    (decision,) = decided(TAKEN_IN["relu"], a, b, c)
    assert not is_template(decision)


def ranking(finalists: list[int]) -> Ranking:
    """Return one of two templates and a vendor's kernel, the last, of which members scored ``finalists``."""
    times = np.array([11.0, 12.0, 10.0])
    spread = Spread(np.array(finalists), np.log(times[finalists])[None].repeat(2, 0).astype(np.float32), CALIBRATION)
    return Ranking(problem(), H200, times, np.array([False, False, True]), spread=spread)


def test_members_count_it_too() -> None:
    """In adaptive mode a template that is sure to win with what follows is kept alone."""
    policy = Policy(mode=Mode.ADAPTIVE)
    before, after = ranking([0, 1, 2]), ranking([0, 1, 2]).charged(3.0)
    assert select(before.predicted_us, before.is_vendor, policy, before.spread).indices == (2,)
    assert select(after.predicted_us, after.is_vendor, policy, after.spread).indices == (0,)
    assert after.predicted_us.tolist() == [11.0, 12.0, 13.0]
    assert after.kernels_us.tolist() == [11.0, 12.0, 10.0]


def test_a_first_choice_that_members_did_not_score_leaves_no_spread() -> None:
    """How sure they are of another one says nothing of it."""
    assert ranking([1, 2]).charged(3.0).spread is None
    assert ranking([1, 2]).charged(0.5).spread is not None
