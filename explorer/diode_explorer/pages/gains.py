"""The opening picture of the overview: Triton kernels against vendor kernels, by device, op and dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_explorer.pages import cases
from diode_trainer.report.parts import Picture
from diode_trainer.report.questions import Question, where
from diode_trainer.report.specification import names, ratios, rows_height, tips, untitled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from diode_explorer.pages.page import Asked
    from diode_trainer.report.questions import Value
    from diode_trainer.report.specification import Spec

_PREFIX = "NVIDIA "
_MOST = 24
"""Maximum groups in the picture; those with most problems are shown."""
_TEXT = (
    "Each row is a device, an op and a dtype. The dot is the median problem; the line spans the middle 80%. Right of 1"
    " the best Triton kernel beats the vendor kernel. Tuning gains most in the rows that reach far to the right."
    " Click a dot to open the group's map."
)
_X = ratios("vendor / Triton (logarithmic)")


def _sql(filters: Mapping[str, Value]) -> str:
    conditions = {"device": "hardware", "torch": "torch"}
    timed = where(conditions, filters, "vendor_us IS NOT NULL", "triton_us IS NOT NULL")
    return f"""\
WITH cases AS (
    SELECT DISTINCT ON (hardware_id, problem_id)
        hardware,
        op,
        {cases.ARITHMETIC} AS dtype,
        {cases.SHORT_DTYPE} AS short_dtype,
        vendor_us / triton_us AS speedup
    FROM best_times
    {timed}    ORDER BY hardware_id, problem_id, {cases.NEAREST_FIRST}
)
FROM (
    SELECT
        hardware AS device,
        op,
        dtype,
        short_dtype,
        count(*) AS problems,
        median(speedup) AS median_speedup,
        quantile_cont(speedup, 0.1) AS p10_speedup,
        quantile_cont(speedup, 0.9) AS p90_speedup,
        100 * avg((speedup > 1)::INTEGER) AS triton_wins_pct
    FROM cases
    GROUP BY hardware, op, dtype, short_dtype
    ORDER BY problems DESC, device, op, dtype
    LIMIT {_MOST}
)
ORDER BY median_speedup DESC, device, op, dtype"""  # noqa: S608 - our own text; values are parameters


def gains(asked: Asked) -> Picture:
    """Return the picture for the filters."""

    def address(values: Mapping[str, Value]) -> str | None:
        return asked.address("coverage", values)

    return Picture(
        "gains",
        "Where Triton beats the vendor",
        _TEXT,
        Question(_sql(asked.filters), asked.filters),
        lambda rows: _drawn(rows, address),
        "No problem has timings of both a Triton kernel and the vendor kernel yet.",
    )


def _drawn(rows: Sequence[Mapping[str, Any]], address: Callable[[Mapping[str, Value]], str | None]) -> Spec:
    devices = {row["device"] for row in rows}
    points = [_point(row, address, is_alone=len(devices) == 1) for row in rows]
    y: Spec = {
        "field": "group",
        "type": "nominal",
        "sort": [point["group"] for point in points],
        "title": None,
        "axis": {**names(), "grid": False},
    }
    even = {
        "data": {"values": [{"speedup": 1}]},
        "mark": {"type": "rule", "style": "reference"},
        "encoding": {"x": {"field": "speedup", **_X}},
    }
    span = {
        "mark": {"type": "rule", "style": "model", "strokeWidth": 5, "opacity": 0.4},
        "encoding": {"x": {"field": "p10_speedup", **_X}, "x2": {"field": "p90_speedup"}, "y": y},
    }
    content = {"height": rows_height(len(points)), "data": {"values": points}, "layer": [even, span, _dots(y)]}
    return untitled("Vendor time over Triton time by device, op and dtype; above 1 Triton is faster", content)


def _point(
    row: Mapping[str, Any], address: Callable[[Mapping[str, Value]], str | None], *, is_alone: bool
) -> dict[str, Any]:
    group = f"{row['op']} {row['short_dtype']}"
    asked_for = {name: row[name] for name in ("device", "op", "dtype")}
    return {
        **row,
        "group": group if is_alone else f"{row['device'].removeprefix(_PREFIX)}, {group}",
        "spread": f"{row['p10_speedup']:.2f} to {row['p90_speedup']:.2f}",
        "address": address({**asked_for, "show": "vendor"}),
    }


def _dots(y: Spec) -> Spec:
    return {
        "mark": {"type": "point", "style": "model", "filled": True, "size": 70, "opacity": 1, "cursor": "pointer"},
        "encoding": {
            "x": {"field": "median_speedup", **_X},
            "y": y,
            "tooltip": tips(
                ("group", "group", None),
                ("problems", "problems", ","),
                ("median_speedup", "median", ".3f"),
                ("spread", "middle 80%", None),
                ("triton_wins_pct", "Triton faster (% of problems)", ".1f"),
            ),
        },
    }
