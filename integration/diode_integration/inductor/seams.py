"""Who decides at each place where Inductor lets somebody choose kernels, for ``diode doctor``.

torch 2.15 takes several choices handlers and gives each method to the first that overrides it. Other places are
functions and tables that anybody may replace. So another package can take a decision away from torch-diode without a
word in any log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch._inductor import config as inductor_config

from diode_integration.inductor import attention, fused
from diode_integration.inductor.unranked import operator_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OURS, STOCK, NOWHERE = "torch-diode", "stock", "not in this torch"
_METHODS = {
    "matrix products": "_finalize_template_configs",
    "convolution configs": "get_conv_configs",
    "flex attention forward": "get_flex_attention_fwd_configs",
    "flex attention backward": "get_flex_attention_bwd_configs",
    "flex decoding": "get_flex_decode_configs",
}
"""Decision → method of Inductor's choices handlers."""
_LOWERINGS = {
    "convolution": "convolution",
    "grouped_mm": "_grouped_mm",
    "scaled_grouped_mm": "_scaled_grouped_mm",
}
"""Decision → op whose lowering is asked."""


@dataclass(frozen=True)
class Seam:
    """One place where kernels are chosen."""

    name: str
    owner: str
    """``torch-diode``, ``stock``, ``not in this torch``, or the name of another module."""

    @property
    def is_foreign(self) -> bool:
        """Return whether neither torch nor torch-diode decides there."""
        return self.owner not in {OURS, STOCK, NOWHERE}


def seams() -> list[Seam]:
    """Return every seam of this process, with its owner at this moment."""
    return [Seam(name, owner) for name, owner in _owners()]


def custom_ops() -> list[str]:
    """Return the ops with an autotuning of their own (``register_custom_op_autotuning``); they bypass handlers."""
    from torch._inductor import lowering

    return sorted(str(op) for op in getattr(lowering, "user_lowerings", {}))


def _owners() -> Iterator[tuple[str, str]]:
    from torch._inductor import lowering
    from torch._inductor.codegen.triton import TritonKernel
    from torch._inductor.kernel import mm_grouped
    from torch._inductor.virtualized import V

    for name, method in _METHODS.items():
        yield name, _owner_of(getattr(V.choices, method, None))
    yield "grouped configs", _owner_of(getattr(mm_grouped, "early_config_prune", None))
    for name, op in _LOWERINGS.items():
        overload = operator_named(f"aten.{op}.default")
        yield f"lowering of {name}", _owner_of(lowering.lowerings.get(overload))
    for name in attention.LOWERED:
        operator = operator_named(f"higher_order.{name}")
        yield f"lowering of {name}", _owner_of(lowering.lowerings.get(operator))
    yield "fused kernels", _owner_of(getattr(TritonKernel, fused.METHOD, None))
    table = getattr(getattr(inductor_config, "lookup_table", None), "table", None)
    yield "lookup table", STOCK if not table else f"a table of {len(table)} entries"
    pointwise = getattr(inductor_config, "autotune_lookup_table", None)
    if pointwise is not None:
        yield "pointwise table", STOCK if not pointwise else f"a table of {len(pointwise)} entries"


def _owner_of(function: Callable[..., Any] | None) -> str:
    """Return the package that a function comes from; a wrapper keeps its own code, whatever name it took over."""
    if function is None:
        return NOWHERE
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    module = _module_of_file(getattr(code, "co_filename", "")) or str(getattr(function, "__module__", None))
    package = module.partition(".")[0]
    return {"torch": STOCK, "diode_integration": OURS}.get(package, module)


def _module_of_file(filename: str) -> str | None:
    """Return the loaded module whose file has this name."""
    import sys

    found = (name for name, module in list(sys.modules.items()) if getattr(module, "__file__", None) == filename)
    return next(found, None)
