"""Registers, spilled registers and shared memory of a compiled kernel, as Triton tells them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from diode_collectors.inductor.running import request_of

METRICS = {"registers": "n_regs", "spills": "n_spills", "shared_memory_bytes": "shared"}
"""Name of each metric, and its name on a launcher of Inductor's ``CachingAutotuner``."""


def metrics_of(choice: Any) -> dict[str, int]:
    """Return the metrics of a Triton choice that ran and is still loaded; empty if there are none to read."""
    with suppress(Exception):  # private names of Inductor: without them there are no metrics, nothing worse
        launcher = _kernel_of(request_of(choice)).launchers[0]
        values = {name: getattr(launcher, theirs, None) for name, theirs in METRICS.items()}
        return {name: int(value) for name, value in values.items() if isinstance(value, int)}
    return {}


def _kernel_of(request: Any) -> Any:
    """Return the autotuner of a benchmark request, which holds the one compiled kernel."""
    module = getattr(request, "_benchmark_module", None)
    if module is None:
        from torch._inductor.codecache import PyCodeCache

        module = PyCodeCache.load_by_key_path(request.module_cache_key, request.module_path)
    return getattr(module, request.kernel_name)
