"""Values as text and as JSON, for commands that print them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from diode_store.candidates.names import SHORT_DTYPES
from diode_store.ops import Problem
from diode_store.ops.attending import BLOCK, MASK, SIZES
from diode_store.ops.convolving import USUAL
from diode_store.ops.fused import RANGES, SHOWN_DIGITS, SOURCE, is_fused
from diode_store.ops.grouping import COLUMNS, DEPTH, ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.ops import ProblemShape

MOST_INPUTS = 4
"""Number of inputs that the text of an unknown op has; more are an ellipsis."""
_GAP = "  "
_PREFIXES = ("", "k", "M", "G", "T", "P")


def cell_text(value: object) -> str:  # noqa: PLR0911 - one line per type reads best
    """Return ``value`` as one line of printable text; four significant digits for a float, ``-`` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, (list, tuple)):
        return ", ".join(cell_text(item) for item in value)
    return printable(str(value))


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped, so that a record cannot drive the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, noun: str) -> str:
    """Return ``1 record`` or ``1,234 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def problem_text(problem: ProblemShape | Problem) -> str:
    """Return a problem in short.

    - ``mm bf16 64x128x256 nn``: op, dtype, M x N x K, layout. A batch comes first: ``bmm bf16 8x64x128x256 nn``.
    - ``scaled_mm e4m3 16x6144x4096 nt row fast → bf16``: scaling, fast accumulation, dtype of the output. In
      ``e5m2+e4m3`` the dtype of B is another.
    - ``convolution bf16 100352x64x576 nt 32x56x56 kernel 3x3 padding 1x1``: batch and spatial sizes, kernel, stride.
    - ``flex_attention bf16 64x2048x2048x64 nn heads 16 kv_heads 4 causal``: heads of each sequence, mask.
    - ``grouped_mm bf16 8 x (256x4096x2048) nt 2d3d skew 1``: groups of a mean size, form, skew.
    - ``reduction bf16 x512 r0_1024 3f2a91b0``: a fused kernel by its first dtype, its ranges and its source.
    - ``conv[bf16 128x256, bf16 64x3x3]``: the inputs of an op that this version does not know.

    ``diode_store.views.problem_sql`` makes the same text in SQL.
    """
    if isinstance(problem, Problem):
        if is_fused(problem.op):
            return _fused_text(problem)
        return problem_text(problem.shape) if problem.is_known else _inputs_text(problem)
    shape = problem
    sizes = f"{shape.m}x{shape.n}x{shape.k}"
    if form := shape.dimension("form"):
        sizes = f"{shape.b} x ({sizes})"
    elif shape.b > 1:
        sizes = f"{shape.b}x{sizes}"
    dtypes = "+".join(_short(str(each)) for each in (shape.arithmetic, shape.dimension("b_dtype")) if each)
    words = [shape.op, dtypes, sizes, shape.layout, *([form] if form else [])]
    return " ".join([*words, *_dimension_words(shape)])


def unknown_op_line(op: str, measurements: int) -> str:
    """Return the note on measurements of an op that this version does not know."""
    told = f"{counted(measurements, 'measurement')} of {printable(op)}"
    return f"{told}: this torch-diode does not know the op; it keeps them and ranks none of its kernels"


def _dimension_words(shape: ProblemShape) -> Iterator[str]:
    form, total = shape.dimension("form"), shape.dimension("total")
    mean = {ROWS: shape.m, COLUMNS: shape.n, DEPTH: shape.k}.get(form)
    if mean is not None and total not in {None, shape.b * mean}:
        yield f"total {total}"
    if skew := shape.dimension("skew"):
        yield f"skew {skew:g}"
    if kernel := shape.dimension("kernel"):
        yield f"{shape.dimension('batch')}x{shape.dimension('size')} kernel {kernel}"
    yield from (f"{name} {value}" for name in (*USUAL, *SIZES) if (value := shape.dimension(name)))
    if mask := shape.dimension(MASK):
        yield str(mask)
    if block := shape.dimension(BLOCK):
        yield f"block {block}"
    if scaling := shape.dimension("scaling"):
        yield str(scaling)
    yield from (word for name, word in (("fast_accum", "fast"), ("bias", "bias")) if shape.dimension(name))
    if out_dtype := shape.dimension("out_dtype"):
        yield f"→ {_short(out_dtype)}"


def _fused_text(problem: Problem) -> str:
    scalars = dict(problem.scalars)
    sizes = [f"{name}{scalars[name]}" for name in RANGES if name in scalars]
    return " ".join([problem.op, _short(problem.inputs[0].dtype), *sizes, str(scalars.get(SOURCE, ""))[:SHOWN_DIGITS]])


def _inputs_text(problem: Problem) -> str:
    shown = [
        " ".join(filter(None, (_short(dtype), "x".join(map(str, size)))))
        for dtype, size, _ in problem.inputs[:MOST_INPUTS]
    ]
    more = ["…"] if len(problem.inputs) > MOST_INPUTS else []
    return f"{problem.op}[{', '.join([*shown, *more])}]"


def _short(dtype: str) -> str:
    return SHORT_DTYPES.get(dtype, dtype)


def _float_text(value: float) -> str:
    if not math.isfinite(value) or value == 0:
        return str(value)
    digits = 3 - math.floor(math.log10(abs(value)))
    return f"{value:.4g}" if digits > 8 else f"{value:.{max(digits, 0)}f}"  # noqa: PLR2004 - beyond, 1.2e-07 reads better


def json_value(value: object) -> object:  # noqa: PLR0911 - as above
    """Return ``value`` as JSON types: bytes become hex, times ISO 8601, NaN and infinity None."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (float, Decimal)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return json_value(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (Sequence, AbstractSet)):
        return [json_value(item) for item in value]
    return str(value)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as aligned text, numbers to the right, without trailing blanks."""
    cells = _cells(columns, rows)
    widths = _widths(cells)
    numeric = [any(isinstance(row[i], (int, float)) for row in rows) for i in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        return _GAP.join(padded).rstrip()

    return "\n".join(line(row) for row in cells)


def fitting_columns(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> int:
    """Return the number of columns of ``plain_table`` that fit into ``width`` characters; at least 1."""
    used = -len(_GAP)
    for position, needed in enumerate(_widths(_cells(columns, rows))):
        used += len(_GAP) + needed
        if used > width:
            return max(position, 1)
    return len(columns)


def quantity(value: float | None, unit: str) -> str | None:
    """Return ``value`` with four digits at most and a decimal prefix, as in 4.8 TB/s; None stays None."""
    if value is None:
        return None
    power = min(max(math.floor(math.log10(value)) // 3, 0), len(_PREFIXES) - 1) if value >= 1 else 0
    return f"{value / 1000**power:.4g} {_PREFIXES[power]}{unit}"


def _cells(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[list[str]]:
    return [[printable(name) for name in columns], *([cell_text(value) for value in row] for row in rows)]


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]
