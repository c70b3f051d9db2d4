"""Choose the configs of fused kernels: the pointwise and reduction kernels that Inductor generates.

Inductor asks no choices handler about them. Each kernel's source names its heuristics, which list the configs when the
kernel is loaded, in this process or in a compile worker. With ``mode="max-autotune"`` these lists are long, and
coordinate descent compiles and times one neighbor after another.

This module wraps ``TritonKernel.codegen_kernel``, which returns the source, and changes how the source is tuned. A
source is part of what Inductor's FX graph cache keeps, and the handler's ``uuid`` is part of that cache's key.
"""

from __future__ import annotations

import ast
import functools
import inspect
import logging
import sys
from collections.abc import Callable
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from diode_collectors.inductor.fused_source import config_of_triton, read_source
from diode_collectors.inductor.fused_timings import replace_method
from diode_integration.inductor.after_import import once_inductor_is_there
from diode_store.kernels import BLOCK
from diode_store.ops.fused import fused_template
from diode_store.values import safely

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    import torch

    from diode_collectors.inductor.fused_source import FusedSource
    from diode_store.kernels import KernelConfig

log = logging.getLogger("diode_integration")

_MODULE, _CLASS, METHOD = "torch._inductor.codegen.triton", "TritonKernel", "codegen_kernel"


class Retuned(NamedTuple):
    """Source of a fused kernel whose tuning was changed."""

    text: str
    config: KernelConfig | None = None
    """The only config; None if Inductor times a list."""


_MOST_ELEMENTS = 2**20
"""Elements that a block of Triton may have (``TRITON_MAX_TENSOR_NUMEL``)."""
_WARPS = (1, 2, 4, 8, 16, 32)
_OPTIONS = ("num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
"""Options of a config beside its blocks, on NVIDIA and AMD GPUs."""
Listener = Callable[["FusedSource", "KernelConfig", "torch.device"], None]
"""Receives each fused kernel to which the hook left a single config; must not raise."""
_listeners: list[Listener] = []


class Owner(Protocol):
    """Part of a handler that is asked about fused kernels."""

    def fused(self, source: FusedSource, device: torch.device) -> Retuned | None:
        """Return the source to compile instead; None for the source as it is. Must not raise."""

    def failed(self, error: Exception) -> None:
        """Record an error inside the hook."""


def guard(installed: Callable[[], Owner | None], undo: ExitStack) -> None:
    """Have the installed handler choose the configs of fused kernels."""
    once_inductor_is_there(lambda: _wrap(installed, undo), undo)


def retuned(source: FusedSource, config: KernelConfig) -> Retuned:
    """Return a source with a single config."""
    return Retuned(source.with_config(config), config)


@contextmanager
def fixed_told_to(listener: Listener) -> Iterator[None]:
    """Tell ``listener`` of every fused kernel to which the hook leaves a single config, in any thread."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def first_config(source: FusedSource) -> KernelConfig | None:
    """Return the first config that a plain ``torch.compile`` lists for a kernel; None if the list cannot be read."""
    from torch._inductor.runtime import triton_heuristics

    call = ast.parse(source.untuned_call, mode="eval").body
    if not isinstance(call, ast.Call):
        return None
    arguments = {str(each.arg): _value(each.value) for each in call.keywords}
    # Without caches nobody asks for the file, or for anything over the network.
    arguments["inductor_meta"] = {**arguments.get("inductor_meta", {}), "force_disable_caches": True}
    decorator = getattr(triton_heuristics, source.op)(**{**arguments, "filename": "kernel.py"})
    configs = inspect.getclosurevars(decorator).nonlocals.get("configs")
    return config_of_triton(source.op, configs[0]) if configs else None


def _value(node: ast.expr) -> Any:
    """Return the value of an argument: literals, and the enumerations and descriptors of ``runtime.hints``."""
    from torch._inductor.runtime import hints

    if isinstance(node, ast.Dict):
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.Set):
        return set(map(_value, node.elts))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return getattr(getattr(hints, node.value.id), node.attr)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and hasattr(hints, node.func.id):
        return getattr(hints, node.func.id)(**{str(each.arg): _value(each.value) for each in node.keywords})
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None  # a descriptor of Triton's, which no heuristic reads


def why_not(source: FusedSource, config: KernelConfig) -> str | None:
    """Return why a kernel cannot have a config; None if it can.

    The source leaves out masks that no block up to Inductor's largest needs, so a larger block would read and write
    outside the tensors. Nothing stands in for the only config of a kernel, so it has to compile.
    """
    from torch._inductor.runtime.hints import TRITON_MAX_BLOCK

    blocks = {name: value for name, value in config.kwargs if name.endswith(BLOCK)}
    if config.template != fused_template(source.op) or blocks.keys() != source.blocks:
        return f"the kernel is a {source.op} with {', '.join(sorted(source.blocks)) or 'no blocks'}"
    for name, value in blocks.items():
        largest = TRITON_MAX_BLOCK.get(name.removesuffix(BLOCK), 0)
        if type(value) is not int or value < 1 or value & (value - 1) or value > largest:
            return f"{name} must be a power of 2 up to {largest}"
    # A persistent reduction has its whole range in a block.
    whole = (hint for name, hint in source.size_hints.items() if name.startswith("r") and not source.has_loops)
    elements = prod(map(int, blocks.values())) * prod(whole)
    if elements > _MOST_ELEMENTS:
        return f"blocks of {elements:,} elements are more than Triton's {_MOST_ELEMENTS:,}"
    if others := sorted(name for name, _ in config.kwargs if name not in blocks and name not in _OPTIONS):
        return f"no kernel takes {', '.join(others)}"
    if not config.num_stages or config.num_warps not in _WARPS:
        return f"num_stages must be positive, and num_warps one of {', '.join(map(str, _WARPS))}"
    return None


def _wrap(installed: Callable[[], Owner | None], undo: ExitStack) -> bool:
    """Wrap the method; return False if its class is not there yet."""
    kernel_class = getattr(sys.modules.get(_MODULE), _CLASS, None)
    if kernel_class is None:
        return False
    stock = vars(kernel_class).get(METHOD)
    if stock is None:
        safely.log(log, logging.DEBUG, f"Inductor tunes fused kernels: there is no {_CLASS}.{METHOD}")
        return True
    replace_method(kernel_class, METHOD, _chosen(stock, installed), undo)
    return True


def _chosen(stock: Callable[..., str], installed: Callable[[], Owner | None]) -> Callable[..., str]:
    @functools.wraps(stock)
    def codegen_kernel(self: Any, *args: Any, **kwargs: Any) -> str:
        text = stock(self, *args, **kwargs)
        owner = installed()
        return text if owner is None else _retuned_by(owner, text)

    return codegen_kernel


def _retuned_by(owner: Owner, text: str) -> str:
    from torch._inductor.virtualized import V

    try:
        source = read_source(text)
        if source is None or source.is_left_to_stock or is_in_users_table(source):
            return text
        device = V.graph.get_current_device_or_throw()
        found = owner.fused(source, device)
        if found is None:
            return text
        if found.config is not None:
            for listener in tuple(_listeners):
                listener(source, found.config, device)
    except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
        owner.failed(error)
        return text
    return found.text


def is_in_users_table(source: FusedSource) -> bool:
    """Return whether the user's ``autotune_lookup_table`` has a config for a kernel, which Inductor then takes."""
    from torch._inductor import config
    from torch._inductor.runtime.triton_heuristics import generate_lookup_hash_from_source_code

    if not (table := getattr(config, "autotune_lookup_table", None)):
        return False
    return generate_lookup_hash_from_source_code(str(source.size_hints), f"def kernel{source.function}") in table
