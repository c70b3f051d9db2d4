"""The table of ops: what the project knows about each kind of matrix product, convolutions and attention among them.

Every other module asks ``OPS``. To add an op, add an ``Op`` here and follow docs/adding-an-op.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from diode_store.errors import RecordError
from diode_store.ops.attending import BACKWARD, DECODING, FORWARD
from diode_store.ops.convolving import SPATIAL
from diode_store.values.checks import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

MATRIX_DIMENSIONS = 2
LAYOUTS = ("nn", "nt", "tn", "tt")
"""Layouts of plain operands, a letter for A and one for B: n row-major, t the transposed view of a row-major matrix."""
FLOATS = ("bfloat16", "float16", "float32")
HALVES = FLOATS[:2]
FLOAT8S = ("float8_e4m3fn", "float8_e5m2")
DEFAULT_SCALARS: Mapping[str, int] = {"alpha": 1, "beta": 1, "groups": 1, "skew": 0, "use_fast_accum": False}
"""Defaults of scalars; a problem leaves out a scalar at its default."""


class Role(StrEnum):
    """Part that an input plays in a product."""

    A = "a"
    B = "b"
    BIAS = "bias"
    SCALE_A = "scale_a"
    SCALE_B = "scale_b"
    OFFSETS = "offsets"
    """End of each group along the grouped dimension."""
    QUERY = "query"
    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True)
class Op:
    """One kind of matrix product: (B, M, K) x (B, K, N) → (B, M, N)."""

    name: str
    """Name of the ATen overload packet, without a leading underscore."""
    template: str
    """Uid of the Triton template that every GPU has for this op."""
    vendors: tuple[str, ...]
    """Uids of the vendor kernels that Inductor lists for this op."""
    other_vendors: tuple[str, ...] = ()
    """Uids of vendor kernels that Inductor lists for other arguments of this op, such as an output dtype."""
    is_batched: bool = False
    has_bias: bool = False
    """True if the first input is added to the product."""
    products: int = 1
    """Number of products. Unless the op is attention, they are added, and each has two inputs."""
    is_scaled: bool = False
    """True if a scale for A and one for B follow the operands; then a bias may come last."""
    is_grouped: bool = False
    """True if offsets divide one dimension of the operands into groups, each with a product of its own."""
    is_convolution: bool = False
    """True for the product of an input's patches and weights; the weights are the second input."""
    is_attention: bool = False
    """True for the products of queries, keys and values, which are its inputs."""
    plain: str | None = None
    """Name of the op that Inductor uses instead for plain matrices; None if there is none."""
    out_dtype: str | None = None
    """Dtype of the output; None for the dtype of A."""
    is_swept: bool = False
    """True if sweeps measure this op."""
    is_standard: bool = False
    """True for the common ops, whose kernels Inductor lists by its general rules. The standard set of `diode tune` has
    them, and a CPU has kernels of them to choose from. The hook ranks the kernels of any op that its model knows.
    """
    function: str | None = None
    """Name of the function of ``torch`` that computes one product; None for the op's own name."""
    dtypes: tuple[str, ...] = FLOATS
    """Dtypes of A that a sweep times, the usual one first."""
    layouts: tuple[str, ...] = LAYOUTS
    """Layouts that torch takes, the usual one first."""
    capability: int = 0
    """Oldest NVIDIA architecture with kernels to choose from, such as 89 for compute capability 8.9; 0 for any."""
    has_tma: bool = False
    """True if Inductor has a persistent TMA template for this op."""
    decomposes: bool = False
    """True if Inductor replaces small products of this op by pointwise code (torch/_inductor/decomposition.py)."""
    has_table_key: bool = True
    """True if Inductor's lookup tables identify a problem of this op by its recorded inputs."""

    @property
    def is_plain(self) -> bool:
        """True if M, N, K, the batch, a dtype of ``FLOATS`` and the layout describe a problem of this op."""
        return not self.has_dimensions and self.dtypes == FLOATS

    @property
    def has_dimensions(self) -> bool:
        """True if named dimensions tell problems of one size apart."""
        return self.is_scaled or self.is_grouped or not self.has_matrices

    @property
    def has_matrices(self) -> bool:
        """True if A and B are matrices in memory, as a model's features expect."""
        return not (self.is_convolution or self.is_attention)

    @property
    def has_batch(self) -> bool:
        """True if B may be other than 1."""
        return self.is_batched or self.is_grouped or not self.has_matrices

    @property
    def operands(self) -> tuple[int, int, int | None]:
        """Positions of A, B and the bias among the inputs; None without a bias."""
        return (1, 2, 0) if self.has_bias else (0, 1, None)

    def roles(self, count: int) -> tuple[Role, ...]:
        """Return the role of each of ``count`` inputs, in order; shorter than ``count`` if the op takes fewer."""
        if self.is_attention:
            return (Role.QUERY, Role.KEY, Role.VALUE)
        operands = (Role.A, Role.B) * self.products
        if self.has_bias:
            return (Role.BIAS, *operands)
        scales = (Role.SCALE_A, Role.SCALE_B) if self.is_scaled else ()
        found = (*operands, *scales, *((Role.OFFSETS,) if self.is_grouped else ()))
        has_optional = self.is_scaled or self.is_convolution
        return (*found, Role.BIAS) if has_optional and count > len(found) else found

    @property
    def most_dimensions(self) -> int:
        """Limit on the dimensions of an input."""
        if self.is_convolution:
            return MATRIX_DIMENSIONS + max(SPATIAL)
        if self.is_attention:
            return 2 * MATRIX_DIMENSIONS
        return MATRIX_DIMENSIONS + (self.is_batched or self.is_grouped)

    def bias_elements(self, b: int, m: int, n: int) -> int:
        """Return the number of elements of a bias: a row of N, or for a batched op a whole output."""
        if not self.has_bias:
            return 0
        return b * m * n if self.is_batched else n


_MM, _BMM = "triton::mm", "triton::bmm"
_TABLE = (
    Op(
        "mm",
        _MM,
        vendors=("aten::mm",),
        other_vendors=("aten::mm_dtype",),
        is_swept=True,
        is_standard=True,
        has_tma=True,
        decomposes=True,
    ),
    Op(
        "addmm",
        _MM,
        vendors=("aten::addmm", "aten::bias_addmm"),
        has_bias=True,
        is_swept=True,
        is_standard=True,
        has_tma=True,
        decomposes=True,
    ),
    Op(
        "bmm",
        _BMM,
        vendors=("aten::bmm",),
        other_vendors=("aten::bmm_dtype",),
        is_batched=True,
        plain="mm",
        is_swept=True,
        is_standard=True,
        decomposes=True,
    ),
    Op(
        "baddbmm",
        _BMM,
        vendors=("aten::baddbmm",),
        is_batched=True,
        has_bias=True,
        is_swept=True,
        is_standard=True,
    ),
    Op(
        "int_mm",
        _MM,
        vendors=("aten::_int_mm",),
        out_dtype="int32",
        is_swept=True,
        function="_int_mm",
        dtypes=("int8",),
        capability=80,
    ),
    Op(
        "scaled_mm",
        _MM,
        vendors=("aten::_scaled_mm",),
        has_table_key=False,
        is_scaled=True,
        is_swept=True,
        function="_scaled_mm",
        dtypes=FLOAT8S,
        layouts=("nt",),
        capability=89,
    ),
    Op(
        "mm_plus_mm",
        "triton::mm_plus_mm",
        vendors=("aten::_mm_plus_mm",),
        products=2,
        is_swept=True,
        function="mm",
    ),
    Op(
        "grouped_mm",
        "triton::grouped_mm",
        vendors=("aten::_grouped_mm",),
        has_table_key=False,
        is_grouped=True,
        is_swept=True,
        function="_grouped_mm",
        dtypes=("bfloat16",),
        capability=90,
    ),
    Op(
        "scaled_grouped_mm",
        "triton::scaled_grouped_mm",
        vendors=("aten::_scaled_grouped_mm",),
        has_table_key=False,
        is_grouped=True,
        is_scaled=True,
        is_swept=True,
        function="_scaled_grouped_mm",
        dtypes=FLOAT8S[:1],
        layouts=("nt",),
        capability=90,
    ),
    Op(
        "convolution",
        "triton::convolution2d",
        vendors=("aten::convolution",),
        other_vendors=("aten::conv1x1_via_mm",),
        has_table_key=False,
        is_convolution=True,
        is_swept=True,
        layouts=("nt", "tt"),
    ),
    *(
        Op(
            name,
            f"triton::{name}",
            vendors=(),
            products=products,
            has_table_key=False,
            is_attention=True,
            is_swept=True,
            dtypes=HALVES,
            layouts=("nn", "tt"),
            capability=80,
        )
        for name, products in ((FORWARD, 2), (DECODING, 2), (BACKWARD, 5))
    ),
)
FUSED_OPS = ("pointwise", "reduction", "persistent_reduction")
"""Kinds of fused kernels, which ``diode_store.ops.fused`` describes; no matrix products."""
OPS: dict[str, Op] = {op.name: op for op in _TABLE}
"""Every op by its name."""


def find_op(name: str, choose: str = "known ops:") -> Op:
    """Return the op of this name.

    Args:
        name: the op's name, as a record or a person writes it.
        choose: words before the list of known ops in the error.

    Raises:
        RecordError: an unknown op.
    """
    found = OPS.get(name)
    if found is None:
        raise RecordError(f"unknown op {shown(name)}; {choose} {', '.join(sorted(OPS))}")
    return found


def swept_ops() -> tuple[str, ...]:
    """Return the names of the ops that sweeps measure."""
    return tuple(name for name, op in OPS.items() if op.is_swept)


def standard_ops() -> tuple[str, ...]:
    """Return the names of the common ops."""
    return tuple(name for name, op in OPS.items() if op.is_standard)


def op_of_vendor(template: str) -> str | None:
    """Return the op of a vendor kernel; None for any other template."""
    return next((op.name for op in OPS.values() if template in (*op.vendors, *op.other_vendors)), None)
