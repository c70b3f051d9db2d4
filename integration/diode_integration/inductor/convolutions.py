"""Kernels of a convolution on a CUDA device, as Inductor would list them, on any machine."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.convolutions import CONVOLUTION
from diode_collectors.inductor.indexing import overflows
from diode_integration.decide.decision import DecidedBy
from diode_integration.inductor.as_if_cuda import ListedConfig
from diode_integration.inductor.entry import Mark, mark_of, marking_later
from diode_store.candidates.convolution_space import why_not_trusted
from diode_store.kernels import KernelConfig, agrees
from diode_store.ops import OPS
from diode_store.ops.convolving import CHANNELS_LAST
from diode_store.ops.work import itemsize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from diode_integration.decide.decision import Decision
    from diode_store.records import Problem

(_VENDOR,), (_PRODUCT,) = OPS[CONVOLUTION].vendors, OPS[CONVOLUTION].other_vendors
VENDOR, PRODUCT = KernelConfig(_VENDOR), KernelConfig(_PRODUCT)


def candidates_of(problem: Problem) -> list[KernelConfig]:
    """Return the library's kernel, the product that a 1 x 1 convolution is, and the templates of images.

    A template has no dilation. Its batch of images is the product's M, as Inductor counts it: positions of the input.
    """
    size, weight = (spec.size for spec in problem.inputs[:2])
    shape = problem.shape
    is_image = len(size) == len(problem.inputs[0].stride) == 4  # noqa: PLR2004 - batch, channels, height and width
    if not is_image or shape.dimension("dilation") is not None or overflows(problem):
        return [VENDOR]
    is_pointwise = prod(weight[2:]) == 1
    is_product = is_pointwise and shape.b == 1 and not (shape.dimension("stride") or shape.dimension("padding"))
    listed = _listed(size[0] * prod(size[2:]), weight[0], weight[1], itemsize(shape.dtype))
    templates = [each for each in listed if why_not_trusted(shape, each) is None]
    return [VENDOR, *([PRODUCT] if is_product and shape.layout[0] == CHANNELS_LAST else []), *templates]


def _listed(m: int, n: int, k: int, item_bytes: int) -> list[KernelConfig]:
    from torch._inductor.choices import InductorChoices

    heuristics = InductorChoices().get_config_heuristics("cuda")
    if find_spec("triton") is None:
        heuristics = copy.copy(heuristics)  # Inductor shares one object among all ops
        heuristics.triton_config = ListedConfig.made
    with _with_sizes():
        found = list(heuristics.get_conv_configs()(m, n, k, dtype_size=item_bytes))
    return list(dict.fromkeys(map(_config_of, found)))


def _config_of(listed: Any) -> KernelConfig:
    blocks = {f"block_{name}": listed.kwargs[f"BLOCK_{name.upper()}"] for name in "mnk"}
    return KernelConfig(OPS[CONVOLUTION].template, num_stages=listed.num_stages, num_warps=listed.num_warps, **blocks)


@contextmanager
def _with_sizes() -> Iterator[None]:
    """Let heuristics ask for the hints of sizes outside a compile, too."""
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import NullHandler, V

    if not isinstance(V.graph, NullHandler):
        yield
        return
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        yield


@dataclass(frozen=True, eq=False)
class KeptMark(Mark):
    """Ties a choice to the decision on an op that was made before Inductor listed its choices."""

    KEY = "diode_kept"
    decision: Decision
    who: str
    """Words for a person: who decided."""
    on_missing: Callable[..., None]
    """Called with ``vendor_is_kept`` if the kernel is not among the choices."""
    is_kept: bool
    """True for the kernel to keep, False for the library's, which stands in."""


@contextmanager
def kept_alone(config: KernelConfig, mark: Callable[[bool], KeptMark]) -> Iterator[None]:
    """Have this thread's next convolution left with one template, or with the library's kernel if it has no code.

    Args:
        config: the template's config; fields without a value match any.
        mark: returns the mark of a choice, given whether it is the one to keep.
    """

    def marker(found: KernelConfig) -> Mapping[str, Any]:
        if found.template != config.template:
            return {KeptMark.KEY: mark(False)} if found == VENDOR else {}  # noqa: FBT003 - the only argument
        return {KeptMark.KEY: mark(True)} if agrees(found, config) else {}  # noqa: FBT003 - as above

    with marking_later(lambda: marker):
        yield


def settle_kept(choices: list[Any]) -> tuple[list[Any], Decision] | None:
    """Return the kernel that was decided on alone, else the library's, with the decision; None without any mark."""
    marks = [(choice, mark) for choice in choices if (mark := mark_of(choice, KeptMark)) is not None]
    if not marks:
        return None
    _, first = marks[0]
    kept = [choice for choice, mark in marks if mark.is_kept]
    if kept:
        return kept[:1], first.decision
    stand_ins = [choice for choice, _ in marks]
    first.on_missing(vendor_is_kept=True)
    reason = f"Inductor cannot generate {first.decision.chosen[0].config.describe()}, which {first.who} picks"
    decision = replace(first.decision, candidates=0, chosen=(), reason=reason, decided_by=DecidedBy.VENDOR)
    return stand_ins[:1], replace(decision, picks_sha256=None, model_sha256=None, similar_to=None)
