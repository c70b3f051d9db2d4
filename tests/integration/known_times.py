"""A device whose kernels take known times, for tests of the hook's own clock."""

from __future__ import annotations

import contextlib
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import hooked
from torch._dynamo.utils import counters

from diode_collectors.feedback.listening import AutotuningListener
from diode_collectors.inductor.timer import Sampled, deployed_method
from diode_integration.inductor import benchmark, entry
from diode_integration.install import install
from inductor_harness import block_time_ms, compile_and_run
from stand_ins import TileModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from diode_integration.choices import DiodeInductorChoices
    from diode_store.records import Measurement, TimingMethod

US_PER_MS = 1000.0


class Kernel:
    """Stands in for what launches a choice."""

    def __init__(self, choice: Any) -> None:
        """Take as long as the harness says, in a hundredth of the time."""
        self.us = block_time_ms(choice) * US_PER_MS / 100

    def __call__(self) -> None:
        """Run, unless the tile is too large."""
        if math.isinf(self.us):
            raise RuntimeError("out of resource: shared memory")


class KnowingTimer:
    """Says what a kernel takes, without noise."""

    overhead_us = 0.0
    late_launches = 0

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    def method_for(self, best_us: float) -> TimingMethod:
        """Return what a GPU's timer does."""
        return deployed_method(best_us)

    def sampled(self, run: Any, _rotation: object, _us: float, _method: TimingMethod) -> Sampled:
        """Return a single launch."""
        return Sampled(run)

    def warm_up(self, _function: object, _for_us: float) -> None:
        """Be warm."""

    def runs_us(self, function: Any, count: int) -> list[float]:
        """Return the kernel's time."""
        return [function.us] * count

    def synchronize(self) -> None:
        """Work."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the CPU for a GPU with a clock that knows all times."""

    @contextmanager
    def clock_of(_device: object) -> Iterator[Any]:
        yield benchmark._DeviceClock(KnowingTimer(), 1e9)

    monkeypatch.setattr(benchmark, "_is_nvidias", lambda _choice: True)
    monkeypatch.setattr(benchmark, "_clock_of", clock_of)
    monkeypatch.setattr(benchmark, "captured", lambda choice, _benchmark: Kernel(choice))
    yield
    benchmark.disengage()


def close(**options: Any) -> DiodeInductorChoices:
    """Return a handler that leaves templates and the vendor's kernel to be benchmarked."""
    return hooked(TileModel(vendor_us=20.5), **options)


def fails(choice: Any, _benchmark: object) -> Callable[[], object]:
    """Stand in for preparing a kernel that cannot be loaded."""
    raise RuntimeError(f"cannot load {choice}")


def compile_in(handler: DiodeInductorChoices) -> tuple[int, list[Measurement]]:
    """Compile a product within ``watching``; return how often Inductor benchmarked, and what a collector heard."""
    heard: list[Measurement] = []
    counters.clear()
    a, b = torch.ones(128, 512), torch.ones(512, 256)
    with install(handler), AutotuningListener(heard.append):
        entry.ensure_registered()
        compile_and_run(torch.mm, a, b)
    return int(counters["inductor"]["select_algorithm_autotune"]), heard
