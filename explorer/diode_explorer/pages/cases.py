"""Shared queries about cases: a case is one problem on one device, in one environment and regime."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from diode_explorer.pages.page import Parameter
from diode_store.ops import dimensions_of_text
from diode_store.records import Hardware, ProblemShape
from diode_trainer.report.parts import COUNT, NUMBER, Column, Link
from diode_trainer.report.questions import where

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_trainer.report.questions import Value

UNKNOWN = "(unknown)"
"""Regime of measurements that do not state theirs."""
ARITHMETIC = "CASE WHEN tf32 THEN 'tf32' ELSE dtype END"
"""SQL for the dtype, with TF32 as its own dtype."""
SHORT_DTYPE = f"short_dtype({ARITHMETIC})"
"""SQL for the short name of a dtype: ``bf16``."""
NEAREST_FIRST = "regime_rank(regime), last_measured_at DESC NULLS LAST, configs DESC, environment_id DESC, hardware_id"
"""Order of a problem's cases. The first, nearest to deployment, represents the problem."""
REGIME = f"coalesce(regime, '{UNKNOWN}')"

SIZES = tuple(Parameter(name, name.upper(), is_number=True) for name in ("b", "m", "n", "k"))

CONDITIONS = {
    "device": "hardware",
    "op": "op",
    "dtype": ARITHMETIC,
    "layout": "layout",
    "family": "family",
    "regime": REGIME,
    "b": "b",
    "m": "m",
    "n": "n",
    "k": "k",
    "environment": "environment_key",
}
"""Parameter → column or expression of ``best_times`` that must equal its value."""

_FACETS = ("device", "op", "dtype", "layout", "family", "environment", "regime")
_ENVIRONMENTS = """\
SELECT
    lower(hex(key)) AS value,
    concat_ws(', ', 'torch ' || torch, 'triton ' || triton, compute, 'driver ' || driver) AS label
FROM environments
WHERE id IN (SELECT environment_id FROM best_times {condition})
ORDER BY id DESC"""


def facet_sql(name: str, filters: Mapping[str, Value]) -> str:
    """Return the SELECT of a parameter's options: values that were measured together with the other filters."""
    others = {"problem": "problem_key", **{other: CONDITIONS[other] for other in CONDITIONS if other != name}}
    expression = CONDITIONS[name]
    condition = where(others, filters, f"{expression} IS NOT NULL")
    if name == "environment":
        return _ENVIRONMENTS.format(condition=condition)
    return f"SELECT DISTINCT {expression} AS facet FROM best_times\n{condition}ORDER BY ALL"  # noqa: S608 - our own text


DEVICE, OP, DTYPE, LAYOUT, FAMILY, ENVIRONMENT, REGIME_OF = (
    Parameter(name, name, options=partial(facet_sql, name)) for name in _FACETS
)

PROBLEM_TEXT = (
    f"problem_text(op, {ARITHMETIC}, b, m, n, k, layout, dimensions, "  # noqa: S608 - our own text
    "(SELECT known.inputs FROM problems AS known WHERE known.id = problem_id), "
    "(SELECT known.scalars FROM problems AS known WHERE known.id = problem_id))"
)
"""SQL for a problem as text: op, dtype, sizes, layout and dimensions; of an unknown op the inputs."""
IS_KNOWN = "m IS NOT NULL"
"""SQL for whether this torch-diode knew the problem's op when it was stored."""

# Columns that begin every query for a table of cases.
CASE_COLUMNS = """\
    problem_key,
    hardware,
    environment_key,
    coalesce(regime, '(unknown)') AS regime_name"""
TO_PROBLEM = Link(
    {"problem": "problem_key", "device": "hardware", "environment": "environment_key", "regime": "regime_name"},
    "problem",
    keeps=False,
)
"""Link to the page of a case."""
BEST_US = Column("best_us", "best, us", NUMBER, 2)
VENDOR_US = Column("vendor_us", "vendor, us", NUMBER, 2)
CONFIGS = Column("configs", "configs", COUNT)


def hardware_of(row: Mapping[str, Any]) -> Hardware:
    """Return the device of a row of the table ``hardware``."""
    numbers = ("l2_bytes", "shared_memory_per_block_bytes", "memory_bytes", "memory_bandwidth_bytes_per_s")
    return Hardware(
        vendor=row["vendor"],
        name=row["name"],
        arch=row["arch"],
        multiprocessors=row["multiprocessors"],
        **{name: row[name] for name in (*numbers, "max_clock_mhz")},
    )


def shape_of(row: Mapping[str, Any]) -> ProblemShape:
    """Return the problem of a row, whose op is known."""
    return ProblemShape(
        op=row["op"],
        dtype=row["dtype"],
        b=row["b"],
        m=row["m"],
        n=row["n"],
        k=row["k"],
        layout=row["layout"],
        tf32=row["tf32"],
        dimensions=dimensions_of_text(row["dimensions"]),
    )
