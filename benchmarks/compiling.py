"""Compile from empty caches, for the benchmarks of the hook on a GPU.

The import removes the hook's settings from the environment, as a benchmark sets up its own hook.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch._inductor import select_algorithm
from torch._inductor.utils import fresh_cache

from diode_integration.install import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from diode_integration.choices import DiodeInductorChoices

for _name in [name for name in os.environ if name.startswith("DIODE_")]:
    del os.environ[_name]


@contextmanager
def from_nothing(handler: DiodeInductorChoices | None) -> Iterator[list[dict[Any, float]]]:
    """Compile with empty caches and an optional handler of the hook; yield Inductor's benchmarks by op."""
    with fresh_cache(), watched(handler) as timings:
        yield timings


@contextmanager
def watched(handler: DiodeInductorChoices | None) -> Iterator[list[dict[Any, float]]]:
    """Compile with an optional handler of the hook; yield Inductor's benchmarks by op."""
    timings: list[dict[Any, float]] = []
    with ExitStack() as stack:
        if handler is not None:
            stack.enter_context(install(handler))
        cache = select_algorithm.get_algorithm_selector_cache()
        select_algorithm.add_feedback_saver(lambda found, *_: timings.append(found))
        stack.callback(setattr, cache, "feedback_saver_fns", cache.feedback_saver_fns[:-1])
        yield timings


def own_code(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap ``function`` in a new code object, since Dynamo caches compiled code by code object."""

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        return function(*inputs)

    call.__code__ = call.__code__.replace(co_name=f"call_{time.perf_counter_ns()}")
    return call
