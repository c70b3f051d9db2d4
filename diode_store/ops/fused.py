"""Fused kernels: the pointwise and reduction kernels that Inductor generates from a graph.

No shape describes such a kernel, but its source does. A problem of these ops has the dtypes of the kernel's pointers as
inputs. Its scalars are the key of its source and the hint of each range. Inductor rounds these hints up to powers of 2.
The exact sizes are constants in the source if the shapes are static.

``FUSED_OPS`` has the names of the ops, which are those of Inductor's heuristics. A persistent reduction holds whole
rows at once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diode_store.errors import RecordError
from diode_store.ops.problem import Problem, TensorSpec
from diode_store.ops.table import FUSED_OPS
from diode_store.values.checks import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

SOURCE = "source"
"""Scalar with the key of the kernel's source."""
RANGES = ("z", "y", "x", "r0_", "r1_")
"""Inductor's names of the ranges, from the slowest; those of reductions start with r."""
SHOWN_DIGITS = 8
"""Number of digits of the source's key in the text of a problem."""
_KEY = re.compile(r"[0-9a-f]{32}")


def is_fused(op: str) -> bool:
    """Return whether ``op`` is one of ``FUSED_OPS``."""
    return op in FUSED_OPS


def fused_template(op: str) -> str:
    """Return the uid that the configs of a fused kernel have as their template."""
    return f"triton::{op}"


def fused_problem(
    op: str, dtypes: Iterable[str], source: str, sizes: Mapping[str, int], facts: Mapping[str, Any] | None = None
) -> Problem:
    """Return the problem of a fused kernel.

    Args:
        op: one of ``FUSED_OPS``.
        dtypes: dtypes of the kernel's pointers, in order.
        source: key of the source, 32 hexadecimal digits.
        sizes: hint of each range in elements, by its name in ``RANGES``.
        facts: facts about the source that are no part of the problem's identity, such as the number of loads.

    Raises:
        RecordError: what no fused kernel has.
    """
    inputs = tuple(TensorSpec(dtype, (), ()) for dtype in dtypes)
    made = Problem.create(op, inputs, {**sizes, SOURCE: source}, facts)
    check_fused(made)
    return made


def check_fused(problem: Problem) -> None:
    """Check the problem of a fused kernel.

    Raises:
        RecordError: an unknown op, no key of a source, or no sizes.
    """
    scalars = dict(problem.scalars)
    source = scalars.pop(SOURCE, None)
    if not is_fused(problem.op):
        raise RecordError(f"{shown(problem.op)} is no fused kernel; expected {', '.join(FUSED_OPS)}")
    if not isinstance(source, str) or not _KEY.fullmatch(source):
        raise RecordError(f"{problem.op}: {SOURCE} must be 32 hexadecimal digits, not {shown(source)}")
    if not scalars or not scalars.keys() <= set(RANGES):
        raise RecordError(
            f"{problem.op}: expected the sizes of some of {', '.join(RANGES)}, not {shown(sorted(scalars))}"
        )
    for name, size in scalars.items():
        if type(size) is not int or size < 1:
            raise RecordError(f"{problem.op}: {name} must be a positive whole number, not {shown(size)}")
