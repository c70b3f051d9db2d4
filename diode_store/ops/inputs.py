"""Plain inputs of a problem: contiguous operands, and scales, a bias and offsets as torch demands them."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from diode_store.errors import RecordError
from diode_store.ops.attending import BLOCK, MASK, attention_strides
from diode_store.ops.convolving import BETWEEN, GROUPS, USUAL, convolution_strides, split
from diode_store.ops.grouping import (
    BATCH,
    COLUMNS,
    DEPTH,
    FORMS,
    ROWS,
    alignment_of,
    group_sizes,
    scale_sizes,
)
from diode_store.ops.problem import Problem, TensorSpec
from diode_store.ops.scaling import TENSOR, recipes_of, scale_size, scale_stride
from diode_store.ops.table import OPS
from diode_store.ops.work import itemsize

if TYPE_CHECKING:
    from diode_store.kernels import Scalar
    from diode_store.ops.problem import ProblemShape

SCALE_DTYPE, OFFSETS_DTYPE = "float32", "int32"
_SCALED_OUTPUT = "bfloat16"
"""Dtype of a scaled product that does not say another."""


def plain_inputs(shape: ProblemShape) -> tuple[TensorSpec, ...]:
    """Return the inputs that a model passes to the op, in the op's order; a bias of ``addmm`` is a vector.

    Raises:
        RecordError: a layout or dimensions that no plain inputs have.
    """
    entry = OPS[shape.op]
    if not set(shape.layout) <= {"n", "t"}:
        raise RecordError(f"{shape.op}: operands of the layout {shape.layout} are not plain")
    if entry.is_convolution:
        return _of_convolution(shape)
    if entry.is_attention:
        return _of_attention(shape)
    a, b = _grouped_operands(shape) if entry.is_grouped else _operands(shape)
    inputs = (a, b) * entry.products
    if entry.has_bias:
        return (_bias(shape), *inputs)
    if entry.is_scaled:
        inputs = (*inputs, *_scales(shape, a, b))
    if entry.is_grouped and shape.dimension("form") != BATCH:
        inputs = (*inputs, TensorSpec(OFFSETS_DTYPE, (shape.b,), (1,)))
    if entry.is_scaled and shape.dimension("bias"):
        inputs = (*inputs, TensorSpec(bias_dtype(scaled_output(shape)), (shape.n,), (1,)))
    return inputs


def plain_problem(shape: ProblemShape) -> Problem:
    """Return the problem with plain inputs that has a shape, as Inductor's report records it.

    Raises:
        RecordError: a layout or dimensions that no plain inputs have.
    """
    entry = OPS[shape.op]
    scalars: dict[str, Scalar] = {}
    if shape.tf32:
        scalars["ALLOW_TF32"] = True
    if entry.is_scaled:
        scalars |= {"out_dtype": scaled_output(shape), "use_fast_accum": bool(shape.dimension("fast_accum"))}
    elif entry.out_dtype:
        scalars["out_dtype"] = entry.out_dtype
    if entry.is_convolution:
        scalars |= {name: shape.dimension(name) for name in USUAL if shape.dimension(name)} | {GROUPS: shape.b}
    if entry.is_attention:
        scalars |= {name: shape.dimension(name) for name in (MASK, BLOCK)}
    if entry.is_grouped:
        scalars["skew"] = shape.dimension("skew", 0)
    return Problem.create(shape.op, plain_inputs(shape), scalars)


def without_skew(problem: Problem) -> Problem:
    """Return a problem as a compile sees it: routing is not known yet, so groups have no skew."""
    scalars = dict(problem.scalars)
    if scalars.pop("skew", None) is None:
        return problem
    return Problem.create(problem.op, problem.inputs, scalars, problem.extra)


def with_values_of(problem: Problem, asked: Problem) -> Problem:
    """Return a problem of a compile with what only its caller knows: the skew of groups, and the mask of attention."""
    names = ("skew",) if OPS[problem.op].is_grouped else (MASK, BLOCK) if OPS[problem.op].is_attention else ()
    if not names or problem.op != asked.op:
        return problem
    ours = {name: value for name, value in problem.scalars if name not in names}
    theirs = {name: value for name, value in asked.scalars if name in names}
    return Problem.create(problem.op, problem.inputs, ours | theirs, problem.extra)


def with_total(shape: ProblemShape) -> ProblemShape:
    """Return a grouped shape whose total is that of groups of its mean size; any other shape as it is."""
    mean = {ROWS: shape.m, COLUMNS: shape.n, DEPTH: shape.k}.get(str(shape.dimension("form")))
    if mean is None:
        return shape
    return replace(shape, dimensions=tuple(sorted({**dict(shape.dimensions), "total": mean * shape.b}.items())))


def ends_of_groups(shape: ProblemShape) -> list[int]:
    """Return the offsets of a grouped product: where each group ends along the grouped dimension."""
    form, total = shape.dimension("form"), shape.dimension("total")
    sizes = group_sizes(shape.b, total, shape.dimension("skew", 0.0), alignment_of(form, itemsize(shape.dtype)))
    return list(accumulate(sizes))


def scaled_output(shape: ProblemShape) -> str:
    """Return the dtype of a scaled product."""
    return str(shape.dimension("out_dtype", _SCALED_OUTPUT))


def bias_dtype(output: str) -> str:
    """Return the dtype of the bias that torch takes for a scaled product of a dtype."""
    return output if output == "float16" else "bfloat16"


def _matrix(dtype: str, batch: tuple[int, ...], rows: int, columns: int, letter: str) -> TensorSpec:
    stride = (columns, 1) if letter == "n" else (1, rows)
    return TensorSpec(dtype, (*batch, rows, columns), (*(rows * columns for _ in batch), *stride))


def _operands(shape: ProblemShape) -> tuple[TensorSpec, TensorSpec]:
    batch = (shape.b,) if OPS[shape.op].is_batched else ()
    other = str(shape.dimension("b_dtype", shape.dtype))
    return (
        _matrix(shape.dtype, batch, shape.m, shape.k, shape.layout[0]),
        _matrix(other, batch, shape.k, shape.n, shape.layout[1]),
    )


def _grouped_operands(shape: ProblemShape) -> tuple[TensorSpec, TensorSpec]:
    form, total = shape.dimension("form"), shape.dimension("total", 0)
    if form not in FORMS or (form != BATCH) != bool(total):
        raise RecordError(f"{shape.op}: a grouped product needs a form and a total, not {form} and {total}")
    m, n, k = shape.whole
    groups = (shape.b,)
    return (
        _matrix(shape.dtype, groups if form in {COLUMNS, BATCH} else (), m, k, shape.layout[0]),
        _matrix(shape.dtype, groups if form in {ROWS, BATCH} else (), k, n, shape.layout[1]),
    )


def _of_convolution(shape: ProblemShape) -> tuple[TensorSpec, ...]:
    """Return input, weights and bias of a convolution, all in the memory format of the input."""
    op, is_last = shape.op, shape.layout[0] == "n"
    words = [str(shape.dimension(name, "")) for name in ("size", "kernel")]
    if not all(words):
        raise RecordError(f"{op}: a convolution needs a size and a kernel")
    spatial = len(words[0].split(BETWEEN))
    size, kernel = (split(op, name, word, spatial) for name, word in zip(("size", "kernel"), words, strict=True))
    channels = shape.k // prod(kernel)
    sizes = ((int(shape.dimension("batch", 1)), channels * shape.b, *size), (shape.n * shape.b, channels, *kernel))
    found = [TensorSpec(shape.dtype, each, convolution_strides(each, channels_last=is_last)) for each in sizes]
    if shape.dimension("bias"):
        found.append(TensorSpec(shape.dtype, (shape.n * shape.b,), (1,)))
    return tuple(found)


def _of_attention(shape: ProblemShape) -> tuple[TensorSpec, ...]:
    """Return queries, keys and values, which have the memory format of the keys."""
    batch, heads = int(shape.dimension("batch", 0)), int(shape.dimension("heads", 0))
    if batch * heads != shape.b:
        raise RecordError(f"{shape.op}: {batch} sequences of {heads} heads are not {shape.b} heads in all")
    keys = batch, int(shape.dimension("kv_heads", heads)), shape.n
    sizes = (
        ((batch, heads, shape.m, shape.k), shape.layout[0]),
        ((*keys, shape.k), shape.layout[1]),
        ((*keys, int(shape.dimension("value_size", shape.k))), shape.layout[1]),
    )
    return tuple(TensorSpec(shape.dtype, size, attention_strides(size, letter)) for size, letter in sizes)


def _bias(shape: ProblemShape) -> TensorSpec:
    if OPS[shape.op].is_batched:
        return _matrix(shape.dtype, (shape.b,), shape.m, shape.n, "n")
    # If N is 1, the bias is broadcast along N too.
    return TensorSpec(shape.dtype, (shape.n,), (int(shape.n > 1),))


def _scales(shape: ProblemShape, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    if OPS[shape.op].is_grouped:
        found = scale_sizes(str(shape.dimension("form")), shape.b, a.size[-2], b.size[-1])
        first, second = (TensorSpec(SCALE_DTYPE, size, (*size[1:], 1)) for size in found)
        return first, second
    recipes = recipes_of(str(shape.dimension("scaling", TENSOR)))
    first, second = (
        TensorSpec(SCALE_DTYPE, (), ())
        if recipe == TENSOR
        else TensorSpec(
            SCALE_DTYPE, scale_size(recipe, rows, shape.k, is_b=is_b), scale_stride(recipe, rows, shape.k, is_b=is_b)
        )
        for recipe, rows, is_b in zip(recipes, (shape.m, shape.n), (False, True), strict=True)
    )
    return first, second
