"""One matrix product to measure, and the text by which a user names it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diode_store.candidates.names import DTYPES, SHORT_DTYPES
from diode_store.errors import SettingsError
from diode_store.ops import OPS, swept_ops
from diode_store.ops.work import bytes_read, bytes_written, flops, itemsize
from diode_store.records import Problem, TensorSpec

if TYPE_CHECKING:
    from diode_store.ops import Op
    from diode_store.records import ProblemShape

LAYOUTS = ("nn", "nt", "tn", "tt")
FLOAT32, TF32 = "float32", "tf32"
DTYPE_NAMES = ("bf16", "fp16", "fp32", TF32)
"""Names that ``parse_dtype`` takes besides torch's; ``tf32`` is fp32 that may be computed in TF32."""
EXAMPLE = "mm:512x768x1024"

_SHAPE = re.compile(r"(\w+):(\d+)x(\d+)x(\d+)(?::(\d+))?((?:/\w+)*)")
# The sweep's tensors, Inductor's copies of the inputs, two outputs, and room for workspaces.
_MEMORY_FACTOR, _SPARE_BYTES = 4, 2**30


@dataclass(frozen=True)
class SweepProblem:
    """(B, M, K) x (B, K, N) → (B, M, N), with a bias for the ops that have one.

    Raises:
        SettingsError: the sizes and layout are not those of a matrix product.
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

    def __post_init__(self) -> None:
        """Reject problems that cannot be measured."""
        if self.op not in swept_ops():
            raise SettingsError(f"unknown op {self.op!r}; known ops: {', '.join(swept_ops())}")
        if min(self.m, self.n, self.k, self.b) < 1:
            raise SettingsError(f"sizes must be positive, not M {self.m}, N {self.n}, K {self.k}, batch {self.b}")
        if self.b != 1 and not self.entry.is_batched:
            batched = " and ".join(name for name in swept_ops() if OPS[name].is_batched)
            raise SettingsError(f"{self.op} has no batch, so not one of {self.b}; only {batched} have")
        if self.layout not in LAYOUTS:
            raise SettingsError(f"unknown layout {self.layout!r}; known layouts: {', '.join(LAYOUTS)}")
        if self.allow_tf32 and self.dtype != FLOAT32:
            raise SettingsError(f"TF32 is a way to compute float32, not {self.dtype}")

    @classmethod
    def of_shape(cls, shape: ProblemShape, name: str = "") -> SweepProblem:
        """Return the problem with plain operands that has this shape.

        Raises:
            SettingsError: a sweep cannot time the shape: its op, its dtype, or an operand with neither contiguous rows
                nor contiguous columns.
        """
        parse_dtype(shape.dtype)
        return cls(shape.op, shape.m, shape.n, shape.k, shape.b, shape.dtype, shape.layout, shape.tf32, name)

    def __str__(self) -> str:
        """Return the text that ``parse_problem`` takes: ``bmm:128x128x64:16/nt/fp16``."""
        batch = f":{self.b}" if self.entry.is_batched else ""
        return f"{self.op}:{self.m}x{self.n}x{self.k}{batch}/{self.layout}/{self.short_dtype}"

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
        """Dtype as people type it: ``bf16``, ``fp16``, ``fp32`` or ``tf32``."""
        return TF32 if self.allow_tf32 else SHORT_DTYPES.get(self.dtype, self.dtype)

    @property
    def flops(self) -> int:
        """Number of multiplications and additions."""
        return flops(self.problem().shape)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the inputs and the output."""
        bias = self.entry.bias_elements(self.b, self.m, self.n)
        shape = self.problem().shape
        return bytes_read(shape) + bytes_written(shape) + bias * itemsize(self.dtype)

    def needed_bytes(self, *, on_cpu: bool) -> int:
        """Return the bytes of memory to have free before timing: Inductor and the sweep keep copies of the tensors."""
        return _MEMORY_FACTOR * self.memory_bytes + (0 if on_cpu else _SPARE_BYTES)

    def problem(self) -> Problem:
        """Return the problem as Inductor's report will record it."""
        first = self._operand(self.m, self.k, self.layout[0])
        second = self._operand(self.k, self.n, self.layout[1])
        inputs: tuple[TensorSpec, ...] = (first, second)
        if self.entry.has_bias and self.entry.is_batched:
            inputs = (self._operand(self.m, self.n, "n"), *inputs)
        elif self.entry.has_bias:
            # If N is 1, the bias is broadcast along N too.
            inputs = (TensorSpec(self.dtype, (self.n,), (int(self.n > 1),)), *inputs)
        return Problem.create(self.op, inputs, {"ALLOW_TF32": True} if self.allow_tf32 else {})

    def _operand(self, rows: int, columns: int, letter: str) -> TensorSpec:
        stride = (columns, 1) if letter == "n" else (1, rows)
        if not self.entry.is_batched:
            return TensorSpec(self.dtype, (rows, columns), stride)
        return TensorSpec(self.dtype, (self.b, rows, columns), (rows * columns, *stride))


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
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"{text!r} is not a shape; write OP:MxNxK, or OP:MxNxK:B with a batch, then /LAYOUT or /DTYPE if you like, "
            f"such as {EXAMPLE} or {EXAMPLE}/nt/fp16"
        )
    op, m, n, k, batch, suffixes = match.groups()
    for suffix in suffixes.split("/")[1:]:
        if suffix in LAYOUTS:
            layout = suffix
        else:
            dtype, allow_tf32 = _parse_suffix(suffix, text)
    try:
        tf32 = allow_tf32 and dtype == FLOAT32
        return SweepProblem(op, int(m), int(n), int(k), int(batch or 1), dtype, layout, tf32, name)
    except SettingsError as error:
        raise SettingsError(f"{text!r}: {error}") from error


def parse_dtype(name: str) -> tuple[str, bool]:
    """Return torch's name of a dtype, and whether TF32 is allowed.

    Raises:
        SettingsError: a sweep cannot use the dtype.
    """
    if name == TF32:
        return FLOAT32, True
    known = {short: DTYPES[short] for short in DTYPE_NAMES if short != TF32}
    if name in known.values():
        return name, False
    if name not in known:
        raise SettingsError(f"unknown dtype {name!r}; known dtypes: {', '.join(DTYPE_NAMES)}")
    return known[name], False


def _parse_suffix(suffix: str, text: str) -> tuple[str, bool]:
    try:
        return parse_dtype(suffix)
    except SettingsError as error:
        known = f"layouts {', '.join(LAYOUTS)}; dtypes {', '.join(DTYPE_NAMES)}"
        raise SettingsError(f"{text!r}: {suffix!r} is neither a layout nor a dtype; known: {known}") from error
