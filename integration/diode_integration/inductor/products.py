"""The matrix product that Inductor asks about: its sizes, and the arithmetic that follows it in the graph.

**Dynamic sizes.** A symbolic size counts as its hint, the size at the time of the compile. If a range is stated for
it, as ``mark_dynamic(tensor, 0, min=1, max=4096)`` does, the kernel has to serve the whole range. The model is then
asked about several sizes in the range, and each candidate counts by its worst regret among them. No model can be asked
about sizes without a hint, which depend on data.

**Epilogues.** Inductor fuses pointwise operations on a product into a Triton template, but leaves a vendor kernel a
kernel of their own. It weighs the two by benchmarks, and a single choice is not benchmarked. The hook therefore adds
the saving to the vendor kernel's time before it ranks the candidates. A fused kernel does not write the product to
memory to read it again, and needs one launch less.

The saving holds for arithmetic that hides behind memory. Heavier arithmetic (an exponential, a division) takes a
template's multiprocessors about as long as a kernel of its own, and nothing is added for it. Nothing is added before a
reduction either: Inductor makes the reduction a kernel in any case, and its pointwise inputs a part of that kernel.
``docs/results/fusion.md`` has the measurements, ``benchmarks/bench_fusion_gpu.py`` repeats them.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from torch._inductor import config as inductor_config

from diode_collectors.inductor.adapter import problem_of_inputs
from diode_integration.decide.ranking import SizeRange
from diode_store.devices.descriptor import describe
from diode_store.errors import RecordError
from diode_store.ops import OPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch._inductor.kernel_inputs import KernelInputs
    from torch.fx import Node

    from diode_integration.decide.ranking import Predictor, Ranking
    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, Problem

_POINTS = 6
"""Number of sizes in a range to ask the model about, beside the hint, equally far apart in the logarithm."""
_UNBOUNDED = 2**31 - 1
"""Upper end from which a range counts as open, as with a guard on 32-bit indices; torch's own end is near 2**63."""
_stated_ranges: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""Trace (``ShapeEnv``) → symbol → its stated range."""
_LAUNCH_US = 1.5
"""Cost of one more kernel beyond its traffic, in microseconds, on an H200 with CUDA graphs."""
_CHEAP = frozenset(
    f"aten.{name}"
    for name in (
        *("abs", "add", "addcmul", "clamp", "clamp_max", "clamp_min", "maximum", "minimum", "mul", "neg", "relu"),
        *("eq", "ge", "gt", "le", "lt", "ne", "hardtanh", "leaky_relu", "rsub", "square", "sub", "where", "_to_copy"),
    )
) | {"prims.convert_element_type"}
_SQUARE = ("aten.pow", 2)
_PRODUCTS = frozenset(f"aten.{prefix}{name}" for name, op in OPS.items() if op.has_matrices for prefix in ("", "_"))
_KERNELS = _PRODUCTS | {"aten.convolution"}
"""Ops that read from memory and write to it, whatever is around."""
_CONSTANTS = frozenset({"aten.full", "aten.scalar_tensor"})
_MOST_NODES = 1000
"""Size of a neighborhood from which nothing is counted; a look at it would take longer than it could save."""


@dataclass(frozen=True)
class StatedRange:
    """Problems that one call may have to serve, by sizes of the range, smallest first."""

    problems: tuple[Problem, ...]
    text: str
    """The range for a person, such as ``s0 in 1 to 4096``."""

    @property
    def largest(self) -> Problem:
        """The problem at the upper end."""
        return self.problems[-1]


@dataclass(frozen=True)
class Product:
    """Matrix product that one call of the hook is about."""

    problem: Problem | None
    """Problem with each symbolic size at its hint; None if there is none."""
    defect: tuple[str, str] | None = None
    """Reason and detail why there is no problem: an ``op`` without a name, or an ``unbacked`` size without a hint."""
    over: StatedRange | None = None
    """Range that is stated for symbolic sizes; None if there is none."""
    is_dynamic: bool = False
    """True if a size is a symbol, so that the kernel is compiled for other sizes than the hint."""

    @property
    def largest(self) -> Problem | None:
        """Product at the upper end of the range, or at the hint."""
        return self.over.largest if self.over else self.problem

    @property
    def others(self) -> tuple[Problem, ...]:
        """Products of the range."""
        return self.over.problems if self.over else ()


def product_of(
    kernel_inputs: KernelInputs, op_name: str, overrides: Mapping[str, Mapping[str, Any]] | None = None
) -> Product:
    """Return the matrix product of a call; ``overrides`` are the op's arguments for its templates."""
    unhinted = _unhinted(kernel_inputs)
    if unhinted:
        return Product(None, ("unbacked", f"sizes that depend on data have no hint: {', '.join(unhinted)}"))
    try:
        problem = problem_of_inputs(kernel_inputs, op_name, overrides=overrides)
        problem.shape  # noqa: B018 - raises for an op that the table does not have
    except RecordError as error:
        return Product(None, ("op", str(error)))
    return Product(problem, None, _stated_range(kernel_inputs, op_name, overrides), bool(_symbols(kernel_inputs)))


def _stated_range(
    kernel_inputs: KernelInputs, op_name: str, overrides: Mapping[str, Mapping[str, Any]] | None
) -> StatedRange | None:
    """Return the problems in the range that is stated for a call's sizes; None without a stated range.

    Several symbols go through their ranges together. A symbol without a range keeps its hint.
    """
    bounds = _bounds(kernel_inputs)
    if not bounds:
        return None
    problems = {}
    for place in np.linspace(0, 1, _POINTS):
        sizes = {symbol: round(low * (high / low) ** place) for symbol, (low, high) in bounds.items()}
        try:
            problem = problem_of_inputs(kernel_inputs, op_name, sizes, overrides)
        except RecordError:  # such as a size of 0 that an expression of the symbol gives
            continue
        problems[problem.key] = problem
    text = ", ".join(f"{symbol} in {low:,} to {high:,}" for symbol, (low, high) in bounds.items())
    return StatedRange(tuple(problems.values()), text) if problems else None


def over_range(
    predictor: Predictor, at_hint: Ranking, stated: StatedRange, hardware: Hardware, columns: ConfigColumns
) -> Ranking:
    """Rank n candidates by their worst regret over a range, in microseconds at the hint.

    Args:
        predictor: asked about the problems of the range; problems outside its domain are left out.
        at_hint: the ranking of all candidates at the hint. It must not drop equal kernels, which differ between sizes.
        stated: the range.
        hardware: the device.
        columns: the candidates.
    """
    predicted = [at_hint.predicted_us]
    for problem in stated.problems:
        if predictor.miss(problem, hardware) is None:
            ranking = predictor.rank(problem, hardware, columns, distinct=False)
            predicted += [ranking.predicted_us] if ranking.defect is None else []
    missing = len(stated.problems) + 1 - len(predicted)
    unknown = f" ({missing} of {len(stated.problems)} sizes are outside what the model knows)" if missing else ""
    over = SizeRange(np.nan_to_num(np.stack(predicted), nan=np.inf, posinf=np.inf), f"{stated.text}{unknown}")
    # Members agree or differ about one size; the confidence in the worst of several sizes is not calibrated.
    return replace(at_hint, predicted_us=over.worst_regret_us()[0], spread=None, over=over)


def inputs_at(kernel_inputs: KernelInputs, problem: Problem) -> KernelInputs:
    """Return inputs for which Inductor lists the candidates for the sizes of ``problem``."""
    from sympy import Integer  # type: ignore[import-untyped]

    sized = copy.copy(kernel_inputs)
    shape = problem.shape
    sized.mnk_symbolic = lambda: (Integer(shape.m), Integer(shape.n), Integer(shape.k))
    return sized


def _bounds(kernel_inputs: KernelInputs) -> Mapping[Any, tuple[int, int]]:
    """Return the least and the largest value of each symbol with both stated, in a stable order.

    Guards narrow a stated range, since the compiled graph serves no more; they state no range by themselves.
    """
    from torch._inductor.virtualized import V

    symbols = sorted(_symbols(kernel_inputs), key=str)
    stated = _stated(V.graph.sizevars.shape_env) if symbols else {}
    found = {}
    for symbol in symbols:
        if symbol not in stated:
            continue
        known = stated[symbol] & V.graph.sizevars.shape_env.var_to_range.get(symbol, stated[symbol])
        if not known.upper.is_Integer or not known.lower.is_Integer:
            continue
        low, high = max(int(known.lower), 1), int(known.upper)
        if low < high < _UNBOUNDED:
            found[symbol] = (low, high)
    return found


def _symbols(kernel_inputs: KernelInputs) -> set[Any]:
    """Return the symbols that the sizes of a call's inputs depend on."""
    sizes = (size for sizes in kernel_inputs.shapes_symbolic() for size in sizes)
    return {symbol for size in sizes for symbol in getattr(size, "free_symbols", ())}


def _stated(shape_env: Any) -> Mapping[Any, Any]:
    """Return the range that a user stated for each symbol of a trace, kept for the backward graph.

    torch keeps the ranges with the traced inputs, and forgets these after compiling the forward graph.
    """
    stated = _stated_ranges.setdefault(shape_env, {})
    for tracked in getattr(shape_env, "tracked_fakes", None) or ():
        constraints = getattr(tracked.symbolic_context, "constraint_sizes", None) or ()
        for size, constraint in zip(getattr(tracked.fake, "shape", ()), constraints, strict=False):
            symbol = getattr(getattr(size, "node", None), "expr", None)
            if hasattr(constraint, "vr") and getattr(symbol, "is_Symbol", False):
                stated[symbol] = constraint.vr
    return stated


def _unhinted(kernel_inputs: KernelInputs) -> list[str]:
    """Return the names of sizes that depend on data and have no hint."""
    from torch._inductor.virtualized import V
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    unbacked = {
        symbol for sizes in kernel_inputs.shapes_symbolic() for size in sizes for symbol in free_unbacked_symbols(size)
    }
    if not unbacked:
        return []
    hinted = getattr(V.graph.sizevars, "var_to_hint_override", {})
    return sorted(str(symbol) for symbol in unbacked if symbol not in hinted)


def unfused_us(problem: Problem, hardware: Hardware) -> float:
    """Return the cost of an unfused vendor kernel beyond its own time, for the product that Inductor is lowering.

    Args:
        problem: the product.
        hardware: the device; traffic is counted at its memory bandwidth.

    Returns:
        The cost in microseconds.
    """
    product = _current_node()
    if product is None or not inductor_config.epilogue_fusion or not _is_followed_cheaply(product):
        return 0.0
    elements = problem.shape.b * problem.shape.m * problem.shape.n
    written_and_read: int = 2 * elements * product.meta["val"].dtype.itemsize
    return _LAUNCH_US + 1e6 * written_and_read / describe(hardware).memory_bandwidth


def _current_node() -> Node | None:
    from torch._inductor.virtualized import V

    return getattr(V.graph, "current_node", None)


def _is_followed_cheaply(product: Node) -> bool:
    """Return whether a template would take in everything that follows a product, at little cost."""
    size = _size(product)
    behind, waiting = {product}, [product]
    bare = {product}  # the product itself, and views of it
    beside: set[Node] = set()
    while waiting and len(behind) + len(beside) < _MOST_NODES:
        node = waiting.pop()
        for user in node.users:
            if user in behind:
                continue
            is_view = _is_view(user)
            if size is not None and _size(user) == size and (is_view or _is_cheap(user)):
                behind.add(user)
                waiting.append(user)
                if is_view and node in bare:
                    bare.add(user)
                elif not is_view and not _is_cheap_beside(user, product, behind, beside):
                    return False
            elif node in bare or not (user.op == "output" or _name(user) in _KERNELS):
                return False
    return not waiting and len(behind) > len(bare)


def _is_cheap_beside(user: Node, product: Node, behind: set[Node], beside: set[Node]) -> bool:
    """Return whether all other inputs of a node behind the product are read from memory, or cheap as well.

    Inductor makes pointwise inputs a part of the same kernel. If one of them is a reduction, it prefers to fuse the
    node with the reduction. A node behind two products is fused into the product that is computed last.

    Args:
        user: the node.
        product: the product that is lowered.
        behind: nodes that follow the product.
        beside: nodes known to be cheap; further ones are added.
    """
    waiting = [user]
    while waiting:
        for needed in waiting.pop().all_input_nodes:
            if needed in behind or needed in beside:
                continue
            name = _name(needed)
            if name in _PRODUCTS and product < needed:
                return False
            beside.add(needed)
            if _is_view(needed) or _is_cheap(needed):
                waiting.append(needed)
            elif needed.op not in {"placeholder", "get_attr"} and name not in _KERNELS | _CONSTANTS:
                return False
    return True


def _name(node: Node) -> str:
    """Return the name of a node's op without its overload, such as ``aten.add``."""
    return ".".join(str(node.target).split(".")[:2])


def _is_view(node: Node) -> bool:
    return bool(getattr(node.target, "is_view", False)) or _name(node) in {"aten.reshape", "aten._unsafe_view"}


def _is_cheap(node: Node) -> bool:
    return _name(node) in _CHEAP or (_name(node), *node.args[1:2]) == _SQUARE


def _size(node: Node) -> Any:
    """Return the number of elements, an expression if sizes are symbols; None if unknown.

    Numbers of equal value may differ as expressions; asking torch could leave a guard in the user's program.
    """
    value = node.meta.get("val")
    shape = getattr(value, "shape", None)
    if shape is None:
        return None
    return math.prod(size if isinstance(size, int) else size.node.expr for size in shape)
