"""Ops and problems (``diode_store.ops``) in SQL, for the views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.candidates.names import SHORT_DTYPES
from diode_store.command_line.render import MOST_INPUTS
from diode_store.kernels import BLOCK
from diode_store.ops import FUSED_OPS, OPS
from diode_store.ops.attending import BACKWARD
from diode_store.ops.fused import RANGES, SHOWN_DIGITS, SOURCE
from diode_store.ops.grouping import COLUMNS, DEPTH, ROWS
from diode_store.ops.work import ITEMSIZES, OTHER_ITEMSIZE, is_int8

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_store.ops import Op

_MANY = 64
"""More inputs than any op takes, so that optional ones have roles too."""


def problem_macros() -> str:
    """Return the SQL that makes the macros.

    - ``itemsize_of(dtype)``: bytes of one element.
    - ``is_int8(dtype)``: true for integers of one byte.
    - ``roles_of(op)``: part that each input plays, in order; NULL for an unknown op.
    - ``repeats_inputs(op, inputs)``: true if a matrix repeats itself by a stride of 0.
    - ``flops_of(op, b, m, n, k, dimensions)``, ``bytes_read_of(op, dtype, …)`` and ``bytes_written_of(op, dtype, …)``:
      work of a problem as in ``diode_store.ops.work``; NULL for an unknown op.
    - ``named_blocks(kwargs)``: block sizes without a column, such as ``R0_BLOCK=512 XBLOCK=8``; NULL without any.
    - ``problem_text(op, dtype, b, m, n, k, layout, dimensions, inputs, scalars)``: a problem in short, as in
      ``diode_store.command_line.render``; the dtype is ``tf32`` for float32 that may be multiplied as TF32.
    """
    return f"{_of_ops()}{_WORK}{_TEXT}"


def _of_ops() -> str:
    sizes = " ".join(
        f"WHEN dtype IN ({_quoted(name for name, each in ITEMSIZES.items() if each == size)}) THEN {size}"
        for size in sorted({*ITEMSIZES.values()} - {OTHER_ITEMSIZE})
    )
    out_dtypes = ((name, f"'{op.out_dtype}'") for name, op in OPS.items() if op.out_dtype)
    short = " ".join(f"WHEN '{name}' THEN '{short}'" for name, short in SHORT_DTYPES.items())
    return f"""
        CREATE MACRO itemsize_of(dtype) AS CASE {sizes} ELSE {OTHER_ITEMSIZE} END;
        CREATE MACRO is_int8(dtype) AS dtype IN ({_quoted(name for name in ITEMSIZES if is_int8(name))});
        CREATE MACRO short_dtype(dtype) AS CASE dtype {short} ELSE dtype END;
        CREATE MACRO products_of(op) AS CASE {_cases((name, op.products) for name, op in OPS.items())} END;
        CREATE MACRO out_dtype_of(op) AS CASE {_cases(out_dtypes)} END;
        CREATE MACRO roles_of(op) AS
            CASE {_cases((name, f"[{_quoted(op.roles(_MANY))}]") for name, op in OPS.items())} END;
        CREATE MACRO repeats_inputs(op, inputs) AS CASE {_cases((name, _has_zero(op)) for name, op in OPS.items())} END;
    """


# The mean of a grouped dimension is exact here, while the column is rounded. Floating point: a product of imported
# sizes may exceed any integer.
_WORK = f"""
    CREATE MACRO total_of(dimensions) AS (dimensions ->> '$.total')::DOUBLE;
    CREATE MACRO mean_size(size, b, dimensions, wanted) AS
        CASE WHEN dimensions ->> '$.form' = wanted THEN coalesce(total_of(dimensions) / b, size) ELSE size END::DOUBLE;
    CREATE MACRO groups_read(b, dimensions, wanted) AS
        CASE WHEN dimensions ->> '$.form' = wanted THEN least(b, total_of(dimensions)) ELSE b END::DOUBLE;
    CREATE MACRO value_size_of(k, dimensions) AS coalesce((dimensions ->> '$.value_size')::DOUBLE, k);
    CREATE MACRO keys_and_values(n, k, dimensions) AS (dimensions ->> '$.batch')::DOUBLE
        * coalesce(dimensions ->> '$.kv_heads', dimensions ->> '$.heads')::DOUBLE
        * n * (k + value_size_of(k, dimensions));
    CREATE MACRO computed_of(dimensions) AS CASE
        WHEN coalesce(dimensions ->> '$.full', dimensions ->> '$.partial') IS NULL THEN 1
        ELSE coalesce((dimensions ->> '$.full')::DOUBLE, 0) + coalesce((dimensions ->> '$.partial')::DOUBLE, 0)
    END;
    CREATE MACRO flops_of(op, b, m, n, k, dimensions) AS CASE
        WHEN dimensions ->> '$.heads' IS NOT NULL THEN 2e0 * b * m * n * computed_of(dimensions)
            * ((products_of(op) + 1) // 2 * k + products_of(op) // 2 * value_size_of(k, dimensions))
        ELSE 2e0 * products_of(op) * b * mean_size(m, b, dimensions, '{ROWS}')
            * mean_size(n, b, dimensions, '{COLUMNS}') * mean_size(k, b, dimensions, '{DEPTH}')
    END;
    CREATE MACRO bytes_read_of(op, dtype, b, m, n, k, dimensions) AS itemsize_of(dtype) * CASE
        WHEN dimensions ->> '$.heads' IS NOT NULL THEN b::DOUBLE * m * k + keys_and_values(n, k, dimensions)
        WHEN dimensions ->> '$.input' IS NOT NULL THEN (dimensions ->> '$.input')::DOUBLE + b::DOUBLE * k * n
        ELSE products_of(op) * mean_size(k, b, dimensions, '{DEPTH}') * (
            groups_read(b, dimensions, '{COLUMNS}') * mean_size(m, b, dimensions, '{ROWS}')
            + groups_read(b, dimensions, '{ROWS}') * mean_size(n, b, dimensions, '{COLUMNS}')
        )
    END;
    CREATE MACRO bytes_written_of(op, dtype, b, m, n, k, dimensions) AS
        itemsize_of(coalesce(dimensions ->> '$.out_dtype', out_dtype_of(op), dtype)) * CASE
        WHEN dimensions ->> '$.heads' IS NULL
            THEN b::DOUBLE * mean_size(m, b, dimensions, '{ROWS}') * mean_size(n, b, dimensions, '{COLUMNS}')
        WHEN op = '{BACKWARD}' THEN b::DOUBLE * m * k + keys_and_values(n, k, dimensions)
        ELSE b::DOUBLE * m * value_size_of(k, dimensions)
    END;
"""

# No lambda: DuckDB takes none over a subquery, which the explorer passes for the scalars.
_SIZES = ", ".join(f"'{name}' || nullif(regexp_extract(scalars, '\"{name}\", ?(\\d+)', 1), '')" for name in RANGES)
_TEXT = f"""
    CREATE MACRO sizes_text(b, m, n, k, dimensions) AS CASE
        WHEN dimensions ->> '$.form' IS NOT NULL THEN b || ' x (' || m || 'x' || n || 'x' || k || ')'
        ELSE CASE WHEN b > 1 THEN b || 'x' ELSE '' END || m || 'x' || n || 'x' || k
    END;
    CREATE MACRO dimensions_text(b, m, n, k, dimensions) AS concat_ws(
        ' ',
        dimensions ->> '$.form',
        'total ' || CASE WHEN total_of(dimensions) <> b * CASE dimensions ->> '$.form'
            WHEN '{ROWS}' THEN m WHEN '{COLUMNS}' THEN n WHEN '{DEPTH}' THEN k END THEN dimensions ->> '$.total' END,
        'skew ' || format('{{:g}}', (dimensions ->> '$.skew')::DOUBLE),
        (dimensions ->> '$.batch') || 'x' || (dimensions ->> '$.size'),
        'kernel ' || (dimensions ->> '$.kernel'),
        'stride ' || (dimensions ->> '$.stride'),
        'padding ' || (dimensions ->> '$.padding'),
        'dilation ' || (dimensions ->> '$.dilation'),
        'heads ' || (dimensions ->> '$.heads'),
        'kv_heads ' || (dimensions ->> '$.kv_heads'),
        'value_size ' || (dimensions ->> '$.value_size'),
        dimensions ->> '$.mask',
        'block ' || (dimensions ->> '$.block'),
        dimensions ->> '$.scaling',
        CASE WHEN dimensions ->> '$.fast_accum' = 'true' THEN 'fast' END,
        CASE WHEN dimensions ->> '$.bias' = 'true' THEN 'bias' END,
        '→ ' || short_dtype(dimensions ->> '$.out_dtype')
    );
    CREATE MACRO inputs_text(inputs) AS array_to_string(
        list_transform(
            inputs::JSON[], lambda input, place:
            CASE
                WHEN place > {MOST_INPUTS + 1} THEN NULL
                WHEN place > {MOST_INPUTS} THEN '…'
                ELSE concat_ws(
                    ' ',
                    short_dtype(input ->> '$[0]'),
                    nullif(array_to_string(json_extract(input, '$[1]')::BIGINT[], 'x'), '')
                )
            END
        ),
        ', '
    );
    CREATE MACRO fused_text(op, inputs, scalars) AS concat_ws(
        ' ',
        op,
        short_dtype(json_extract_string(inputs, '$[0][0]')),
        {_SIZES},
        left(regexp_extract(scalars, '"{SOURCE}", ?"([0-9a-f]+)"', 1), {SHOWN_DIGITS})
    );
    CREATE MACRO named_blocks(kwargs) AS nullif(
        array_to_string(
            list_transform(
                regexp_extract_all(kwargs, '"(\\w*{BLOCK}|{BLOCK}_\\w+)", ?\\d+'), lambda block:
                regexp_replace(block, '"(\\w+)", ?', '\\1=')
            ),
            ' '
        ),
        ''
    );
    CREATE MACRO problem_text(op, dtype, b, m, n, k, layout, dimensions, inputs, scalars) AS CASE
        WHEN op IN {FUSED_OPS} THEN fused_text(op, inputs, scalars)
        WHEN m IS NULL THEN op || '[' || inputs_text(inputs) || ']'
        ELSE concat_ws(
            ' ', op, concat_ws('+', short_dtype(dtype), short_dtype(dimensions ->> '$.b_dtype')),
            sizes_text(b, m, n, k, dimensions), layout,
            nullif(dimensions_text(b, m, n, k, dimensions), '')
        )
    END;
"""


def _cases(values: Iterable[tuple[str, object]]) -> str:
    """Return the WHEN of each op with its value; ops with one value share it."""
    by_value: dict[str, list[str]] = {}
    for op, value in values:
        by_value.setdefault(str(value), []).append(op)
    return " ".join(f"WHEN op IN ({_quoted(ops)}) THEN {value}" for value, ops in by_value.items())


def _has_zero(op: Op) -> str:
    """Return SQL that is true if a stride of A or B is 0."""
    strides = ", ".join(f"'$[{position}][2]'" for position in op.operands[:2])
    return rf"regexp_matches(json_extract_string(inputs, [{strides}])::VARCHAR, '\b0\b')"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
