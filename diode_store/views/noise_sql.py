"""The figures of ``diode_store.timing.noise`` as DuckDB macros, for the views."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diode_store.records import TimingMethod
from diode_store.timing.noise import BANDS_US, OTHER_SIGMAS, SIGMAS, TIE_SIGMAS

if TYPE_CHECKING:
    from collections.abc import Sequence


def noise_macros() -> str:
    """Return the SQL that makes the macros.

    - ``sigmas_of(statistic, flush_l2, launch_hidden, regime)``: list of the relative scatter in each band.
    - ``noisiest(sigmas)``: aggregate; the largest scatter of each band.
    - ``usual_sigma(us, sigmas)``: scatter in the band of ``us``.
    - ``noise_limit(us, sigma)``: longest time within noise of ``us``.
    """
    methods = " ".join(f"WHEN {_is(method)} THEN {_numbers(sigmas)}" for method, sigmas in SIGMAS)
    bands = " ".join(
        f"WHEN us < {below:g} THEN sigmas[{band}]" for band, below in enumerate(BANDS_US, 1) if math.isfinite(below)
    )
    largest = ", ".join(f"max(sigmas[{band}])" for band in range(1, len(BANDS_US) + 1))
    return f"""
        CREATE MACRO sigmas_of({", ".join(vars(TimingMethod()))}) AS CASE {methods} ELSE {_numbers(OTHER_SIGMAS)} END;
        CREATE MACRO noisiest(sigmas) AS [{largest}];
        CREATE MACRO usual_sigma(us, sigmas) AS CASE {bands} ELSE sigmas[{len(BANDS_US)}] END;
        CREATE MACRO noise_limit(us, sigma) AS us * (1 + {TIE_SIGMAS} * sigma);
    """


def _is(method: TimingMethod) -> str:
    """Return the SQL condition that a measurement used ``method``."""
    fields = {name: value for name, value in vars(method).items() if value is not None}
    return " AND ".join(f"{name} = '{value}'" for name, value in fields.items()) or "true"


def _numbers(sigmas: Sequence[float]) -> str:
    return f"[{', '.join(map(str, sigmas))}]::DOUBLE[]"
