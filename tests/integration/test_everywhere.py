"""The hook where compiled graphs come from elsewhere than ``torch.compile`` and its first cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import benchmarks, hooked
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

from diode_integration.decide.decision import DecidedBy
from diode_integration.install import install
from inductor_harness import quiet_torch
from stand_ins import TileModel

if TYPE_CHECKING:
    from pathlib import Path

    from diode_integration.choices import DiodeInductorChoices

autograd_cache = pytest.importorskip("torch._functorch._aot_autograd.autograd_cache")


def linear() -> torch.nn.Linear:
    """Return a layer that Inductor lowers to an addmm and nothing else, whose kernels need no compiler."""
    torch.manual_seed(0)
    return torch.nn.Linear(64, 32)


def step(handler: DiodeInductorChoices | None) -> tuple[int, int, int]:
    """Compile a training step; return calls of the hook, and misses and hits of the AOTAutograd cache."""
    before = handler.get_stats()["total_calls"] if handler else 0
    torch._dynamo.reset()
    counters.clear()
    layer, x = linear(), torch.ones(8, 64)
    torch.compile(layer)(x).sum().backward()
    found = counters["aot_autograd"]
    calls = handler.get_stats()["total_calls"] - before if handler else 0
    return int(calls), found["autograd_cache_miss"], found["autograd_cache_hit"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
def test_the_aot_autograd_cache_knows_who_chose() -> None:
    """Forward and backward graphs that are cached together are served to the same model and policy only."""
    caches = torch._functorch.config.patch(enable_autograd_cache=True)
    with quiet_torch(), fresh_cache(), inductor_config.patch(fx_graph_cache=True), caches:
        assert step(None) == (0, 1, 0)
        with install(hooked()) as handler:
            calls, *cold = step(handler)
            assert calls > 0
            assert cold == [1, 0]
            assert step(handler) == (0, 0, 1)
        with install(hooked(TileModel(sha256="b" * 64))) as other:
            assert step(other) == (calls, 1, 0)
        assert step(None) == (0, 0, 1)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_aot_inductor(tmp_path: Path) -> None:
    """A package that is compiled ahead of time has the kernels that the hook kept."""
    handler = hooked(mode="zero")
    layer, x = linear(), torch.randn(128, 64)
    settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN"}
    counters.clear()
    with torch.no_grad(), quiet_torch(), fresh_cache(), install(handler):
        program = torch.export.export(layer, (x,))
        package = str(tmp_path / "layer.pt2")
        path: Any = torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=settings)
        loaded = torch._inductor.aoti_load_package(path)
    torch.testing.assert_close(loaded(x), layer(x))
    (decision,) = handler.decisions()
    assert (decision.op, decision.decided_by) == ("addmm", DecidedBy.MODEL)
    assert benchmarks() == 0
