"""Compiles real functions with a handler installed and tells what Inductor was left to choose from."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import select_algorithm

from diode_integration.choices import DiodeInductorChoices
from diode_integration.inductor import entry
from diode_integration.install import install
from inductor_harness import block_time_ms, compile_and_run, triton_choices_on_cpu
from stand_ins import TileModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((128, 512), (512, 256))),
    "addmm": (torch.addmm, ((256,), (128, 512), (512, 256))),
    "bmm": (torch.bmm, ((4, 128, 512), (4, 512, 256))),
}

each_op = pytest.mark.parametrize("op", [pytest.param("mm", marks=pytest.mark.long), "addmm", "bmm"])
"""An ``mm`` has nothing that the other two lack: a bias and a batch."""
each_path = pytest.mark.parametrize("deferred", [False, True], ids=["immediate", "deferred"])


@dataclass
class Watch:
    """What went through Inductor's selection, one entry an op."""

    offered: list[list[str]] = field(default_factory=list)
    """Names of the choices before the final selection."""
    left: list[list[str]] = field(default_factory=list)
    """Names of the choices after it."""
    kept: list[list[Any]] = field(default_factory=list)
    """The choices themselves."""
    timed: list[str] = field(default_factory=list)
    """Names of the choices that were benchmarked."""
    fails: Callable[[str], bool] = lambda _name: False
    """Which choices fail when they are benchmarked, by name."""
    run_vendor: bool = False
    """Run the vendor's kernel whatever is left: a Triton kernel cannot run on a CPU."""
    _vendor: Any = None

    def before(self, choices: list[Any]) -> list[Any]:
        """Take note of the choices; a preprocessing function of Inductor's."""
        self.offered.append([_name(choice) for choice in choices])
        self._vendor = next(c for c in choices if isinstance(c, select_algorithm.ExternKernelCaller))
        return choices

    def after(self, choices: list[Any]) -> list[Any]:
        """Take note of the choices; a preprocessing function of Inductor's."""
        self.left.append([_name(choice) for choice in choices])
        self.kept.append(choices)
        return [self._vendor] if self.run_vendor else choices

    def time_ms(self, choice: Any) -> float:
        """Stand in for the benchmark."""
        self.timed.append(_name(choice))
        return math.inf if self.fails(_name(choice)) else block_time_ms(choice)


@contextmanager
def watching(
    *, run_vendor: bool = False, fails: Callable[[str], bool] = lambda _name: False, **harness: Any
) -> Iterator[Watch]:
    """Compile with real Triton choices on the CPU and watch the selection."""
    watch = Watch(run_vendor=run_vendor, fails=fails)
    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
    before = list(functions)
    entry.unregister()  # a test that asked a handler by itself left it, and it would come first
    counters.clear()
    try:
        with triton_choices_on_cpu(time_ms=watch.time_ms, **harness):
            select_algorithm.add_preprocessing_fn(watch.before)
            entry.ensure_registered()
            select_algorithm.add_preprocessing_fn(watch.after)
            yield watch
    finally:
        functions[:] = before


def hooked(model: TileModel | None = None, **options: Any) -> DiodeInductorChoices:
    """Return a handler that ranks as if on an H200."""
    return DiodeInductorChoices(model=model or TileModel(), **{"hardware": "NVIDIA H200", **options})


def compile_op(op: str, handler: DiodeInductorChoices | None, **watched: Any) -> Watch:
    """Compile one op with ``handler`` installed and check its result against eager."""
    function, shapes = OPS[op]
    inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes]
    with watching(**watched) as watch:
        if handler is None:
            result = compile_and_run(function, *inputs)
        else:
            with install(handler):
                entry.ensure_registered()
                result = compile_and_run(function, *inputs)
    torch.testing.assert_close(result, function(*inputs), rtol=1e-4, atol=1e-3)
    return watch


def benchmarks() -> int:
    """Return how many times Inductor benchmarked since ``watching`` began."""
    return int(counters["inductor"]["select_algorithm_autotune"])


def _name(choice: Any) -> str:
    """Return a choice's name without its counter, with its tile if it has one."""
    ktc = getattr(choice, "annotations", {}).get("ktc")
    arguments = ktc.params.to_kwargs() if ktc else {}
    if "BLOCK_M" not in arguments:
        return str(choice.name)
    sizes = "x".join(str(arguments[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    return f"triton {sizes} s{arguments['num_stages']} w{arguments['num_warps']}"
