"""One matrix product to measure, and how a user types it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diode_store.errors import SettingsError
from diode_store.normalise import DTYPES, SHORT_DTYPES
from diode_store.operands import dtype_bytes
from diode_store.records import Problem, TensorSpec

if TYPE_CHECKING:
    from diode_store.records import ProblemShape

BATCHED_OPS = frozenset({"bmm", "baddbmm"})
OPS = ("mm", "addmm", "bmm", "baddbmm")
LAYOUTS = ("nn", "nt", "tn", "tt")
FLOAT32, TF32 = "float32", "tf32"
DTYPE_NAMES = ("bf16", "fp16", "fp32", TF32)
"""What ``parse_dtype`` takes, beside torch's names; ``tf32`` is fp32 that may be computed in TF32."""
EXAMPLE = "mm:512x768x1024"

_SHAPE = re.compile(r"(\w+):(\d+)x(\d+)x(\d+)(?::(\d+))?((?:/\w+)*)")
# Our tensors, Inductor's copies of the inputs, two outputs; and room for workspaces.
_MEMORY_FACTOR, _SPARE_BYTES = 4, 2**30


@dataclass(frozen=True)
class SweepProblem:
    """(B, M, K) x (B, K, N) → (B, M, N), with a bias for the ops that have one.

    Raises:
        SettingsError: it is not a matrix product.
    """

    op: str
    m: int
    n: int
    k: int
    b: int = 1
    dtype: str = "bfloat16"
    """As torch names it."""
    layout: str = "nn"
    """Two letters, for A and B: n row-major, t the transposed view of a row-major matrix."""
    allow_tf32: bool = False
    """Whether fp32 may be computed in TF32."""
    name: str = field(default="", compare=False)
    """Where it comes from, such as ``llama3-8b/qkv``."""

    def __post_init__(self) -> None:
        """Reject what cannot be measured."""
        if self.op not in OPS:
            raise SettingsError(f"unknown op {self.op!r}; known ops: {', '.join(OPS)}")
        if min(self.m, self.n, self.k, self.b) < 1:
            raise SettingsError(f"sizes must be positive, not M {self.m}, N {self.n}, K {self.k}, batch {self.b}")
        if self.b != 1 and self.op not in BATCHED_OPS:
            raise SettingsError(f"{self.op} has no batch, so not one of {self.b}; only bmm and baddbmm have")
        if self.layout not in LAYOUTS:
            raise SettingsError(f"unknown layout {self.layout!r}; known layouts: {', '.join(LAYOUTS)}")
        if self.allow_tf32 and self.dtype != FLOAT32:
            raise SettingsError(f"TF32 is a way to compute float32, not {self.dtype}")

    @classmethod
    def of_shape(cls, shape: ProblemShape, name: str = "") -> SweepProblem:
        """Return the problem with plain operands that has this shape.

        Raises:
            SettingsError: a sweep has no such problem: of another op or dtype, or with an operand of which neither rows
                nor columns lie together.
        """
        parse_dtype(shape.dtype)
        return cls(shape.op, shape.m, shape.n, shape.k, shape.b, shape.dtype, shape.layout, shape.tf32, name)

    def __str__(self) -> str:
        """Return what ``parse_problem`` takes: ``bmm:128x128x64:16/nt/fp16``."""
        batch = f":{self.b}" if self.op in BATCHED_OPS else ""
        return f"{self.op}:{self.m}x{self.n}x{self.k}{batch}/{self.layout}/{self.short_dtype}"

    @property
    def family(self) -> str | None:
        """The family of problems it belongs to, the part of its name before the first slash; None without a name."""
        return self.name.partition("/")[0] or None

    @property
    def short_dtype(self) -> str:
        """The dtype as people type it: ``bf16``, ``fp16``, ``fp32`` or ``tf32``."""
        return TF32 if self.allow_tf32 else SHORT_DTYPES.get(self.dtype, self.dtype)

    @property
    def flops(self) -> int:
        """How many multiplications and additions it takes."""
        return 2 * self.b * self.m * self.n * self.k

    @property
    def memory_bytes(self) -> int:
        """What its inputs and its output take."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        bias = {"addmm": self.n, "baddbmm": self.b * self.m * self.n}.get(self.op, 0)
        return (self.b * elements + bias) * dtype_bytes(self.dtype)

    def needed_bytes(self, *, on_cpu: bool) -> int:
        """Return how much memory must be free before it is timed: Inductor and the sweep keep copies of the tensors."""
        return _MEMORY_FACTOR * self.memory_bytes + (0 if on_cpu else _SPARE_BYTES)

    def problem(self) -> Problem:
        """Return the problem as Inductor's report of it will record it."""
        first = self._operand(self.m, self.k, self.layout[0])
        second = self._operand(self.k, self.n, self.layout[1])
        inputs: tuple[TensorSpec, ...] = (first, second)
        if self.op == "addmm":
            # Where N is 1 the bias is broadcast along it too.
            inputs = (TensorSpec(self.dtype, (self.n,), (int(self.n > 1),)), *inputs)
        elif self.op == "baddbmm":
            inputs = (self._operand(self.m, self.n, "n"), *inputs)
        return Problem.create(self.op, inputs, {"ALLOW_TF32": True} if self.allow_tf32 else {})

    def _operand(self, rows: int, columns: int, letter: str) -> TensorSpec:
        stride = (columns, 1) if letter == "n" else (1, rows)
        if self.op not in BATCHED_OPS:
            return TensorSpec(self.dtype, (rows, columns), stride)
        return TensorSpec(self.dtype, (self.b, rows, columns), (rows * columns, *stride))


def parse_problem(
    text: str, *, dtype: str = "bfloat16", layout: str = "nn", allow_tf32: bool = False, name: str = ""
) -> SweepProblem:
    """Return the problem that ``OP:MxNxK[:B][/LAYOUT][/DTYPE]`` means.

    Args:
        text: what a person typed; a layout and a dtype there override the other arguments.
        dtype: torch's name.
        layout: two letters, as in ``SweepProblem``.
        allow_tf32: whether fp32 may be computed in TF32; counts only if it is fp32.
        name: what the problem is called.

    Raises:
        SettingsError: it is not one; the message says what was expected.
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
        SettingsError: it cannot be swept.
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
