"""The figures of ``diode_store.noise`` as DuckDB macros, for the views."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diode_store.noise import BANDS_US, OTHER_SIGMAS, SIGMAS, TIE_SIGMAS
from diode_store.records import TimingMethod

if TYPE_CHECKING:
    from collections.abc import Sequence


def noise_macros() -> str:
    """Return the SQL that makes them.

    - ``sigmas_of(statistic, flush_l2, launch_hidden, regime)``: relative scatter in each band, a list.
    - ``noisiest(sigmas)``: an aggregate, the largest of each band.
    - ``usual_sigma(us, sigmas)``: the one of the band that ``us`` lies in.
    - ``noise_limit(us, sigma)``: up to where a time is within noise of ``us``.
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
    """Return the condition that a measurement was timed by ``method``."""
    fields = {name: value for name, value in vars(method).items() if value is not None}
    return " AND ".join(f"{name} = '{value}'" for name, value in fields.items()) or "true"


def _numbers(sigmas: Sequence[float]) -> str:
    return f"[{', '.join(map(str, sigmas))}]::DOUBLE[]"
