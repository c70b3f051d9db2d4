"""Inductor's timings and counters, for readers outside the hook."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@contextmanager
def timings_told_to(saver: Callable[..., None]) -> Iterator[None]:
    """Have Inductor call ``saver`` with the timings of each op."""
    from torch._inductor.select_algorithm import add_feedback_saver, get_algorithm_selector_cache

    add_feedback_saver(saver)
    try:
        yield
    finally:
        cache = get_algorithm_selector_cache()
        # A new list: a compile may be running over the old one.
        cache.feedback_saver_fns = [each for each in cache.feedback_saver_fns if each is not saver]


def cached_graphs() -> int:
    """Return how many graphs came whole from a cache, as PyTorch counts them."""
    from torch._dynamo.utils import counters

    found: Any = max(counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"])
    return int(found)


def compile_seconds() -> Mapping[str, Sequence[float]]:
    """Return PyTorch's own times of every compile so far, in seconds by metric."""
    from torch._dynamo.utils import compilation_time_metrics

    metrics: Mapping[str, Sequence[float]] = compilation_time_metrics
    return metrics
