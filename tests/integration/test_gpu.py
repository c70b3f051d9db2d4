"""The hook on a real GPU: kernels that it chose are built, run and right."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import benchmarks
from stand_ins import DOMAIN, TileModel, card_of
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from diode_integration.choices import DiodeInductorChoices
from diode_integration.install import install
from inductor_harness import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

OPS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((256, 512), (512, 384))),
    "addmm": (torch.addmm, ((384,), (256, 512), (512, 384))),
    "bmm": (torch.bmm, ((4, 256, 512), (4, 512, 384))),
}
each_op = pytest.mark.parametrize("op", list(OPS))


def handler(**options: Any) -> DiodeInductorChoices:
    """Return a handler whose model knows every device and predicts a template to win."""
    card = card_of(replace(DOMAIN, hardware=()))
    return DiodeInductorChoices(model=TileModel(vendor_us=20.5, card=card), **options)


@contextmanager
def hooked_gpu(**options: Any) -> Iterator[DiodeInductorChoices]:
    """Install a handler over empty caches."""
    with quiet_torch(), fresh_cache(), install(handler(**options)) as installed:
        torch._dynamo.reset()
        counters.clear()
        yield installed


def compiled(op: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what an op gives compiled, and eagerly."""
    function, shapes = OPS[op]
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    with torch.no_grad():
        return torch.compile(function, mode="max-autotune-no-cudagraphs")(*inputs), function(*inputs)


@each_op
def test_top_k_is_benchmarked_and_right(op: str) -> None:
    """Three templates and the vendor kernel are timed once on the device, and the result is right."""
    with hooked_gpu() as installed:
        torch.testing.assert_close(*compiled(op), rtol=2e-2, atol=2e-1)
        assert benchmarks() == 1
    (decision,) = installed.decisions()
    assert decision.candidates > 1000
    assert len(decision.chosen) == 4


@each_op
def test_zero_mode_runs_the_chosen_template(op: str) -> None:
    """In zero mode the one chosen template is built and run without any benchmark, and the result is right."""
    with hooked_gpu(mode="zero") as installed:
        torch.testing.assert_close(*compiled(op), rtol=2e-2, atol=2e-1)
        assert benchmarks() == 0
    (decision,) = installed.decisions()
    assert decision.chosen[0].config.template.startswith("triton::")


def test_backward_in_autograds_thread_is_hooked() -> None:
    """Backward graphs, which autograd compiles in a thread of its own for each device, are hooked too."""
    with hooked_gpu() as installed:
        a = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        b = torch.randn(512, 384, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.compile(lambda a, b: (a @ b).sum(), mode="max-autotune-no-cudagraphs")(a, b).backward()
    assert installed.get_stats()["model_selections"] == 3
