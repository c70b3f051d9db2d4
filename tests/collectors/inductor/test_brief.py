"""A quick comparison of a few kernels, by a clock that is simulated."""

from __future__ import annotations

import contextlib
import math
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from diode_collectors.inductor import brief
from diode_collectors.inductor.brief import BUDGET_US, FAR, DeviceBrokenError, Entrant, compare, standing
from diode_collectors.inductor.graphs import CaptureError
from diode_collectors.inductor.timer import Sampled, deployed_method
from diode_store.records import GRAPH, READ_FLUSH, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from diode_store.records import TimingMethod

LAUNCHES = 8


class Kernel:
    """A kernel with a time; it may fail when it is loaded, or at one of its samples."""

    def __init__(self, us: float, *, fails_at: int = -1, loads: bool = True, graphs: bool = True) -> None:
        """Take ``us`` a launch."""
        self.us, self.loads, self.graphs = us, loads, graphs
        self.fails_at, self.samples = fails_at, 0

    def __call__(self) -> None:
        """Run; nothing to do."""

    def prepare(self) -> Callable[[], object]:
        """Return what launches it."""
        if not self.loads:
            raise RuntimeError("out of resource: shared memory")
        return self


class SimulatedTimer:
    """A clock with noise of its own and a drift that all kernels share."""

    overhead_us = 130.0

    def __init__(self, noise: float = 0.0, *, late: int = 0) -> None:
        """Scatter each sample by this share."""
        self.noise, self.random, self.late_launches = noise, random.Random(0), 0  # noqa: S311 - not cryptography
        self._late, self.drift, self.is_broken = late, 1.0, False
        self.device_us = 0.0

    def active(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    def method_for(self, best_us: float) -> TimingMethod:
        """Return what a GPU's timer does."""
        return deployed_method(best_us)

    def sampled(self, run: Any, rotation: object, us: float, method: TimingMethod) -> Sampled:
        """Return a graph of launches, or the launch alone."""
        assert us > 0
        if method.regime != GRAPH:
            return Sampled(run)
        assert rotation is not None
        if not run.graphs:
            raise CaptureError("it synchronizes")
        return Sampled(run, LAUNCHES)

    def warm_up(self, function: Callable[[], object], for_us: float) -> None:  # noqa: ARG002 - any will do
        """Be warm."""
        self.device_us += for_us

    def runs_us(self, function: Any, count: int) -> list[float]:
        """Return ``count`` times of as many launches as the current regime has."""
        self.late_launches, self._late = self.late_launches + self._late, 0
        function.samples += count
        if 0 <= function.fails_at <= function.samples:
            raise RuntimeError("unspecified launch failure")
        self.drift *= 1.001
        launches = LAUNCHES if self._in_rounds(function) else 1
        times = [launches * function.us * self.drift * (1 + self.random.gauss(0, self.noise)) for _ in range(count)]
        self.device_us += sum(times) + count * self.overhead_us
        return times

    def _in_rounds(self, function: Kernel) -> bool:
        return self.regime == GRAPH and function.samples > self.looks

    regime: str | None = None
    looks = 3

    def synchronize(self) -> None:
        """Say whether the device works."""
        if self.is_broken:
            raise RuntimeError("unspecified launch failure")


def entrants_of(kernels: Sequence[Kernel]) -> list[Entrant]:
    """Return an entrant for each kernel, which can rotate its operands."""
    rotation: Any = object()
    return [Entrant(kernel.prepare, rotation) for kernel in kernels]


def in_graphs(noise: float = 0.0) -> SimulatedTimer:
    """Return a timer of kernels that are short enough for graphs."""
    timer = SimulatedTimer(noise)
    timer.regime = GRAPH
    return timer


def test_the_fastest_is_found_behind_noise_and_drift() -> None:
    """Differences of 2% are told although samples scatter by 1% and clocks drift by more; far kernels are left out."""
    kernels = [Kernel(10.2), Kernel(10.0), Kernel(10.4), Kernel(10.0 * FAR * 1.1)]
    entrants, timer = entrants_of(kernels), in_graphs(0.01)
    compared = compare(entrants, timer)
    assert compared.method.regime == GRAPH
    assert [entrant.is_estimate for entrant in entrants] == [False, False, False, True]
    logs, errors = standing([entrant.logs for entrant in entrants[:3]])
    assert logs.argmin() == 1
    assert errors.max() < 0.006
    assert kernels[3].samples == timer.looks


def test_a_clear_order_takes_less_than_a_tie() -> None:
    """Rounds end once the order is told, and a tie ends with the budget."""
    clear = compare(entrants_of([Kernel(10.0), Kernel(11.0)]), in_graphs(0.001)).spent_us
    tied = compare(entrants_of([Kernel(10.0), Kernel(10.0)]), in_graphs(0.01)).spent_us
    assert clear < tied


@pytest.mark.parametrize("us", [3.0, 40.0, 400.0, 20_000.0])
def test_the_budget_bounds_the_device_time(us: float) -> None:
    """Beyond it no round begins, once the two have ended without which nothing can be compared."""
    timer = SimulatedTimer(0.02)
    timer.regime = deployed_method(us).regime
    kernels = [Kernel(us) for _ in range(6)]
    compared = compare(entrants_of(kernels), timer)
    a_round = 6 * max(900.0, us + timer.overhead_us)
    looks = 6 * (us + timer.overhead_us) * (1 if us > 5000 else 3)
    assert compared.spent_us <= max(BUDGET_US, looks + 2 * a_round) + a_round + brief._WARM_UP_US
    assert compared.spent_us == pytest.approx(timer.device_us, rel=0.1)


def test_a_busy_machine_ends_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that come late and are repeated may take more time than the budget knows of."""
    hurried, usual = (entrants_of([Kernel(10.0), Kernel(10.0)]) for _ in range(2))
    compare(usual, in_graphs(0.01))
    monkeypatch.setattr(brief, "_PATIENCE", 0.0)
    compare(hurried, in_graphs(0.01))
    assert [len(entrant.logs) for entrant in hurried] == [2, 2]
    assert len(usual[0].logs) > 4


def test_loading_kernels_takes_no_time_from_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that compile for longer than the rounds may take still get their rounds."""

    class Slow(Kernel):
        def prepare(self) -> Callable[[], object]:
            time.sleep(0.6)
            return self

    entrants = entrants_of([Slow(10.0), Slow(10.0)])
    monkeypatch.setattr(brief, "_PATIENCE", 20.0)  # 1 s
    compare(entrants, in_graphs(0.01))
    assert len(entrants[0].logs) > 4


def test_all_are_timed_alike_where_one_cannot_be_captured() -> None:
    """Times of a graph and of single launches are not compared."""
    compared = compare(entrants_of([Kernel(10.0), Kernel(10.1, graphs=False)]), SimulatedTimer())
    assert compared.method.regime == READ_FLUSH
    plain = [Entrant(Kernel(10.0).prepare), Entrant(Kernel(10.1).prepare)]
    assert compare(plain, SimulatedTimer()).method.regime == READ_FLUSH


def test_long_kernels_are_timed_between_events() -> None:
    """A kernel of 50 us and more fills the device by itself."""
    assert compare(entrants_of([Kernel(80.0), Kernel(81.0)]), SimulatedTimer()).method.regime == READ_FLUSH


@pytest.mark.parametrize("broken", [Kernel(9.0, loads=False), Kernel(9.0, fails_at=7)], ids=["loading", "running"])
def test_a_kernel_that_fails_costs_itself_only(broken: Kernel) -> None:
    """Whether it cannot be loaded or fails in the rounds, it has no time, and the others have one."""
    entrants = entrants_of([broken, Kernel(10.0), Kernel(10.5)])
    compare(entrants, in_graphs())
    assert entrants[0].outcome is not Outcome.OK
    assert math.isinf(entrants[0].median_us)
    assert entrants[0].error
    assert [entrant.median_us < 11 for entrant in entrants[1:]] == [True, True]


def test_a_broken_device_is_reported() -> None:
    """What is timed after that would be nonsense."""
    timer = SimulatedTimer()
    timer.is_broken = True
    with pytest.raises(DeviceBrokenError):
        compare(entrants_of([Kernel(10.0), Kernel(10.5)]), timer)


def test_a_late_launch_is_not_called_hidden() -> None:
    """The record must not look better than it is."""
    hidden, late = (compare(entrants_of([Kernel(10.0)]), SimulatedTimer(late=count)) for count in (0, 1))
    assert hidden.method.launch_hidden is True
    assert late.method.launch_hidden is False


def test_drift_is_no_error() -> None:
    """Rounds that are slower for all kernels alike leave their order as certain as it was."""
    rounds = np.log([[10.0, 11.0, 12.0], [20.0, 22.0, 24.0]])
    means, errors = standing(list(rounds))
    np.testing.assert_allclose(errors, 0, atol=1e-12)
    assert means[1] - means[0] == pytest.approx(math.log(2))


def test_the_standard_error_is_that_of_the_mean() -> None:
    """Over many simulated comparisons it is as large as means of kernels scatter against each other."""
    draws = np.random.default_rng(0)
    found = [standing(list(draws.normal(0, 0.01, (4, 6)) + draws.normal(0, 0.1, 6))) for _ in range(400)]
    differences = np.array([means[0] - means[1] for means, _ in found])
    expected = np.sqrt(np.mean([errors[0] ** 2 + errors[1] ** 2 for _, errors in found]))
    assert differences.std() == pytest.approx(expected, rel=0.1)
