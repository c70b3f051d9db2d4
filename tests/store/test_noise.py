"""The scatter and the ties that Python and the views share."""

from __future__ import annotations

import itertools
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from diode_store.records import TimingMethod
from diode_store.timing.noise import BANDS_US, OTHER_SIGMAS, SIGMAS, band_of, sigmas_of, slowest_tie_us, usual_sigma
from diode_store.views.noise_sql import noise_macros

HIDDEN = TimingMethod("median", flush_l2=True, launch_hidden=True)
SEEN = TimingMethod("median", flush_l2=True, launch_hidden=False)
REGIMES_TIMED = ("graph", "read_flush", "write_flush")
METHODS = [
    TimingMethod(*fields)
    for fields in itertools.product((None, "median"), *[(None, True, False)] * 2, (None, *REGIMES_TIMED))
]
TIMES_US = (0.1, 9.99, 10.0, 29.99, 30.0, 1e6)


@pytest.mark.parametrize(("us", "band"), [(0.1, 0), (9.99, 0), (10, 1), (29.99, 1), (30, 2), (1e6, 2)])
def test_bands(us: float, band: int) -> None:
    """A band begins at its lower edge."""
    assert band_of(us) == band


def test_the_scatter_depends_on_how_times_were_taken() -> None:
    """Hidden launches scatter less, by regime; a method that is not known scatters as one that times launches."""
    hidden = {regime: replace(HIDDEN, regime=regime) for regime in (None, *REGIMES_TIMED)}
    assert [usual_sigma(us, [hidden["graph"]]) for us in (5, 20, 50)] == [0.006, 0.014, 0.009]
    assert [usual_sigma(us, [hidden["read_flush"]]) for us in (5, 20, 50)] == [0.017, 0.010, 0.015]
    for regime in (None, "write_flush"):
        assert [usual_sigma(us, [hidden[regime]]) for us in (5, 20, 50)] == [0.017, 0.010, 0.016]
    for other in (SEEN, TimingMethod(), TimingMethod("median")):
        assert [usual_sigma(us, [other]) for us in (5, 20, 50)] == [0.11, 0.07, 0.017]


def test_the_noisiest_of_several_methods_counts() -> None:
    """Times of both kinds differ by as much as the worse kind does."""
    assert usual_sigma(5, {HIDDEN, SEEN}) == 0.11


def test_the_views_use_the_same_figures() -> None:
    """The macros answer as Python does, for every method, band and pair of methods."""
    with closing(duckdb.connect()) as connection:
        connection.execute(noise_macros())
        connection.execute(
            "CREATE TABLE methods (number INT, statistic TEXT, flush_l2 BOOL, launch_hidden BOOL, regime TEXT)"
        )
        rows = [(number, *vars(method).values()) for number, method in enumerate(METHODS)]
        connection.executemany("INSERT INTO methods VALUES (?, ?, ?, ?, ?)", rows)
        sigmas_of_row = "sigmas_of(statistic, flush_l2, launch_hidden, regime)"
        single = connection.execute(f"SELECT {sigmas_of_row} FROM methods ORDER BY number")  # noqa: S608 - our own
        assert [tuple(sigmas) for (sigmas,) in single.fetchall()] == [sigmas_of(method) for method in METHODS]
        for (a, first), (b, second) in itertools.product(enumerate(METHODS[:16]), repeat=2):
            [(sigmas,)] = connection.execute(
                f"SELECT noisiest({sigmas_of_row}) FROM methods WHERE number IN ($1, $2)",  # noqa: S608 - our own
                [a, b],
            ).fetchall()
            assert sigmas == [usual_sigma(us, [first, second]) for us in (1, 10, 30)]
        for us in TIMES_US:
            [(sigma, limit)] = connection.execute(
                "SELECT usual_sigma($1, [1.0, 2.0, 3.0]), noise_limit($1, 0.05)", [us]
            ).fetchall()
            assert (sigma, limit) == (1.0 + band_of(us), pytest.approx(slowest_tie_us(us, 0.05)))
    assert len(BANDS_US) == 3


def test_ties() -> None:
    """A tie is within two sigmas."""
    assert slowest_tie_us(100.0, 0.05) == pytest.approx(110.0)


def test_the_page_has_the_same_figures() -> None:
    """docs/comparing.md has a line a method, in the same order, the others last."""
    page = (Path(__file__).parents[2] / "docs" / "comparing.md").read_text(encoding="utf-8")
    _, _, section = page.partition("\n## Noise\n")
    rows = re.findall(r"^\|[^|]*\| (0[^|]*) \| ([^|]*) \| ([^|]*) \|$", section, re.MULTILINE)
    assert [tuple(map(float, row)) for row in rows] == [*(sigmas for _, sigmas in SIGMAS), OTHER_SIGMAS]
