"""What pages that are about cases share: a case is one problem on one device, in one environment and regime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_explorer.pages.page import Parameter
from diode_explorer.pages.parts import COUNT, NUMBER, Column, Link
from diode_store.records import Hardware, ProblemShape

if TYPE_CHECKING:
    from collections.abc import Mapping

NOT_SAID = "(not said)"
"""The regime of measurements of which nobody knows it."""
ARITHMETIC = "CASE WHEN tf32 THEN 'tf32' ELSE dtype END"
"""The dtype, of which TF32 is one of its own."""
REGIME = f"coalesce(regime, '{NOT_SAID}')"

DEVICE = Parameter("device", "device", options="SELECT DISTINCT hardware FROM best_times ORDER BY hardware")
OP = Parameter("op", "op", options="SELECT DISTINCT op FROM best_times ORDER BY op")
DTYPE = Parameter(
    "dtype",
    "dtype",
    options=f"SELECT DISTINCT {ARITHMETIC} AS arithmetic FROM best_times ORDER BY arithmetic",  # noqa: S608 - our own text
)
LAYOUT = Parameter("layout", "layout", options="SELECT DISTINCT layout FROM best_times ORDER BY layout")
FAMILY = Parameter(
    "family",
    "family",
    options="SELECT DISTINCT family FROM best_times WHERE family IS NOT NULL ORDER BY family",
)
ENVIRONMENT = Parameter(
    "environment",
    "environment",
    options="""\
SELECT
    lower(hex(key)) AS value,
    concat_ws(', ', 'torch ' || torch, 'triton ' || triton, compute, 'driver ' || driver) AS label
FROM environments
WHERE id IN (SELECT environment_id FROM best_times)
ORDER BY id DESC""",
)
REGIME_OF = Parameter("regime", "regime", options=f"SELECT DISTINCT {REGIME} FROM best_times ORDER BY ALL")  # noqa: S608 - our own text
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
"""Parameter → what of ``best_times`` must equal it."""

PROBLEM_TEXT = (
    f"concat_ws(' ', op, {ARITHMETIC}, CASE WHEN b > 1 THEN b || 'x' ELSE '' END || m || 'x' || n || 'x' || k, layout)"
)
"""How a problem is written: op, dtype, sizes, layout."""

# What every table of cases begins with; its query has these columns.
CASE_COLUMNS = """\
    problem_key,
    hardware,
    environment_key,
    coalesce(regime, '(not said)') AS regime_name"""
TO_PROBLEM = Link(
    {"problem": "problem_key", "device": "hardware", "environment": "environment_key", "regime": "regime_name"},
    "problem",
    keeps=False,
)
"""Leads to the page of a case."""
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
    """Return the problem of a row that has its columns."""
    return ProblemShape(
        op=row["op"],
        dtype=row["dtype"],
        b=row["b"],
        m=row["m"],
        n=row["n"],
        k=row["k"],
        layout=row["layout"],
        tf32=row["tf32"],
    )
