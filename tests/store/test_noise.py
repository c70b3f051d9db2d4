"""The scatter and the ties that Python and the views share."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import diode_store
from diode_store.noise import SIGMA_BANDS, TIE_SIGMAS, band_of, slowest_tie_us, usual_sigma

BASE = (Path(diode_store.__file__).parent / "query" / "views" / "base.sql").read_text()


def test_the_views_use_the_same_figures() -> None:
    """The macros of all views have these bands and this width of a tie set."""
    whens = " ".join(f"WHEN us < {below} THEN {sigma}" for below, sigma in SIGMA_BANDS[:-1])
    assert f"usual_sigma(us) AS (CASE {whens} ELSE {SIGMA_BANDS[-1][1]} END)::DOUBLE;" in BASE
    assert f"noise_limit(us, sigma) AS us * (1 + {TIE_SIGMAS} * sigma);" in BASE
    assert math.isinf(SIGMA_BANDS[-1][0])


@pytest.mark.parametrize(
    ("us", "band", "sigma"), [(0.1, 0, 0.11), (9.99, 0, 0.11), (10, 1, 0.07), (30, 2, 0.017), (1e6, 2, 0.017)]
)
def test_bands(us: float, band: int, sigma: float) -> None:
    """A band begins at its lower edge."""
    assert (band_of(us), usual_sigma(us)) == (band, sigma)


def test_ties() -> None:
    """A tie is within two sigmas."""
    assert slowest_tie_us(100.0, 0.05) == pytest.approx(110.0)
