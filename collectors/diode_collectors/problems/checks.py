"""Rules of torch for the problems of scaled, grouped and int8 products, and of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_collectors.problems.attention import check_attention
from diode_collectors.problems.convolutions import check_convolution
from diode_store.candidates.operands import ACCESS_BYTES
from diode_store.errors import RecordError, SettingsError
from diode_store.ops import OPS
from diode_store.ops.grouping import BATCH
from diode_store.ops.inputs import plain_inputs, plain_problem
from diode_store.ops.work import itemsize

if TYPE_CHECKING:
    from diode_store.records import ProblemShape

MOST_GROUPS = 1023
"""Limit of torch's grouped kernels on the number of groups."""
_FLOAT8_MULTIPLE, _INT8_MULTIPLE, _FEWEST_INT8_ROWS = 16, 8, 17
_E5M2 = "float8_e5m2"


def check_sizes(shape: ProblemShape) -> None:
    """Check the dtype, layout and sizes of a problem against the rules of torch for its op.

    Raises:
        SettingsError: torch refuses the problem; the message names the rule.
    """
    op, entry = shape.op, OPS[shape.op]
    if entry.is_plain:
        return
    if entry.is_convolution:
        check_convolution(shape)
        return
    if shape.dtype not in entry.dtypes:
        raise SettingsError(f"{op} takes no {shape.dtype}; known dtypes: {', '.join(entry.dtypes)}")
    if shape.layout not in entry.layouts:
        wanted = " or ".join(entry.layouts)
        which = "" if entry.is_attention else ": A by rows, B by columns"
        raise SettingsError(f"{op} takes the layout {wanted} only, not {shape.layout}{which}")
    if entry.is_attention:
        check_attention(shape)
    if op == "int_mm":
        _check_multiples(shape, _INT8_MULTIPLE)
        if shape.m < _FEWEST_INT8_ROWS:
            raise SettingsError(f"{op} needs an M of at least {_FEWEST_INT8_ROWS}, not {shape.m}")
    if entry.is_scaled:
        _check_multiples(shape, _FLOAT8_MULTIPLE)
        if _E5M2 == shape.dtype == shape.dimension("b_dtype", shape.dtype):
            raise SettingsError(f"{op} takes e5m2 for A or for B, not for both; write e5m2+e4m3")


def check_dimensions(shape: ProblemShape) -> None:
    """Check that the named dimensions of a problem go together, and that they are those that its record will have.

    Raises:
        SettingsError: they do not.
    """
    op, entry = shape.op, OPS[shape.op]
    if not entry.has_dimensions:
        raise SettingsError(f"{op} has no dimensions beside its sizes, but {', '.join(dict(shape.dimensions))}")
    if shape.dimension("bias") and shape.dimension("out_dtype") == "float32":
        raise SettingsError(f"{op} adds no bias to an output in fp32; leave out the bias, or out=fp32")
    if entry.is_grouped:
        _check_groups(shape)
    try:
        found = plain_problem(shape).shape
    except (RecordError, KeyError) as error:
        raise SettingsError(f"{op}: {error}") from error
    if found != shape:
        theirs = ", ".join(f"{n} {v}" for n, v in found.dimensions if shape.dimension(n) != v) or str(found)
        raise SettingsError(f"{op}: these sizes and dimensions are those of another problem, with {theirs}")


def _check_multiples(shape: ProblemShape, multiple: int) -> None:
    _, n, k = shape.whole
    if n % multiple or k % multiple:
        raise SettingsError(f"{shape.op} needs an N and a K that are multiples of {multiple}, not {n} and {k}")


def _check_groups(shape: ProblemShape) -> None:
    if shape.b > MOST_GROUPS:
        raise SettingsError(f"{shape.op} has at most {MOST_GROUPS} groups, not {shape.b}")
    form = shape.dimension("form")
    if not shape.dimension("total") and form != BATCH:
        raise SettingsError(f"{shape.op} needs the total of its groups, unless its form is {BATCH}")
    if form == BATCH and shape.dimension("skew"):
        raise SettingsError(f"{shape.op} of the form {BATCH} has equal groups, so no skew")
    item_bytes = itemsize(shape.dtype)
    try:
        operands = plain_inputs(shape)[:2]
    except RecordError as error:
        raise SettingsError(str(error)) from error
    for name, spec in zip("AB", operands, strict=True):
        row = max(spec.stride[-2:])
        if row * item_bytes % ACCESS_BYTES:
            raise SettingsError(
                f"{shape.op} needs rows of {name} that are multiples of {ACCESS_BYTES} bytes, not {row} elements"
            )
