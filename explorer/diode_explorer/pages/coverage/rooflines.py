"""The roofline in SQL: the least time that a device could need for a problem, as in ``diode_trainer.work.Work``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.devices.descriptor import describe
from diode_store.timing.roofline import LAUNCH_US

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_store.records import Hardware

_BYTE, _HALF, _SINGLE = 1, 2, 4
_OF = "op, dtype, b, m, n, k, dimensions"
FIGURES = f"""\
        flops_of(op, b, m, n, k, dimensions) AS flops,
        bytes_read_of({_OF}) + bytes_written_of({_OF}) AS bytes_moved,
        CASE
            WHEN is_int8(dtype) THEN int8_flops
            WHEN itemsize_of(dtype) = {_BYTE} THEN fp8_flops
            WHEN itemsize_of(dtype) = {_HALF} THEN half_flops
            WHEN tf32 THEN tf32_flops
            ELSE fp32_flops
        END AS peak_flops,
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
            described.peak_flops(_BYTE, is_integer=True),
            described.peak_flops(_BYTE),
            described.peak_flops(_HALF),
            described.peak_flops(_SINGLE, tf32=True),
            described.peak_flops(_SINGLE),
        ]
        figures = (f"{figure:.12g}" for figure in (*flops, described.memory_bandwidth))
        rows.append(f"({number}, {', '.join(figures)})")
    values = ",\n        ".join(rows)
    return f"""\
peaks(hardware_id, int8_flops, fp8_flops, half_flops, tf32_flops, fp32_flops, bytes_per_s) AS (
    VALUES
        {values}
)"""
