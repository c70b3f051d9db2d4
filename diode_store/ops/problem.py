"""Problems: an op with its inputs and scalars, and the sizes that follow from them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_store.errors import RecordError
from diode_store.kernels import Scalar, plain_scalar, same_scalars
from diode_store.ops.attending import BLOCK, MASK, Attention, attention_layout, attention_of, dense_strides
from diode_store.ops.convolving import USUAL, Convolution, convolution_of, memory_formats, normal_strides
from diode_store.ops.grouping import (
    BATCH,
    COLUMNS,
    DEPTH,
    MOST_SKEW,
    ROWS,
    form_of,
    grouped_total,
    mean_size,
    scale_sizes,
)
from diode_store.ops.scaling import grouped_scaling_of, scaling_of
from diode_store.ops.table import DEFAULT_SCALARS, FUSED_OPS, MATRIX_DIMENSIONS, OPS, Role, find_op
from diode_store.values.checks import shown
from diode_store.values.keys import content_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from diode_store.ops.table import Op

Dimensions = tuple[tuple[str, Scalar], ...]
"""Named dimensions of a problem beside b, m, n and k, sorted by name; see ``ProblemShape.dimensions``."""
_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,99}")
_MOST_INPUTS, _MOST_DIMENSIONS = 64, 16
"""Limits on an op that this version does not know."""
_SCALES = ("float32", "float8_e8m0fnu", "float8_e4m3fn")
_DTYPES = {Role.SCALE_A: _SCALES, Role.SCALE_B: _SCALES, Role.OFFSETS: ("int32",)}
"""Dtypes that torch takes, by role."""
_NAMES = {
    Role.SCALE_A: "the scale of A is",
    Role.SCALE_B: "the scale of B is",
    Role.OFFSETS: "the offsets are",
}


class TensorSpec(NamedTuple):
    """One input of a problem. Sizes and strides are in elements."""

    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class ProblemShape:
    """The shape of a matrix product: (B, M, K) x (B, K, N) → (B, M, N).

    For a grouped product B is the number of groups. The size that the offsets divide is the mean over groups, at least
    1.
    """

    op: str
    dtype: str
    b: int
    m: int
    n: int
    k: int
    layout: str
    """Two letters, for A and B: n row-major, t transposed, s any other stride."""
    tf32: bool = False
    """True if float32 may be multiplied as TF32, which uses other, several times faster kernels."""

    dimensions: Dimensions = ()
    """Properties beyond the fields above that tell problems of an op apart, sorted by name; empty without any.

    - ``scaling`` of scaled ops: a recipe as in ``diode_store.ops.scaling``.
    - ``b_dtype`` of scaled ops, if it is not the dtype of A.
    - ``fast_accum``: True if float8 products may be summed with less precision.
    - ``out_dtype`` of scaled ops, if it is not the dtype of A.
    - ``bias``: True if an optional bias is there.
    - ``batch``, ``size`` (spatial sizes, such as ``56x56``), ``input`` (elements) and ``kernel`` of convolutions.
    - ``stride``, ``padding`` and ``dilation`` of convolutions, if they are not the usual ones.
    - ``batch`` and ``heads`` of attention; ``kv_heads`` and ``value_size`` if they differ from heads and head size.
    - ``mask`` of attention and ``block``, as in ``diode_store.ops.attending``; ``full`` and ``partial`` are the shares
      of its blocks that need no mask, and that need one.
    - ``form`` of grouped ops, ``total`` (length of the grouped dimension) and ``skew``: as in
      ``diode_store.ops.grouping``.
    """

    def dimension(self, name: str, default: Any = None) -> Any:
        """Return a named dimension, or ``default`` if the problem has none of this name."""
        return next((value for found, value in self.dimensions if found == name), default)

    @property
    def whole(self) -> tuple[int, int, int]:
        """M, N and K of all groups: the size that the offsets divide is its total."""
        form, total = self.dimension("form"), self.dimension("total")
        m, n, k = (
            total if total and form == each else size
            for each, size in ((ROWS, self.m), (COLUMNS, self.n), (DEPTH, self.k))
        )
        return m, n, k

    @property
    def out_dtype(self) -> str:
        """Dtype of the output."""
        return str(self.dimension("out_dtype") or OPS[self.op].out_dtype or self.dtype)

    @property
    def arithmetic(self) -> str:
        """The dtype, or ``tf32`` for float32 that may be multiplied as TF32."""
        return "tf32" if self.tf32 else self.dtype


@dataclass(frozen=True, eq=False)
class Problem:
    """One call of an op: the op, its ordered inputs and its sorted scalars.

    Make one with ``Problem.create``, which normalizes; the constructor does not.
    """

    op: str
    inputs: tuple[TensorSpec, ...]
    scalars: tuple[tuple[str, Scalar], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def create(
        cls,
        op: str,
        inputs: tuple[TensorSpec, ...],
        scalars: Mapping[str, Scalar] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Problem:
        """Normalize, so that one problem has one key whichever source reports it.

        An op that this version does not know keeps its inputs and scalars as they are.

        A bias of one dimension becomes its broadcast view (stride 0), as Inductor's Triton templates see it. A bmm over
        plain matrices becomes an mm, because Inductor lowers a batch of one that way. Default scalars (``alpha=1``,
        ``beta=1``) are dropped.

        Raises:
            RecordError: inputs that do not make a product of this op.
        """
        entry = OPS.get(op)
        pairs = _pairs(scalars or {})
        if entry is None:
            _check_unknown(op, inputs)
            return cls(op, inputs, pairs, extra or {})
        first, second, bias = entry.operands
        _check_inputs(entry, inputs)
        if entry.plain and len(inputs[first].size) == MATRIX_DIMENSIONS:
            op = entry.plain
        if bias is not None:
            output = (*inputs[first].size[:-1], inputs[second].size[-1])
            inputs = (*inputs[:bias], _broadcast(inputs[bias], output), *inputs[bias + 1 :])
        if entry.is_scaled:
            inputs = tuple(map(_normalized, entry.roles(len(inputs)), inputs))
        if entry.is_convolution:
            found = convolution_of(op, inputs[first].size, inputs[second].size, dict(pairs))
            pairs = _with(pairs, USUAL, found.scalars())
            letters = memory_formats(inputs[first][1:], inputs[second][1:])
            formats = [(spec, normal_strides(*spec[1:], letter)) for spec, letter in zip(inputs, letters, strict=False)]
            inputs = (*(spec._replace(stride=stride) for spec, stride in formats), *inputs[len(formats) :])
        if entry.is_attention:
            attention = attention_of(op, [spec.size for spec in inputs], dict(pairs))
            pairs = _with(pairs, (MASK, BLOCK), attention.scalars())
            inputs = tuple(spec._replace(stride=dense_strides(spec.size, spec.stride)) for spec in inputs)
        made = cls(op, inputs, pairs, extra or {})
        made._dimensions  # noqa: B018 - raises for scales and a skew that do not fit
        return made

    def __eq__(self, other: object) -> bool:
        """Compare as the keys do, which distinguish True from 1, and also compare ``extra``."""
        if not isinstance(other, Problem):
            return NotImplemented
        same = (self.op, self.inputs) == (other.op, other.inputs) and same_scalars(self.scalars, other.scalars)
        return same and self.extra == other.extra

    def __hash__(self) -> int:
        """Hash what the key is made of."""
        return hash((self.op, self.inputs, self.scalars))

    @cached_property
    def key(self) -> bytes:
        """16-byte content key over op, inputs and scalars."""
        inputs = [[spec.dtype, spec.size, spec.stride] for spec in self.inputs]
        return content_key("problem", 1, [self.op, inputs, self.scalars])

    @cached_property
    def is_known(self) -> bool:
        """True if the problem has a shape: the table of ops has its op.

        False too for inputs that this op does not take, as of a warehouse whose writer did not know the op.
        """
        entry = OPS.get(self.op)
        if entry is None:
            return False
        try:
            _check_inputs(entry, self.inputs)
            self.shape  # noqa: B018 - raises for inputs that do not fit
        except (RecordError, LookupError, ValueError):
            return False
        return True

    @property
    def is_unknown(self) -> bool:
        """True if this version knows nothing about the problem: neither its shape nor that it is a fused kernel."""
        return self.op not in FUSED_OPS and not self.is_known

    @property
    def why_no_shape(self) -> str:
        """Reason why the problem has no shape, if ``is_known`` is False."""
        if self.is_unknown:
            return f"{self.op} is not an op that this torch-diode knows"
        return f"{self.op} is a fused kernel, not a matrix product"

    def roles(self) -> tuple[str, ...]:
        """Return the part that each input plays; ``input`` for each input of an unknown op."""
        entry = OPS.get(self.op)
        found: tuple[str, ...] = () if entry is None else entry.roles(len(self.inputs))
        return (*found, *("input",) * (len(self.inputs) - len(found)))[: len(self.inputs)]

    @cached_property
    def shape(self) -> ProblemShape:
        """The derived columns.

        Raises:
            RecordError: an op that this version does not know.
        """
        entry = find_op(self.op)
        first, second, _ = entry.operands
        a, b = self.inputs[first], self.inputs[second]
        if entry.is_convolution:
            batch, m, n, k = self._convolution.sizes
            letters = memory_formats(a[1:], b[1:])
            layout = letters[0] + ("s" if letters[1] == "s" else "t")
        elif entry.is_attention:
            batch, m, n, k = self._attention.sizes
            layout = attention_layout(a[1:], b[1:])
        else:
            batch, m, n, k = _sizes(entry, a.size, b.size, self.inputs)
            layout = _layout_letter(a) + _layout_letter(b)
        tf32 = a.dtype == "float32" and dict(self.scalars).get("ALLOW_TF32") is True
        return ProblemShape(self.op, a.dtype, batch, m, n, k, layout, tf32, self._dimensions)

    @cached_property
    def _convolution(self) -> Convolution:
        a, b = self.inputs[:2]
        return convolution_of(self.op, a.size, b.size, dict(self.scalars))

    @cached_property
    def _attention(self) -> Attention:
        return attention_of(self.op, [spec.size for spec in self.inputs], dict(self.scalars))

    @cached_property
    def _dimensions(self) -> Dimensions:
        entry, scalars = OPS[self.op], dict(self.scalars)
        if entry.is_attention:
            return _sorted(self._attention.dimensions)
        roles = entry.roles(len(self.inputs))
        given = {role: spec.size for role, spec in zip(roles, self.inputs, strict=False)}
        a, b = given[Role.A], given[Role.B]
        found: dict[str, Scalar] = {}
        if entry.is_convolution:
            found = self._convolution.dimensions | ({"bias": True} if Role.BIAS in given else {})
        if entry.is_scaled:
            if Role.SCALE_B in given:
                found["scaling"] = self._scaling(a, b, given[Role.SCALE_A], given[Role.SCALE_B])
            first, second = (spec.dtype for spec in self.inputs[:2])
            found |= {"b_dtype": second} if second != first else {}
            found |= {"bias": True} if Role.BIAS in given else {}
            found |= {"fast_accum": True} if scalars.get("use_fast_accum") is True else {}
            found |= {"out_dtype": scalars["out_dtype"]} if "out_dtype" in scalars else {}
        if entry.is_grouped:
            form = form_of(self.op, a, b)
            found |= {"form": form, "total": grouped_total(form, a, b), "skew": _skew(self.op, scalars)}
        return _sorted(found)

    def _scaling(self, a: Sequence[int], b: Sequence[int], scale_a: Sequence[int], scale_b: Sequence[int]) -> str:
        entry = OPS[self.op]
        if not entry.is_grouped:
            return scaling_of(self.op, a, b, scale_a, scale_b)
        groups = _sizes(entry, a, b, self.inputs)[0]
        expected = scale_sizes(form_of(self.op, a, b), groups, a[-2], b[-1])
        return grouped_scaling_of(self.op, list(zip((scale_a, scale_b), expected, strict=True)))


@lru_cache(maxsize=4096)
def dimensions_of_text(text: str | None) -> Dimensions:
    """Return the dimensions in the JSON object of a warehouse's column; None is no dimensions."""
    return tuple(sorted(json.loads(text).items())) if text else ()


def _check_inputs(entry: Op, inputs: tuple[TensorSpec, ...]) -> None:
    op, most = entry.name, entry.most_dimensions
    first, second, _ = entry.operands
    for spec in inputs:
        if len(spec.size) > most:
            raise RecordError(f"{op}: an input has {len(spec.size)} dimensions; at most {most} make sense")
        if len(spec.size) != len(spec.stride):
            raise RecordError(f"{op}: an input has {len(spec.size)} sizes but {len(spec.stride)} strides")
        if any(size < 1 for size in spec.size):
            raise RecordError(f"{op}: sizes must be positive, not {list(spec.size)}")
    if len(inputs) > len(entry.roles(len(inputs))):
        raise RecordError(f"{op} takes at most {len(entry.roles(len(inputs)))} inputs, not {len(inputs)}")
    fewest = len(entry.roles(0)) if entry.is_attention else max(first, second) + 1
    if len(inputs) < fewest:
        raise RecordError(f"{op} needs at least {fewest} inputs, not {len(inputs)}")
    _check_dtypes(entry, inputs)
    a, b = inputs[first], inputs[second]
    if not entry.has_matrices:
        return  # the sizes also depend on scalars, so ``Problem.create`` checks them
    if entry.is_grouped:
        form_of(op, a.size, b.size)
        return
    if min(len(a.size), len(b.size)) < MATRIX_DIMENSIONS or a.size[-1] != b.size[-2] or a.size[:-2] != b.size[:-2]:
        raise RecordError(f"{op}: {list(a.size)} x {list(b.size)} is not a matrix product")


def _check_dtypes(entry: Op, inputs: tuple[TensorSpec, ...]) -> None:
    for role, spec in zip(entry.roles(len(inputs)), inputs, strict=False):
        expected = _DTYPES.get(role, ())
        if expected and spec.dtype not in expected:
            raise RecordError(f"{entry.name}: {_NAMES[role]} {shown(spec.dtype)}; expected {' or '.join(expected)}")


def _broadcast(bias: TensorSpec, output: tuple[int, ...]) -> TensorSpec:
    missing = len(output) - len(bias.size)
    if missing < 0:
        return bias
    dimensions = zip(bias.stride, bias.size, output[missing:], strict=True)
    strides = tuple(stride if size == out else 0 for stride, size, out in dimensions)
    return TensorSpec(bias.dtype, output, (0,) * missing + strides)


def _layout_letter(spec: TensorSpec) -> str:
    if spec.stride[-1] == 1:
        return "n"
    return "t" if spec.stride[-2] == 1 else "s"


def _check_unknown(op: str, inputs: Sequence[TensorSpec]) -> None:
    if not _NAME.fullmatch(op):
        raise RecordError(f"{shown(op)} is not the name of an op")
    if not inputs or len(inputs) > _MOST_INPUTS:
        raise RecordError(f"{op}: expected 1 to {_MOST_INPUTS} inputs, not {len(inputs)}")
    for spec in inputs:
        if len(spec.size) != len(spec.stride) or len(spec.size) > _MOST_DIMENSIONS:
            raise RecordError(f"{op}: an input has {len(spec.size)} sizes and {len(spec.stride)} strides")


def _pairs(scalars: Mapping[str, Scalar]) -> Dimensions:
    kept = {name: plain_scalar(value) for name, value in scalars.items() if value is not None}
    return tuple(sorted((n, v) for n, v in kept.items() if DEFAULT_SCALARS.get(n) != v))


def _with(pairs: Dimensions, names: Collection[str], scalars: Mapping[str, Scalar]) -> Dimensions:
    """Return sorted scalars with ``scalars`` in place of those of ``names``."""
    return tuple(sorted([*(pair for pair in pairs if pair[0] not in names), *scalars.items()]))


def _sorted(dimensions: Mapping[str, Scalar]) -> Dimensions:
    return tuple(sorted((name, value) for name, value in dimensions.items() if value not in {0, ""}))


def _normalized(role: Role, spec: TensorSpec) -> TensorSpec:
    """Return a scale as a matrix whose strides along single elements are 1; other inputs as they are."""
    if role not in {Role.SCALE_A, Role.SCALE_B}:
        return spec
    size, stride = spec.size, spec.stride
    if all(each == 1 for each in size):
        size, stride = (1, 1), (1, 1)
    return TensorSpec(spec.dtype, size, tuple(1 if n == 1 else step for n, step in zip(size, stride, strict=True)))


def _sizes(entry: Op, a: Sequence[int], b: Sequence[int], inputs: Sequence[TensorSpec]) -> tuple[int, int, int, int]:
    """Return the batch or the groups, M, N and K, the grouped one as its mean."""
    batch = a[0] if len(a) > MATRIX_DIMENSIONS else 1
    m, n, k = a[-2], b[-1], a[-1]
    if not entry.is_grouped:
        return batch, m, n, k
    form = form_of(entry.name, a, b)
    offsets = inputs[entry.roles(len(inputs)).index(Role.OFFSETS)].size if form != BATCH else ()
    groups = {ROWS: b[0], COLUMNS: a[0], BATCH: a[0]}.get(form) or offsets[0]
    mean = mean_size(grouped_total(form, a, b), groups)
    return groups, mean if form == ROWS else m, mean if form == COLUMNS else n, mean if form == DEPTH else k


def _skew(op: str, scalars: Mapping[str, Scalar]) -> float:
    skew = scalars.get("skew", 0)
    if isinstance(skew, bool) or not isinstance(skew, (int, float)) or not 0 <= skew <= MOST_SKEW:
        raise RecordError(f"{op}: skew must be a number from 0 to {MOST_SKEW:g}, not {shown(skew)}")
    return float(skew)
