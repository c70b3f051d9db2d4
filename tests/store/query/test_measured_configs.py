"""What was measured of some problems: one environment, one regime, every config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from diode_store.candidates.names import kernel_config
from diode_store.query.analytics import connect
from diode_store.query.measured import MeasuredProblem, measured_configs
from diode_store.records import Environment, Outcome, TimingMethod
from samples import H100, MEASURED_AT, matmul, measurement, timings_of, triton_config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from diode_store.records import KernelConfig, Problem
    from diode_store.warehouse.store import Store

VENDOR = kernel_config("mm", {})
A, B = (triton_config(block) for block in (32, 64))
PROBLEM, OTHER = matmul(64, 256, 128), matmul(8, 8, 8)
NEWER = Environment(torch="2.13.0", triton="3.7.0")


class Measured:
    """A warehouse to measure into and to ask."""

    def __init__(self, store: Store, url: str) -> None:
        self._store, self._url, self._number = store, url, 0

    def add(self, times: Mapping[KernelConfig, float | Outcome], regime: str | None = "graph", **fields: Any) -> None:
        """Write one measurement, each a second after the last."""
        self._number += 1
        method = TimingMethod("median", flush_l2=True, launch_hidden=True, regime=regime)
        at = MEASURED_AT.replace(second=self._number)
        fields = {"problem": PROBLEM, "timings": timings_of(times), "timing_method": method, "measured_at": at} | fields
        self._store.write([measurement(self._number, **fields)])

    def of(self, *problems: Problem, name: str = "NVIDIA H200") -> dict[bytes, MeasuredProblem]:
        """Return what is known of problems on a device."""
        connection = connect(self._url)
        [(number,)] = connection.execute("SELECT id FROM hardware WHERE name = ?", [name]).fetchall()
        return measured_configs(connection, number, [problem.key for problem in problems])


@pytest.fixture
def measured(any_store: Store, any_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measured:
    """Return an empty one, on each kind of database."""
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "cache"))
    return Measured(any_store, any_url)


@pytest.mark.quick(1)
def test_every_config_fastest_first(measured: Measured) -> None:
    """Of the problems that are asked about, on the device; what failed has no time."""
    measured.add({VENDOR: 30.0, A: 20.0, B: Outcome.OUT_OF_RESOURCES})
    measured.add({A: 1.0}, problem=OTHER)
    measured.add({A: 2.0}, hardware=H100)
    found = measured.of(PROBLEM, matmul(1, 2, 3))
    assert list(found) == [PROBLEM.key]
    known = found[PROBLEM.key]
    assert list(known.times_us.items()) == [(A, 20.0), (VENDOR, 30.0)]
    assert (known.torch, known.regime, known.time_us(B)) == ("2.11.0+cu130", "graph", None)
    assert set(measured.of(PROBLEM, OTHER)) == {PROBLEM.key, OTHER.key}
    assert measured.of() == {}


def test_the_environment_that_was_measured_last(measured: Measured) -> None:
    """Times of two environments never meet."""
    measured.add({A: 20.0, B: 10.0})
    measured.add({A: 30.0}, environment=NEWER)
    known = measured.of(PROBLEM)[PROBLEM.key]
    assert (known.torch, known.times_us) == ("2.13.0", {A: 30.0})


def test_a_later_failure_hides_no_times(measured: Measured) -> None:
    """An environment in which nothing ran says nothing."""
    measured.add({A: 20.0})
    measured.add({A: Outcome.OUT_OF_RESOURCES}, environment=NEWER)
    assert measured.of(PROBLEM)[PROBLEM.key].times_us == {A: 20.0}


@pytest.mark.quick(1)
@pytest.mark.parametrize(("regime", "expected"), [("graph", "graph"), (None, "write_flush")])
def test_the_regime_nearest_to_deployment(measured: Measured, regime: str | None, expected: str) -> None:
    """Nor do times of two regimes; one that nobody knows comes last."""
    times = {"write_flush": 50.0, regime: 20.0}
    for each, time in times.items():
        measured.add({A: time}, regime=each)
    known = measured.of(PROBLEM)[PROBLEM.key]
    assert (known.regime, known.times_us) == (expected, {A: times[expected]})


def test_only_an_unknown_regime(measured: Measured) -> None:
    """It is better than nothing."""
    measured.add({A: 20.0}, regime=None)
    assert measured.of(PROBLEM)[PROBLEM.key].time_us(A) == 20.0


def test_a_source_that_names_fewer_parameters() -> None:
    """What it does not say may have any value; a config that is there itself comes first."""
    short = kernel_config("triton_mm", {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "num_stages": 3, "num_warps": 4})
    assert MeasuredProblem("2.11", None, {short: 7.0}).time_us(A) == 7.0
    assert MeasuredProblem("2.11", None, {short: 7.0, A: 8.0}).time_us(A) == 8.0
    assert MeasuredProblem("2.11", None, {short: 7.0}).time_us(B) is None
