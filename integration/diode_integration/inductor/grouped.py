"""Grouped products, whose kernels Inductor lists without asking a choices handler.

Inductor lists them in functions of its module ``mm_grouped``, while it lowers the op. This module wraps the op's
lowering and ``early_config_prune``, the last of these functions. In between it makes the list an offer like any other:
the handler chooses, and Inductor makes kernels of what is left. The choices get their marks when Inductor hands the
op's choices to ``entry.final_selection``. A handler that only observes is asked then if Inductor made no list, as on a
machine without a GPU. A torch without that function tunes these ops as it does without the hook.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
from dataclasses import dataclass, field
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.kernel_inputs import MMKernelInputs

from diode_collectors.inductor.adapter import annotations_of, config_of_ktc, problem_of_inputs
from diode_integration.inductor.after_import import once_inductor_is_there, put_in_place
from diode_integration.inductor.entry import marking_later
from diode_integration.inductor.listing import CandidateOffer, is_tuned
from diode_integration.inductor.unranked import operator_named
from diode_store.devices.descriptor import describe
from diode_store.ops import OPS
from diode_store.ops.work import itemsize
from diode_store.values import safely

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from torch._inductor.choices import InductorChoices
    from torch._inductor.kernel_inputs import KernelInputs

    from diode_integration.inductor.entry import Handler
    from diode_store.records import Hardware, KernelConfig, ProblemShape

log = logging.getLogger("diode_integration")

_LOWERING, _MODULE = "torch._inductor.lowering", "torch._inductor.kernel.mm_grouped"
_PRUNE = "early_config_prune"
_SHARED_MEMORY = "get_gpu_shared_memory"
_GROUPED: Mapping[str, tuple[str, ...]] = {
    "_grouped_mm": ("mat_a", "mat_b", "offs", "bias", "out_dtype"),
    "_scaled_grouped_mm": (
        *("mat_a", "mat_b", "scale_a", "scale_b", "offs", "bias", "scale_result", "out_dtype", "use_fast_accum"),
    ),
}
"""Overload packet below ``torch.ops.aten`` → names of its arguments, in order."""
_TENSORS = ("mat_a", "mat_b", "scale_a", "scale_b", "offs")
"""Arguments that are inputs of the kernels, in Inductor's order."""
_here = threading.local()


@dataclass(eq=False)
class ListedKernel:
    """Stand-in for Inductor's ``KernelTemplateChoice``, with what a handler reads of one."""

    template: Any
    params: Any
    inputs: KernelInputs
    source: Any = None
    """Config of Inductor's list; None for the vendor kernel."""
    extra_kwargs: Mapping[str, Any] = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)


@dataclass
class _GroupedOffer(CandidateOffer):
    """Offer whose list is the only one that there is."""

    def expanded(self, uid: str, handler: InductorChoices, search_space: str, inputs: KernelInputs) -> list[Any]:
        """Return Inductor's list, which does not depend on the search space."""
        del handler, search_space, inputs
        return self.stock(uid)

    def as_if_on_cuda(self, uid: str, inputs: KernelInputs, device: Hardware | None) -> Iterator[Any]:
        """Yield the choices on a CUDA device, on a machine without one."""
        template, arguments = SimpleNamespace(uid=uid), self.arguments_as_if(device)
        for config in _configs_as_if(problem_of_inputs(inputs, self.op_name).shape, arguments, device):
            yield _listed(template, _arguments(config, arguments), inputs, config)

    def arguments_as_if(self, device: Hardware | None) -> dict[str, Any]:
        """Return the arguments that Inductor gives the template beside the config."""
        shape = problem_of_inputs(self.kernel_inputs, self.op_name).shape
        form, layout = str(shape.dimension("form")), shape.layout
        return {
            "SCALED": OPS[self.op_name].is_scaled,
            "A_IS_2D": form.startswith("2d"),
            "B_IS_2D": form.endswith("2d"),
            "A_IS_K_MAJOR": layout[0] == "n",
            "B_IS_K_MAJOR": layout[1] == "t",
            "USE_FAST_ACCUM": self.overrides_as_if().get("USE_FAST_ACCUM", False),
            "NUM_SMS": device.multiprocessors if device else 0,
        }


@dataclass
class _Lowering:
    """One op that is being lowered."""

    owner: Handler
    op: str
    inputs: KernelInputs
    overrides: Mapping[str, Any]
    marks: dict[KernelConfig, Mapping[str, Any]] = field(default_factory=dict)
    """Annotations of the candidates, which their choices get later."""
    is_asked: bool = False
    """True once the handler was asked."""

    def marked(self) -> Mapping[KernelConfig, Mapping[str, Any]]:
        """Return the marks; first ask a handler that observes for another device, if this one has no list."""
        if not self.is_asked and self.owner.observe:
            try:
                self.kept([], {})
            except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
                self.owner.failed(error)
        return self.marks

    def kept(self, configs: Sequence[Any], named_arguments: Mapping[str, Any]) -> list[Any]:
        """Return the configs to make kernels of, and keep the marks of the candidates."""
        self.is_asked = True
        entry = OPS[self.op]
        vendor, template = (SimpleNamespace(uid=uid) for uid in (entry.vendors[0], entry.template))
        vendors = [_listed(vendor, {}, self.inputs)] if _offers_vendor() else []
        listed = [_listed(template, _arguments(each, named_arguments), self.inputs, each) for each in configs]
        generators: dict[str, Iterator[Any]] = {template.uid: iter(listed)} if listed else {}
        if vendors:
            generators = {vendor.uid: iter(vendors), **generators}
        offer = _GroupedOffer(generators, self.inputs, [vendor, template], self.op, {vendor.uid: dict(self.overrides)})
        chosen = self.owner.choose(offer)
        left = [*vendors, *listed] if chosen is None else chosen
        for tell in offer.on_listed:
            tell(left)
        self.marks = {config_of_ktc(each): annotations_of(each) for each in left}
        return [each.source for each in left if each.source is not None]


def guard(installed: Callable[[], Handler | None], undo: ExitStack) -> None:
    """Have the installed handler choose among the kernels of grouped products."""
    once_inductor_is_there(lambda: _wrap(installed, undo), undo)


def _wrap(installed: Callable[[], Handler | None], undo: ExitStack) -> bool:
    """Wrap the lowerings and the list; return False if they are not there yet."""
    lowerings = getattr(sys.modules.get(_LOWERING), "lowerings", {})
    ops = {name: operator_named(f"aten.{name}.default") for name in _GROUPED}
    if not any(op in lowerings for op in ops.values() if op is not None):
        return False
    functions = vars(sys.modules.get(_MODULE, object))
    if _PRUNE not in functions:
        return True
    put_in_place(functions, _PRUNE, _pruned(functions[_PRUNE]), undo)
    safely.log(log, logging.DEBUG, f"torch-diode chooses the kernels of grouped products: it wraps {_MODULE}.{_PRUNE}")
    for name, op in ops.items():
        if op in lowerings:
            put_in_place(lowerings, op, _lowered(name, lowerings[op], installed), undo)
    return True


def _lowered(name: str, stock: Callable[..., Any], installed: Callable[[], Handler | None]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def lower(*args: Any, **kwargs: Any) -> Any:
        owner = installed()
        if owner is None or not is_tuned():
            return stock(*args, **kwargs)
        try:
            given = {**dict(zip(_GROUPED[name], args, strict=False)), **kwargs}
            given = _realized(given)
            lowering = _Lowering(owner, name.strip("_"), _inputs(given), _overrides(given))
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            owner.failed(error)
            return stock(*args, **kwargs)
        _here.lowering = lowering
        try:
            with marking_later(lambda: lowering.marked().get):
                return stock(**given)
        finally:
            _here.lowering = None

    return lower


def _pruned(stock: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(stock)
    def prune(g: Any, m: Any, dtsize: int, configs: Any, named_args: Any) -> list[Any]:
        listed = stock(g, m, dtsize, configs, named_args)
        lowering: _Lowering | None = getattr(_here, "lowering", None)
        if lowering is None:
            return listed
        try:
            return lowering.kept(listed, named_args)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            lowering.owner.failed(error)
            return listed

    return prune


def _realized(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with their tensors in memory, as the lowering itself would put them there."""
    from torch._inductor.select_algorithm import realize_inputs

    tensors = [name for name in _TENSORS if given.get(name) is not None]
    realized = realize_inputs(*(given[name] for name in tensors))
    return {**given, **dict(zip(tensors, realized, strict=True))}


def _inputs(given: Mapping[str, Any]) -> KernelInputs:
    nodes = [given[name] for name in _TENSORS if given.get(name) is not None]
    default = torch.bfloat16 if "scale_a" in given else given["mat_a"].get_dtype()
    return MMKernelInputs(nodes, mat1_idx=0, mat2_idx=1, out_dtype=given.get("out_dtype") or default)


def _overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"use_fast_accum": True} if given.get("use_fast_accum") else {}


def _listed(template: Any, arguments: dict[str, Any], inputs: KernelInputs, source: Any = None) -> ListedKernel:
    return ListedKernel(template, SimpleNamespace(kwargs=arguments, to_kwargs=lambda: arguments), inputs, source)


def _configs_as_if(shape: ProblemShape, arguments: Mapping[str, Any], device: Hardware | None) -> list[Any]:
    """Return the configs that Inductor would list on a device, by that device's shared memory."""
    from torch._inductor.kernel import mm_grouped

    prune = inspect.unwrap(mm_grouped.early_config_prune)
    if device is not None:
        shared_memory_bytes = describe(device).shared_memory_per_block_bytes
        patched = {**vars(mm_grouped), _SHARED_MEMORY: lambda: shared_memory_bytes}
        prune = FunctionType(prune.__code__, patched)  # other threads may compile, so the module stays as it is
    found: list[Any] = prune(shape.b, shape.whole[0], itemsize(shape.dtype), mm_grouped.grouped_mm_configs(), arguments)
    return found


def _arguments(config: Any, named_arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **named_arguments,
        **config.kwargs,
        "num_stages": config.num_stages,
        "num_warps": config.num_warps,
    }


def _offers_vendor() -> bool:
    from torch._inductor.utils import use_aten_gemm_kernels

    return bool(use_aten_gemm_kernels())
