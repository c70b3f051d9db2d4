"""Timing of one problem's choices: a first look at each, a median for the good ones, and the fastest in turn."""

from __future__ import annotations

import contextlib
import logging
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_collectors.inductor.failures import outcome_of, works
from diode_collectors.inductor.finals import LONG_US, Finalist, Finals, run_finals
from diode_collectors.inductor.graphs import CaptureError
from diode_collectors.inductor.timer import samples_us
from diode_store.errors import first_line
from diode_store.records import Outcome, Timing, TimingMethod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from diode_collectors.inductor.graphs import Rotation
    from diode_collectors.inductor.timer import Sampled, Timer
    from diode_store.records import KernelConfig, ProblemShape

log = logging.getLogger(__name__)

ESTIMATE_FACTOR = 3.0
"""Factor over the best time beyond which a choice keeps its first look, as an estimate."""
FIRST_LOOK_RUNS = 3
HOPELESS_FACTOR = 10.0
"""Factor over the best time beyond which one run is enough."""
MOST_RUNS, FEWEST_RUNS = 24, 7
MOST_REPLAYS = 10
"""Limit on the replays of a graph. The mean over a replay's launches scatters far less than a single launch."""
_BUDGET_US = 5_000.0
FINALIST_FACTOR = 1.1
"""Factor over the best median up to which choices are finalists."""
MOST_FINALISTS = 10
_ROUND_US, _MOST_SAMPLES_A_ROUND = 1_500.0, 6
_WARM_UP_US = 20_000.0
_STICKY_ERRORS = ("illegal memory access", "unspecified launch failure", "misaligned address", "device-side assert")
_WORST_ERROR, _WORST_FLOAT8_ERROR = 0.05, 0.1
_FAST_ACCUM_ERROR = 2e-5
"""Relative error of fast accumulation for each element along K; 1.3e-5 was seen on an H200."""
_LARGEST_ERROR = 0.75
"""Largest tolerance. A result of zeros has an error of 1."""
_COMPARED = 2**20


class DeviceLostError(Exception):
    """A kernel made the device unusable for this process. Holds the kernel's index."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


@dataclass
class Candidate:
    """One choice on its way to a timing."""

    name: str
    is_vendor: bool
    prepare: Callable[[], Callable[[], object]]
    """Load the kernel and return a function that runs it; raises if it cannot be loaded."""
    check: Callable[[], float | None] = lambda: None
    """Return the relative error of the last run's output; None without a reference."""
    worst_error: float = _WORST_ERROR
    """Relative error up to which a result counts as right."""
    rotation: Rotation | None = None
    """Run the kernel over other operands; None without any."""
    run: Callable[[], object] | None = None
    """Run the kernel once more; kept only for a candidate with a median of its own."""
    look_us: float = float("inf")
    """Median of the first look."""
    times_us: list[float] = field(default_factory=list)
    is_estimate: bool = False
    outcome: Outcome = Outcome.OK
    error: str | None = None

    @property
    def median_us(self) -> float:
        """Median of the runs."""
        return float(np.median(self.times_us))

    def timing(self, config: KernelConfig) -> Timing:
        """Return the timing to record."""
        if self.outcome is not Outcome.OK:
            return Timing(config, None, self.outcome)
        low, middle, high = (float(us) for us in np.percentile(self.times_us, (10, 50, 90)))
        return Timing(config, middle, Outcome.OK, self.is_estimate, len(self.times_us), low, high)


@dataclass(frozen=True)
class TimedAs:
    """Method by which the choices of a problem were timed."""

    method: TimingMethod
    finals: Finals | None
    """Final round; None if nothing could be timed."""


def time_all(candidates: Sequence[Candidate], timer: Timer, *, seed: int = 0) -> TimedAs:
    """Fill in the times and outcomes of ``candidates``.

    Vendor kernels come first, so that the first looks at the others have a time to compare with. The rest follow in
    random order, so that a drift of the clocks favors no template.

    Raises:
        DeviceLostError: a kernel broke the device.
    """
    chooser = random.Random(seed)  # noqa: S311 - an order is no secret
    order = sorted(range(len(candidates)), key=lambda i: (not candidates[i].is_vendor, chooser.random()))
    timing = _Timing(candidates, timer)
    with timer.active():
        timing.look(order)
        method = timing.measure(order)
        return TimedAs(method, timing.finals(seed))


class _Timing:
    """The state of one problem's timing."""

    def __init__(self, candidates: Sequence[Candidate], timer: Timer) -> None:
        self._candidates = candidates
        self._timer = timer
        self._best_us = float("inf")
        self._method = TimingMethod()

    def look(self, order: Sequence[int]) -> None:
        """Look at each candidate; those far behind the best so far keep that look, as an estimate."""
        for index in order:
            candidate = self._candidates[index]
            with self._failure_noted(candidate, index):
                self._look(candidate, is_first=index == order[0])
                if candidate.outcome is Outcome.OK and not candidate.is_estimate:
                    self._best_us = min(self._best_us, candidate.look_us)

    def _look(self, candidate: Candidate, *, is_first: bool) -> None:
        run = candidate.prepare()
        run()
        self._timer.synchronize()
        if is_first:
            self._timer.warm_up(run, _WARM_UP_US)
        error = candidate.check()
        if error is not None and not error <= candidate.worst_error:
            candidate.outcome, candidate.error = Outcome.WRONG_RESULT, f"relative error {error:.2g}"
            return
        candidate.run = run
        candidate.times_us = self._timer.runs_us(run, 1)
        if candidate.times_us[0] <= HOPELESS_FACTOR * self._best_us:
            candidate.times_us += self._timer.runs_us(run, FIRST_LOOK_RUNS - 1)
        candidate.look_us = candidate.median_us
        self._drop_if_hopeless(candidate)

    def _drop_if_hopeless(self, candidate: Candidate) -> None:
        if candidate.look_us > ESTIMATE_FACTOR * self._best_us:
            candidate.is_estimate = True
            candidate.run = None

    def measure(self, order: Sequence[int]) -> TimingMethod:
        """Take a median of each remaining candidate by one method, and return the method."""
        for candidate in self._candidates:
            # Most readers ask how far a kernel is from a vendor kernel.
            if candidate.run is not None and not candidate.is_vendor:
                self._drop_if_hopeless(candidate)
        self._method = self._timer.method_for(self._best_us)
        try:
            self._measure(order)
        except CaptureError as error:
            log.debug("timed without graphs: %s", error)
            self._method = self._timer.method_for(float("inf"))
            self._measure(order)
        return self._method

    def _measure(self, order: Sequence[int]) -> None:
        for index in order:
            candidate = self._candidates[index]
            with self._failure_noted(candidate, index):
                if candidate.run is not None:
                    sampled = self._sampled(candidate, candidate.run)
                    count = runs_within_budget(sampled.launches * candidate.look_us + self._timer.overhead_us)
                    if sampled.launches > 1:
                        count = min(count, MOST_REPLAYS)
                    candidate.times_us = samples_us(self._timer, sampled, count)

    def _sampled(self, candidate: Candidate, run: Callable[[], object]) -> Sampled:
        return self._timer.sampled(run, candidate.rotation, candidate.look_us, self._method)

    def finals(self, seed: int) -> Finals | None:
        """Time the fastest candidates in turn, along with the best vendor kernel, to which most readers compare."""
        ranked = sorted(
            ((c.median_us, index, c.run) for index, c in enumerate(self._candidates) if c.run is not None),
            key=lambda timed: timed[:2],
        )
        if not ranked:
            return None
        near = [timed for timed in ranked if timed[0] <= FINALIST_FACTOR * ranked[0][0]][:MOST_FINALISTS]
        vendors = [timed for timed in ranked if self._candidates[timed[1]].is_vendor][:1]
        finalists: dict[int, Finalist] = {}
        for index, (us, run) in {index: (us, run) for us, index, run in (*near, *vendors)}.items():
            # A candidate that cannot be captured again keeps its median.
            with contextlib.suppress(CaptureError), self._failure_noted(self._candidates[index], index):
                finalists[index] = self._finalist(index, us, run)
        found = run_finals(list(finalists.values()), seed)
        for index, finalist in finalists.items():
            candidate = self._candidates[index]
            # Under the power cap, times taken in a row are not comparable with times taken in turn.
            is_long = finalist.us > LONG_US and bool(finalist.times_us)
            candidate.times_us = ([] if is_long else candidate.times_us) + finalist.times_us
        return found

    def _finalist(self, index: int, us: float, run: Callable[[], object]) -> Finalist:
        candidate = self._candidates[index]
        sampled = self._sampled(candidate, run)
        samples = _ROUND_US / (sampled.launches * us + self._timer.overhead_us)
        return Finalist(
            take=lambda count: samples_us(self._timer, sampled, count),
            us=us,
            samples=int(min(max(samples, 1), _MOST_SAMPLES_A_ROUND)),
            fails=lambda error: _note_failure(candidate, index, error, self._timer),
        )

    @contextlib.contextmanager
    def _failure_noted(self, candidate: Candidate, index: int) -> Iterator[None]:
        try:
            yield
        except CaptureError:
            raise
        except Exception as error:  # noqa: BLE001 - Triton, CUDA and Inductor raise anything
            _note_failure(candidate, index, error, self._timer)


def runs_within_budget(run_us: float) -> int:
    """Return the number of runs for a choice that takes ``run_us`` microseconds."""
    return int(min(MOST_RUNS, max(FEWEST_RUNS, _BUDGET_US / run_us)))


def _note_failure(candidate: Candidate, index: int, error: Exception, timer: Timer) -> None:
    candidate.run = None
    candidate.outcome = outcome_of(error)
    candidate.error = f"{type(error).__name__}: {first_line(error)}"
    log.debug("%s: %s", candidate.name, candidate.error)
    if any(words in str(error).lower() for words in _STICKY_ERRORS) or not works(timer):
        candidate.outcome = Outcome.RUNTIME_ERROR
        raise DeviceLostError(index, candidate.error) from error


def worst_error_of(shape: ProblemShape) -> float:
    """Return the relative error up to which a result of a problem counts as right.

    Tensor cores add up products of float8 with few bits, some kernels in one go and others in several. With fast
    accumulation wgmma loses bits at every step along K, and mma does not. At a K of 8192 they differ by 10% on an H200.
    """
    if not shape.dtype.startswith("float8"):
        return _WORST_ERROR
    lost = _FAST_ACCUM_ERROR * shape.k if shape.dimension("fast_accum") else 0.0
    return min(_WORST_FLOAT8_ERROR + lost, _LARGEST_ERROR)


class Reference:
    """Output of the first vendor kernel, with which the others must agree."""

    def __init__(self) -> None:
        self._expected: Any = None

    def error_of(self, output: Any, *, is_vendor: bool) -> float | None:
        """Return the error of ``output`` against the vendor's; None for a vendor kernel or without a reference."""
        # A vendor kernel without an ``out`` argument leaves the output alone, so only others are compared.
        if is_vendor:
            if self._expected is None and bool(output.any()):
                self._expected = output.clone()
            return None
        return None if self._expected is None else relative_error(output, self._expected)


def relative_error(output: Any, expected: Any) -> float:
    """Return ``|output - expected| / |expected|`` of two tensors, over about a million of their elements.

    The result is NaN if a tensor holds NaN or infinity.
    """
    step = output.numel() // _COMPARED | 1  # an odd step comes by every column of a matrix
    ours, theirs = (tensor.reshape(-1)[::step].double() for tensor in (output, expected))
    norm = theirs.norm()
    return float((ours - theirs).norm() / norm) if norm else float(ours.norm())
