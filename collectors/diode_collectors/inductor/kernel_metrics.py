"""Registers, spilled registers and shared memory of a compiled kernel, as Triton tells them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.running import request_of
from diode_store.records import Metric

if TYPE_CHECKING:
    from diode_store.records import KernelConfig

_ON_LAUNCHER = {
    ("registers_per_thread", ""): "n_regs",
    ("spilled_registers", ""): "n_spills",
    ("shared_memory", "B"): "shared",
}
"""Name and unit of each metric, and its name on a launcher of Inductor's ``CachingAutotuner``."""
Told = Mapping[tuple[str, str], int]
"""Values of one kernel, by the name and the unit of a metric."""


def metrics_of(choice: Any) -> Told:
    """Return the metrics of a Triton choice that ran and is still loaded; empty if there are none to read."""
    with suppress(Exception):  # private names of Inductor: without them there are no metrics, nothing worse
        return told_by(_kernel_of(request_of(choice)).launchers[0])
    return {}


def told_by(launcher: Any) -> Told:
    """Return the metrics that a launcher of Inductor's ``CachingAutotuner`` holds."""
    values = {metric: getattr(launcher, theirs, None) for metric, theirs in _ON_LAUNCHER.items()}
    return {metric: int(value) for metric, value in values.items() if isinstance(value, int)}


def as_metrics(configs: Iterable[KernelConfig], told: Mapping[KernelConfig, Told]) -> tuple[Metric, ...]:
    """Return the metrics of a measurement, from those of its kernels.

    Args:
        configs: the config of each timing, in order.
        told: what ``metrics_of`` told of each kernel.
    """
    rows = [told.get(config, {}) for config in configs]
    present = (metric for metric in _ON_LAUNCHER if any(metric in row for row in rows))
    return tuple(Metric(*metric, tuple(row.get(metric) for row in rows)) for metric in present)


def _kernel_of(request: Any) -> Any:
    """Return the autotuner of a benchmark request, which holds the one compiled kernel."""
    module = getattr(request, "_benchmark_module", None)
    if module is None:
        from torch._inductor.codecache import PyCodeCache

        module = PyCodeCache.load_by_key_path(request.module_cache_key, request.module_path)
    return getattr(module, request.kernel_name)
