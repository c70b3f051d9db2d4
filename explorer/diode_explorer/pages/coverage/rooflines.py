"""The roofline in SQL: the least time that a device could need for a problem, as in ``diode_trainer.work.Work``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.devices.descriptor import describe
from diode_store.ops.work import ITEMSIZES
from diode_store.timing.roofline import LAUNCH_US

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_store.records import Hardware

_HALF, _SINGLE = 2, 4
_SIZES = "\n".join(
    f"            WHEN dtype IN ({', '.join(repr(name) for name, size in ITEMSIZES.items() if size == itemsize)})"
    f" THEN {itemsize}"
    for itemsize in sorted({*ITEMSIZES.values()} - {_SINGLE})
)
# Sizes become floating-point first: a product of imported sizes may exceed any integer.
FIGURES = f"""\
        CASE
{_SIZES}
            ELSE {_SINGLE}
        END AS itemsize,
        2e0 * b * m * n * k AS flops,
        itemsize * b::DOUBLE * (m::DOUBLE * k + k::DOUBLE * n + m::DOUBLE * n) AS bytes_moved,
        CASE WHEN itemsize <= {_HALF} THEN half_flops WHEN tf32 THEN tf32_flops ELSE fp32_flops END AS peak_flops,
        1e6 * greatest(flops / peak_flops, bytes_moved / bytes_per_s) + {LAUNCH_US:g} AS roofline_us"""
"""Columns of a SELECT over problems joined with ``peaks``."""


def peaks(devices: Mapping[int, Hardware]) -> str:
    """Return a common table expression with the published peaks of devices.

    Args:
        devices: id in the warehouse → device; at least one.
    """
    rows = []
    for number, hardware in devices.items():
        described = describe(hardware)
        flops = [
            described.peak_flops(size, tf32=tf32) for size, tf32 in ((_HALF, False), (_SINGLE, True), (_SINGLE, False))
        ]
        figures = (f"{figure:.12g}" for figure in (*flops, described.memory_bandwidth))
        rows.append(f"({number}, {', '.join(figures)})")
    values = ",\n        ".join(rows)
    return f"""\
peaks(hardware_id, half_flops, tf32_flops, fp32_flops, bytes_per_s) AS (
    VALUES
        {values}
)"""
