"""Matrix products of dynamic size: what the model is asked about sizes that are not known when a graph is compiled.

A symbolic size counts as its hint, the size that was there when Inductor compiled. Where a range of it is stated, as
``mark_dynamic(tensor, 0, min=1, max=4096)`` does, the kernel has to serve all of the range: the model is asked about
several sizes in it, and each candidate counts by its worst regret among them. Sizes without a hint, which depend on
data, are nothing that a model could be asked about.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from diode_collectors.inductor.adapter import problem_of_inputs
from diode_integration.predictor import AbstentionError, SizeRange
from diode_store.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch._inductor.kernel_inputs import KernelInputs

    from diode_integration.predictor import Predictor, Ranking
    from diode_store.columns import ConfigColumns
    from diode_store.records import Hardware, Problem

_POINTS = 6
"""Sizes of a range that the model is asked about, equally far apart in the logarithm, beside the hint."""
_UNBOUNDED = 2**31 - 1
"""An upper end from which a range is taken for open, as by a guard on 32-bit indices; torch's own is near 2**63."""
_stated_ranges: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""Of each trace (``ShapeEnv``), the range that was stated for each symbol."""


@dataclass(frozen=True)
class StatedRange:
    """The problems that one call may have to serve, by sizes of the range, smallest first."""

    problems: tuple[Problem, ...]
    text: str
    """Such as ``s0 in 1 to 4096``."""

    @property
    def largest(self) -> Problem:
        """The one at the upper end."""
        return self.problems[-1]


def is_dynamic(kernel_inputs: KernelInputs) -> bool:
    """Whether a size of a call is a symbol, so that kernels are compiled for others than the hint."""
    return bool(_symbols(kernel_inputs))


def problem_at_hint(kernel_inputs: KernelInputs, op_name: str) -> Problem:
    """Return the problem of a call, each symbolic size being its hint.

    Raises:
        AbstentionError: it is no known matrix product, or a size depends on data and nobody gave a hint for it.
    """
    _require_hints(kernel_inputs)
    try:
        return problem_of_inputs(kernel_inputs, op_name)
    except RecordError as error:
        raise AbstentionError("op", str(error)) from None


def stated_range(kernel_inputs: KernelInputs, op_name: str) -> StatedRange | None:
    """Return the problems in the range that is stated for a call's sizes; None where none is, or sizes are fixed.

    Several symbols go through their ranges together. One without a range keeps its hint.
    """
    bounds = _bounds(kernel_inputs)
    if not bounds:
        return None
    problems = {}
    for place in np.linspace(0, 1, _POINTS):
        sizes = {symbol: round(low * (high / low) ** place) for symbol, (low, high) in bounds.items()}
        try:
            problem = problem_of_inputs(kernel_inputs, op_name, sizes)
        except RecordError:  # such as a size of 0 where it is an expression of the symbol
            continue
        problems[problem.key] = problem
    text = ", ".join(f"{symbol} in {low:,} to {high:,}" for symbol, (low, high) in bounds.items())
    return StatedRange(tuple(problems.values()), text) if problems else None


def problem_or_none(kernel_inputs: KernelInputs, op_name: str) -> Problem | None:
    """Return ``problem_at_hint``, or None where it abstains."""
    try:
        return problem_at_hint(kernel_inputs, op_name)
    except AbstentionError:
        return None


def over_range(
    predictor: Predictor, at_hint: Ranking, stated: StatedRange, hardware: Hardware, columns: ConfigColumns
) -> Ranking:
    """Return a ranking of n candidates by their worst regret over a range, in microseconds at the hint.

    Args:
        predictor: asked about the problems of the range; those that are outside its domain are left out.
        at_hint: its ranking for the problem at the hint, of all candidates: which are one kernel is another question at
            each size.
        stated: the range.
        hardware: the device.
        columns: the candidates.
    """
    predicted = [at_hint.predicted_us]
    for problem in stated.problems:
        with suppress(AbstentionError):
            predicted.append(predictor.rank(problem, hardware, columns, distinct=False).predicted_us)
    missing = len(stated.problems) + 1 - len(predicted)
    unknown = f" ({missing} of {len(stated.problems)} sizes are outside what the model knows)" if missing else ""
    over = SizeRange(np.nan_to_num(np.stack(predicted), nan=np.inf, posinf=np.inf), f"{stated.text}{unknown}")
    # Members agree or differ about one size; how sure they are of the worst of several nobody has calibrated.
    return replace(at_hint, predicted_us=over.worst_regret_us()[0], spread=None, over=over)


def inputs_at(kernel_inputs: KernelInputs, problem: Problem) -> KernelInputs:
    """Return inputs for which Inductor lists what it would for the sizes of ``problem``."""
    from sympy import Integer  # type: ignore[import-untyped]

    sized = copy.copy(kernel_inputs)
    shape = problem.shape
    sized.mnk_symbolic = lambda: (Integer(shape.m), Integer(shape.n), Integer(shape.k))
    return sized


def _bounds(kernel_inputs: KernelInputs) -> Mapping[Any, tuple[int, int]]:
    """Return the least and the largest value of each symbol for which both are stated, in a stable order.

    Guards narrow what was stated, since the compiled graph serves no more; they state nothing by themselves.
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

    torch keeps it with the inputs that it traced, and forgets those once the forward graph is compiled.
    """
    stated = _stated_ranges.setdefault(shape_env, {})
    for tracked in getattr(shape_env, "tracked_fakes", None) or ():
        constraints = getattr(tracked.symbolic_context, "constraint_sizes", None) or ()
        for size, constraint in zip(getattr(tracked.fake, "shape", ()), constraints, strict=False):
            symbol = getattr(getattr(size, "node", None), "expr", None)
            if hasattr(constraint, "vr") and getattr(symbol, "is_Symbol", False):
                stated[symbol] = constraint.vr
    return stated


def _require_hints(kernel_inputs: KernelInputs) -> None:
    from torch._inductor.virtualized import V
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    unbacked = {
        symbol for sizes in kernel_inputs.shapes_symbolic() for size in sizes for symbol in free_unbacked_symbols(size)
    }
    if not unbacked:
        return
    hinted = getattr(V.graph.sizevars, "var_to_hint_override", {})
    unknown = sorted(str(symbol) for symbol in unbacked if symbol not in hinted)
    if unknown:
        raise AbstentionError("unbacked", f"sizes that depend on data have no hint: {', '.join(unknown)}")
