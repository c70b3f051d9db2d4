"""One matrix product to measure, and the text by which a user names it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Protocol

from diode_collectors.problems import attention, convolutions
from diode_collectors.problems.checks import check_dimensions, check_sizes
from diode_collectors.problems.typed import (
    DTYPE_NAMES,
    FLOAT32,
    TF32,
    dimension_of,
    dimension_words,
    dtype_names,
    dtype_word,
    dtypes_of,
    grouped_sizes,
    parse_dtype,
    typed_sizes,
    with_defaults,
    words_of,
)
from diode_store.errors import SettingsError
from diode_store.ops import LAYOUTS, OPS, swept_ops
from diode_store.ops.inputs import plain_inputs, plain_problem
from diode_store.ops.work import bytes_written, flops, itemsize
from diode_store.records import Problem, ProblemShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.ops import Dimensions, Op
    from diode_store.records import Scalar, TensorSpec

__all__ = ["DTYPE_NAMES", "FLOAT32", "LAYOUTS", "TF32", "SweepProblem", "parse_dtype", "parse_problem"]

EXAMPLE = "mm:512x768x1024"


class Form(Protocol):
    """Module that knows how people type the problems of some ops, which have other sizes than M, N and K."""

    WORDS: tuple[str, ...]
    """Words that may follow the sizes, besides layouts and dtypes."""

    def split_text(self, text: str) -> tuple[str, tuple[tuple[int, ...], ...], list[str]]:
        """Return the op, the typed sizes, and the words behind them."""

    def scalar_of(self, word: str) -> dict[str, Scalar] | None:
        """Return the scalar that a word means; None for any other word."""

    def usual_layout(self, sizes: Sequence[Sequence[int]], /) -> str:
        """Return the layout of a problem that names none."""

    def sizes_of(
        self, op: str, sizes: tuple[tuple[int, ...], ...], scalars: dict[str, Scalar]
    ) -> tuple[tuple[int, int, int, int], dict[str, Scalar]]:
        """Return B, M, N and K, and the dimensions."""

    def text_of(self, shape: ProblemShape) -> str:
        """Return the sizes as ``split_text`` takes them."""

    def words_of(self, shape: ProblemShape) -> list[str]:
        """Return the words behind them."""


_FORMS: dict[str, Form] = {
    **dict.fromkeys(convolutions.NAMES, convolutions),
    **dict.fromkeys(attention.NAMES, attention),
}

_SHAPE = re.compile(r"(\w+):(\d+)x(\d+)x(\d+)(?::(\d+))?((?:/[\w+=.]+)*)")
# The sweep's tensors, Inductor's copies of the inputs, two outputs, and room for workspaces.
_MEMORY_FACTOR, _SPARE_BYTES = 4, 2**30


@dataclass(frozen=True)
class SweepProblem:
    """(B, M, K) x (B, K, N) → (B, M, N), with a bias for the ops that have one.

    Sizes and dimensions are those of ``ProblemShape``: B is the number of groups of a grouped product, and its grouped
    size a mean.

    Raises:
        SettingsError: the sizes, layout and dimensions are not those of a matrix product that torch computes.
    """

    op: str
    m: int
    n: int
    k: int
    b: int = 1
    dtype: str = "bfloat16"
    """Dtype by torch's name."""
    layout: str = "nn"
    """Two letters, for A and B: n row-major, t the transposed view of a row-major matrix."""
    allow_tf32: bool = False
    """Let fp32 be computed in TF32."""
    name: str = field(default="", compare=False)
    """Origin, such as ``llama3-8b/qkv``."""
    dimensions: Dimensions = ()
    """Named dimensions, as in ``ProblemShape``."""

    def __post_init__(self) -> None:
        """Reject problems that cannot be measured."""
        if self.op not in swept_ops():
            raise SettingsError(f"unknown op {self.op!r}; known ops: {', '.join(swept_ops())}")
        if min(self.m, self.n, self.k, self.b) < 1:
            raise SettingsError(f"sizes must be positive, not M {self.m}, N {self.n}, K {self.k}, batch {self.b}")
        if self.b != 1 and not self.entry.has_batch:
            batched = " and ".join(name for name in swept_ops() if OPS[name].is_batched)
            raise SettingsError(f"{self.op} has no batch, so not one of {self.b}; only {batched} have")
        if self.layout not in LAYOUTS:
            raise SettingsError(f"unknown layout {self.layout!r}; known layouts: {', '.join(LAYOUTS)}")
        if self.allow_tf32 and self.dtype != FLOAT32:
            raise SettingsError(f"TF32 is a way to compute float32, not {self.dtype}")
        check_sizes(self.shape)
        if self.dimensions or self.entry.has_dimensions:
            check_dimensions(self.shape)

    @classmethod
    def of_shape(cls, shape: ProblemShape, name: str = "") -> SweepProblem:
        """Return the problem with plain operands that has this shape.

        Raises:
            SettingsError: a sweep cannot time the shape: its op, its dtype, or an operand with neither contiguous rows
                nor contiguous columns.
        """
        entry = OPS.get(shape.op)
        if entry is None or entry.is_plain:
            parse_dtype(shape.dtype)
        sizes = shape.m, shape.n, shape.k, shape.b
        return cls(shape.op, *sizes, shape.dtype, shape.layout, shape.tf32, name, shape.dimensions)

    def __str__(self) -> str:
        """Return the text that ``parse_problem`` takes: ``bmm:128x128x64:16/nt/fp16``."""
        form = _FORMS.get(self.op)
        if form is not None:
            return "/".join([form.text_of(self.shape), self.layout, self.short_dtype, *form.words_of(self.shape)])
        dimensions = dict(self.dimensions)
        sizes = "x".join(map(str, typed_sizes((self.m, self.n, self.k), dimensions)))
        batch = f":{self.b}" if self.entry.is_batched or self.entry.is_grouped else ""
        words = self.layout, self.short_dtype, *words_of(self.entry, dimensions)
        return f"{self.op}:{sizes}{batch}/{'/'.join(words)}"

    @property
    def entry(self) -> Op:
        """Entry of the op in the table of ops."""
        return OPS[self.op]

    @property
    def family(self) -> str | None:
        """Family of the problem, the part of its name before the first slash; None without a name."""
        return self.name.partition("/")[0] or None

    @property
    def short_dtype(self) -> str:
        """Dtype as people type it, such as ``bf16`` or ``tf32``; ``e5m2+e4m3`` if B has another."""
        return TF32 if self.allow_tf32 else dtype_word(self.dtype, self.shape.dimension("b_dtype"))

    @property
    def shape(self) -> ProblemShape:
        """Shape of the problem."""
        sizes = self.b, self.m, self.n, self.k
        return ProblemShape(self.op, self.dtype, *sizes, self.layout, self.allow_tf32, self.dimensions)

    @property
    def flops(self) -> int:
        """Number of multiplications and additions."""
        return flops(self.problem().shape)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the inputs and the output."""
        read = sum(prod(spec.size) * itemsize(spec.dtype) for spec in self.inputs())
        return read + bytes_written(self.problem().shape)

    def needed_bytes(self, *, on_cpu: bool) -> int:
        """Return the bytes of memory to have free before timing: Inductor and the sweep keep copies of the tensors."""
        return _MEMORY_FACTOR * self.memory_bytes + (0 if on_cpu else _SPARE_BYTES)

    def problem(self) -> Problem:
        """Return the problem as Inductor's report will record it."""
        return plain_problem(self.shape)

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs to pass to the op, in its order."""
        return plain_inputs(self.shape)


def parse_problem(
    text: str, *, dtype: str = "bfloat16", layout: str = "nn", allow_tf32: bool = False, name: str = ""
) -> SweepProblem:
    """Return the problem that ``OP:MxNxK[:B][/LAYOUT][/DTYPE]`` means.

    Args:
        text: Text that a person typed. A layout and a dtype there override the other arguments.
        dtype: Torch's name of the dtype.
        layout: Two letters, as in ``SweepProblem``.
        allow_tf32: Let fp32 be computed in TF32; ignored for other dtypes.
        name: Name of the problem.

    Raises:
        SettingsError: the text is not a problem; the message says what was expected.
    """
    form = _FORMS.get(text.partition(":")[0])
    if form is not None:
        return _parse_form(form, text, dtype, layout, allow_tf32=allow_tf32, name=name)
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"{text!r} is not a shape; write OP:MxNxK, or OP:MxNxK:B with a batch, then /LAYOUT or /DTYPE if you like, "
            f"such as {EXAMPLE} or {EXAMPLE}/nt/fp16"
        )
    op, m, n, k, batch, suffixes = match.groups()
    entry = OPS.get(op)
    if entry is None or not entry.is_swept:
        raise SettingsError(f"{text!r}: unknown op {op!r}; known ops: {', '.join(swept_ops())}")
    if not entry.is_plain:
        dtype, layout = _usual(dtype, entry.dtypes), _usual(layout, entry.layouts)
    dimensions: dict[str, Scalar] = {}
    for suffix in suffixes.split("/")[1:]:
        if suffix in LAYOUTS:
            layout = suffix
        else:
            dtype, allow_tf32 = _take(suffix, entry, dimensions, text) or (dtype, allow_tf32)
    sizes, tf32 = (int(m), int(n), int(k)), allow_tf32 and dtype == FLOAT32
    try:
        return made_problem(
            op, sizes, int(batch or 1), dtype, layout, allow_tf32=tf32, name=name, dimensions=dimensions
        )
    except SettingsError as error:
        raise SettingsError(f"{text!r}: {error}") from error


def _parse_form(form: Form, text: str, dtype: str, layout: str, *, allow_tf32: bool, name: str) -> SweepProblem:
    op, given, words = form.split_text(text)
    entry = OPS[op]
    layout = layout if layout in entry.layouts else form.usual_layout(given)
    dtype = _usual(dtype, entry.dtypes)
    scalars: dict[str, Scalar] = {}
    try:
        for word in words:
            found = form.scalar_of(word)
            if found is not None:
                scalars |= found
            elif word in LAYOUTS:
                layout = word
            else:
                dtype, allow_tf32 = _dtype_of_form(form, entry, word)
        (b, m, n, k), dimensions = form.sizes_of(op, given, scalars)
        tf32 = allow_tf32 and dtype == FLOAT32
        return SweepProblem(op, m, n, k, b, dtype, layout, tf32, name, tuple(sorted(dimensions.items())))
    except SettingsError as error:
        raise SettingsError(f"{text!r}: {error}") from error


def _dtype_of_form(form: Form, entry: Op, word: str) -> tuple[str, bool]:
    try:
        return parse_dtype(word)
    except SettingsError:
        dtypes = DTYPE_NAMES if FLOAT32 in entry.dtypes else tuple(map(dtype_word, entry.dtypes))
        known = f"layouts {', '.join(entry.layouts)}; dtypes {', '.join(dtypes)}; others {', '.join(form.WORDS)}"
        raise SettingsError(f"{word!r} is neither a layout nor a dtype; known: {known}") from None


def made_problem(
    op: str,
    sizes: tuple[int, int, int],
    batch: int,
    dtype: str,
    layout: str,
    *,
    allow_tf32: bool = False,
    name: str = "",
    dimensions: dict[str, Scalar] | None = None,
) -> SweepProblem:
    """Return a problem of typed sizes, with the dimensions that were not named.

    Args:
        op: Name of the op.
        sizes: M, N and K, the grouped one as its total.
        batch: Batch, or number of groups.
        dtype: Torch's name of the dtype.
        layout: Two letters, as in ``SweepProblem``.
        allow_tf32: Let fp32 be computed in TF32.
        name: Name of the problem.
        dimensions: Dimensions that were named.

    Raises:
        SettingsError: there is no such problem.
    """
    found = with_defaults(OPS[op], dimensions or {})
    if OPS[op].is_grouped:
        sizes, total = grouped_sizes(sizes, batch, str(found["form"]))
        found |= total
    return SweepProblem(op, *sizes, batch, dtype, layout, allow_tf32, name, tuple(sorted(found.items())))


def _usual(value: str, known: tuple[str, ...]) -> str:
    """Return an option's value if an op takes it, else the op's usual one."""
    return value if value in known else known[0]


def _take(suffix: str, entry: Op, dimensions: dict[str, Scalar], text: str) -> tuple[str, bool] | None:
    """Return the dtype and whether TF32 is allowed, or None for a dimension, which is added to ``dimensions``."""
    try:
        if suffix in dimension_words(entry) or suffix.startswith("skew"):
            dimensions |= dimension_of(suffix, entry)
            return None
        if entry.is_plain:
            return parse_dtype(suffix)
        found = dtypes_of(suffix, entry)
        dimensions |= {name: value for name, value in found.items() if name != "dtype"}
    except SettingsError as error:
        if suffix.startswith("skew") and entry.is_grouped:
            raise SettingsError(f"{text!r}: {error}") from error
        known = f"layouts {', '.join(LAYOUTS)}; dtypes {', '.join(dtype_names(entry))}"
        others = "; ".join(("", f"others {', '.join(dimension_words(entry))}")) if dimension_words(entry) else ""
        raise SettingsError(f"{text!r}: {suffix!r} is neither a layout nor a dtype; known: {known}{others}") from error
    else:
        return found["dtype"], False
