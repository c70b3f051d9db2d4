"""Rooflines and plausibility rules (``diode_store.timing``) in SQL, for the views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.devices.descriptor import describe, is_described
from diode_store.timing.plausible import (
    CLOCK_TOLERANCE,
    FIRST_MOMENT,
    LEAST_US,
    ROOFLINE_SHARE,
    UNIT_SHARE,
    UNIT_US,
    UNITS,
)
from diode_store.timing.roofline import LAUNCH_US

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_store.records import Hardware

PEAKS = (
    "peak_half_tflops",
    "peak_tf32_tflops",
    "peak_fp32_tflops",
    "peak_fp8_tflops",
    "peak_int8_tflops",
    "peak_gb_per_s",
)
"""Columns that ``hardware`` has beside the cache's; NULL for a device of unknown peaks."""
_BYTE, _HALF, _SINGLE = 1, 2, 4


def hardware_table(snapshot: str, devices: Iterable[tuple[int, Hardware]]) -> str:
    """Return the SQL of the table ``hardware`` with the peaks of each device.

    It is a table, not a view, because all views are bound to it.

    Args:
        snapshot: the SELECT of the cache's table.
        devices: the table's devices, with their ids.
    """
    rows = [f"({number}, {', '.join(peaks_of(hardware))})" for number, hardware in devices]
    values = ", ".join(rows or [f"(-1{', NULL::DOUBLE' * len(PEAKS)})"])
    peaks = f"(VALUES {values}) AS peaks (id, {', '.join(PEAKS)})"
    return f"CREATE TABLE hardware AS FROM ({snapshot}) LEFT JOIN {peaks} USING (id)"


def roofline_macros() -> str:
    """Return the SQL that makes the macros.

    - ``least_us_of(roofline_us)``: shortest believable time.
    - ``is_plausible(runtime_us, p10_us, p90_us, least_us)``: true if a timing may be ranked and learned from.
    - ``implausible_because(runtime_us, p10_us, p90_us, roofline_us)``: reason against it; NULL for a plausible timing.
    - ``launch_us()``: floor of the roofline.
    - ``clock_is_off(measured_at, ingested_at)``: true if the collector's clock was far off.
    """
    units = " ".join(
        f"WHEN us * {factor:g} >= coalesce({UNIT_SHARE} * roofline, {UNIT_US}) THEN '; it may be in {name}'"
        for name, factor in UNITS.items()
    )
    return f"""
        CREATE MACRO launch_us() AS {LAUNCH_US}::DOUBLE;
        CREATE MACRO least_us_of(roofline) AS greatest({LEAST_US}, {ROOFLINE_SHARE} * roofline);
        CREATE MACRO is_plausible(us, p10, p90, least_us) AS
            coalesce(us >= least_us, true) AND coalesce(p10 <= p90, true);
        CREATE MACRO unit_of(us, roofline) AS CASE {units} ELSE '' END;
        CREATE MACRO implausible_because(us, p10, p90, roofline) AS CASE
            WHEN us < {LEAST_US} AND least_us_of(roofline) = {LEAST_US}
            THEN format('{{:.3g}} us is under {LEAST_US} us, the shortest believable time', us) || unit_of(us, roofline)
            WHEN us < least_us_of(roofline)
            THEN format('{{:.3g}} us is under a tenth of the roofline, {{:.3g}} us', us, roofline)
                || unit_of(us, roofline)
            WHEN p10 > p90 THEN format('p10 of {{:.3g}} us is above p90 of {{:.3g}} us', p10, p90)
        END;
        CREATE MACRO clock_is_off(measured_at, ingested_at) AS coalesce(
            measured_at < TIMESTAMP '{FIRST_MOMENT:%Y-%m-%d}'
            OR measured_at > ingested_at + INTERVAL {CLOCK_TOLERANCE.days} DAY, false);
    """


def peaks_of(hardware: Hardware) -> list[str]:
    """Return the SQL of the columns ``PEAKS`` of a device."""
    if not is_described(hardware):
        return ["NULL::DOUBLE"] * len(PEAKS)
    device = describe(hardware)
    flops = (
        device.peak_flops(_HALF),
        device.peak_flops(_SINGLE, tf32=True),
        device.peak_flops(_SINGLE),
        device.peak_flops(_BYTE),
        device.peak_flops(_BYTE, is_integer=True),
    )
    figures = (*(each / 1e12 for each in flops), device.memory_bandwidth / 1e9)
    return [f"{figure!r}::DOUBLE" for figure in figures]
