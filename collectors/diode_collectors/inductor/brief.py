"""Compare a few kernels as a deployed model runs them, within a small budget of device time.

A compile waits for the result, so this does less than a sweep. Each kernel gets a first look. The kernels that may be
the fastest then take turns (``finals``). Rounds end when each kernel is clearly slower than the fastest or equal to it,
or when the budget is spent.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from diode_collectors.inductor.failures import outcome_of, works
from diode_collectors.inductor.finals import Finalist, run_finals
from diode_collectors.inductor.graphs import CaptureError
from diode_collectors.inductor.timer import samples_us
from diode_store.errors import DiodeError, first_line
from diode_store.records import Outcome, TimingMethod
from diode_store.values.units import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from diode_collectors.inductor.graphs import Rotation
    from diode_collectors.inductor.timer import Timer

log = logging.getLogger(__name__)

BUDGET_US = 50_000.0
"""Device time that one problem may take, in microseconds; two rounds run in any case."""
FAR = 1.3
"""A kernel keeps its first look as an estimate if that is slower than this many times the best look.

A look includes a constant overhead, which makes kernels appear more alike than they are.
"""
_PATIENCE = 4.0
"""Wall time of the rounds as a multiple of the budget. A busy machine repeats late launches."""
_LOOKS, _ONE_LOOK_US = 3, 5_000.0
"""Runs of a first look, and the kernel time in microseconds above which there is one run only."""
_ROUND_US, _MOST_SAMPLES_A_ROUND = 600.0, 4
_WARM_UP_US = 5_000.0


class DeviceBrokenError(DiodeError):
    """A kernel broke the device; nothing can be timed any more."""


@dataclass(eq=False)
class Entrant:
    """One kernel to compare, with its result."""

    prepare: Callable[[], Callable[[], object]]
    """Loads the kernel and returns its launcher; raises if that fails."""
    rotation: Rotation | None = None
    """Launches over other operands; None if there are none."""
    times_us: list[float] = field(default_factory=list)
    """Samples of the rounds, or of the first look, in microseconds."""
    logs: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Logarithm of each round's median, shape (rounds,); empty for a kernel that took part in no round."""
    outcome: Outcome = Outcome.OK
    error: str | None = None
    _run: Callable[[], object] | None = None

    @property
    def median_us(self) -> float:
        """Median of the samples in microseconds; inf for a failed kernel."""
        return float(np.median(self.times_us)) if self.outcome is Outcome.OK and self.times_us else math.inf

    def forget(self) -> None:
        """Drop the kernel and its operands; keep the times."""
        self._run = self.rotation = None

    @property
    def is_estimate(self) -> bool:
        """True for a kernel too slow to take part in the rounds."""
        return not len(self.logs)


@dataclass(frozen=True)
class Compared:
    """Method and cost of a comparison."""

    method: TimingMethod
    spent_us: float
    """Estimated device time that the comparison took, in microseconds."""


def compare(entrants: Sequence[Entrant], timer: Timer, *, budget_us: float = BUDGET_US, seed: int = 0) -> Compared:
    """Fill in the times and outcomes of ``entrants``.

    Args:
        entrants: the kernels, ideally with the fastest prediction first.
        timer: the clock.
        budget_us: device time after which no further round begins.
        seed: seed of the order in which kernels take turns.

    Raises:
        DeviceBrokenError: a kernel broke the device.
    """
    comparison = _Comparison(entrants, timer, budget_us)
    late_before = timer.late_launches
    with timer.active():
        comparison.look()
        method = comparison.run_rounds(seed)
    if timer.late_launches > late_before:
        method = replace(method, launch_hidden=False)
    return Compared(method, comparison.spent_us)


def standing(logs: Sequence[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean log time of each of n kernels and its standard error, both of shape (n,).

    A drift that all kernels of a round share does not change their order, so it does not count as an error.

    Args:
        logs: n arrays of shape (rounds,), of kernels that took turns in the same rounds.
    """
    table = np.array(logs)
    mean = table.mean(1)
    count = table.shape[1]
    if len(table) < 2 or count < 2:  # noqa: PLR2004 - nothing to compare
        return mean, np.zeros(len(table))
    drift = table.mean(0) - table.mean()
    residuals = table - mean[:, None] - drift
    freedom = (count - 1) * (1 - 1 / len(table))  # each round's mean takes a share
    return mean, np.sqrt((residuals**2).sum(1) / freedom / count)


class _Comparison:
    """State of one comparison."""

    def __init__(self, entrants: Sequence[Entrant], timer: Timer, budget_us: float) -> None:
        self._entrants, self._timer, self._budget_us = entrants, timer, budget_us
        self._best_us = math.inf
        self._give_up_at = math.inf
        self.spent_us = 0.0

    def look(self) -> None:
        """Load each kernel and time a few runs."""
        for entrant in self._entrants:
            try:
                self._look(entrant)
            except Exception as error:  # noqa: BLE001 - Triton, CUDA and Inductor raise anything
                self._fail(entrant, error)
            else:
                self._best_us = min(self._best_us, entrant.median_us)

    def _look(self, entrant: Entrant) -> None:
        run = entrant.prepare()
        run()
        self._timer.synchronize()
        if not self.spent_us:
            self._timer.warm_up(run, _WARM_UP_US)
            self.spent_us += _WARM_UP_US
        entrant.times_us = self._timer.runs_us(run, 1)
        if entrant.times_us[0] < _ONE_LOOK_US:
            entrant.times_us += self._timer.runs_us(run, _LOOKS - 1)
        self.spent_us += sum(entrant.times_us) + len(entrant.times_us) * self._timer.overhead_us
        entrant._run = run  # noqa: SLF001 - its own module

    def run_rounds(self, seed: int) -> TimingMethod:
        """Have the kernels that may be the fastest take turns; return the method that timed them all."""
        near = [entrant for entrant in self._entrants if entrant.median_us <= FAR * self._best_us]
        can_rotate = all(entrant.rotation is not None for entrant in near)
        method = self._timer.method_for(self._best_us if can_rotate else math.inf)
        try:
            finalists = {entrant: self._finalist(entrant, method) for entrant in near}
        except CaptureError as error:
            log.debug("timed without graphs: %s", error)
            method = self._timer.method_for(math.inf)
            finalists = {entrant: self._finalist(entrant, method) for entrant in near}
        # The first looks do not count: they load kernels, and may compile them.
        self._give_up_at = time.monotonic() + _PATIENCE * self._budget_us / US_PER_S
        run_finals(list(finalists.values()), seed, self._is_spent)
        for entrant, finalist in finalists.items():
            if not finalist.has_failed:
                entrant.times_us, entrant.logs = finalist.times_us, finalist.logs
        return method

    def _is_spent(self) -> bool:
        return self.spent_us >= self._budget_us or time.monotonic() > self._give_up_at

    def _finalist(self, entrant: Entrant, method: TimingMethod) -> Finalist:
        us, run = entrant.median_us, entrant._run  # noqa: SLF001 - its own module
        if run is None:
            raise DiodeError("a kernel that was not looked at cannot be compared")
        sampled = self._timer.sampled(run, entrant.rotation, us, method)
        sample_us = sampled.launches * us + self._timer.overhead_us

        def take(count: int) -> list[float]:
            self.spent_us += count * sample_us
            return samples_us(self._timer, sampled, count)

        samples = int(min(max(_ROUND_US / sample_us, 1), _MOST_SAMPLES_A_ROUND))
        return Finalist(take, us, samples, lambda error: self._fail(entrant, error))

    def _fail(self, entrant: Entrant, error: Exception) -> None:
        entrant.outcome, entrant.error = outcome_of(error), f"{type(error).__name__}: {first_line(error)}"
        log.debug("a kernel failed: %s", entrant.error)
        if not works(self._timer):
            raise DeviceBrokenError(entrant.error) from error
