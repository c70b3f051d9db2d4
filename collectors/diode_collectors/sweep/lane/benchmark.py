"""Times the choices of one problem: a first look at each, a median for the good ones, the leaders again."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.errors import first_line
from diode_store.records import Outcome, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_collectors.sweep.lane.timer import Timer
    from diode_store.records import KernelConfig

log = logging.getLogger(__name__)

ESTIMATE_FACTOR = 3.0
"""A choice whose first look is slower than this many times the best so far keeps that look, as an estimate."""
FIRST_LOOK_RUNS = 3
HOPELESS_FACTOR = 10.0
"""Beyond this factor one run is look enough: the worst of an exhaustive list takes a hundred times the best."""
MOST_RUNS, FEWEST_RUNS = 24, 7
_BUDGET_US = 6_000.0
LEADER_FACTOR = 1.1
"""Choices within this factor of the best median are measured again, in turn, so that drift hits all alike."""
MOST_LEADERS = 10
LEADER_ROUNDS = 4
_WARM_UP_US = 20_000.0
_STICKY_ERRORS = ("illegal memory access", "unspecified launch failure", "misaligned address", "device-side assert")
_COMPILE_ERRORS = {"CompilationError", "PTXASError", "CUDACompileError", "CppCompileError", "NoTritonConfigsError"}
_WORST_ERROR = 0.05
_COMPARED = 2**20


class DeviceLostError(Exception):
    """A kernel left the device in a state in which this process cannot use it; has the kernel's index."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


@dataclass
class Candidate:
    """One choice on its way to a timing."""

    name: str
    is_vendor: bool
    prepare: Callable[[], Callable[[], object]]
    """Loads the kernel and returns what runs it; raises when it cannot."""
    check: Callable[[], float | None] = lambda: None
    """Returns the relative error of what the last run wrote; None where nothing is known to compare with."""
    run: Callable[[], object] | None = None
    """Runs it once more; kept only of a candidate with a median of its own."""
    times_us: list[float] = field(default_factory=list)
    is_estimate: bool = False
    outcome: Outcome = Outcome.OK
    error: str | None = None

    @property
    def median_us(self) -> float:
        """The median of its runs."""
        return float(np.median(self.times_us))

    def timing(self, config: KernelConfig) -> Timing:
        """Return what is recorded."""
        if self.outcome is not Outcome.OK:
            return Timing(config, None, self.outcome)
        low, middle, high = (float(us) for us in np.percentile(self.times_us, (10, 50, 90)))
        return Timing(config, middle, Outcome.OK, self.is_estimate, len(self.times_us), low, high)


def time_all(candidates: Sequence[Candidate], timer: Timer, *, seed: int = 0) -> None:
    """Fill in the times and outcomes of ``candidates``.

    Vendor kernels come first, so that the first looks at the others have a time to compare with; the rest
    follow in random order, so that a drift of the clocks does not favour one template.

    Raises:
        DeviceLostError: one of them broke the device.
    """
    chooser = random.Random(seed)  # noqa: S311 - an order is no secret
    order = sorted(range(len(candidates)), key=lambda i: (not candidates[i].is_vendor, chooser.random()))
    best_us = float("inf")
    for index in order:
        candidate = candidates[index]
        try:
            _time(candidate, timer, best_us, is_first=index == order[0])
        except Exception as error:  # noqa: BLE001 - Triton, CUDA and Inductor raise anything
            _note_failure(candidate, index, error, timer)
        else:
            if candidate.outcome is Outcome.OK and not candidate.is_estimate:
                best_us = min(best_us, candidate.median_us)
    _measure_leaders_again(candidates, timer)


def _time(candidate: Candidate, timer: Timer, best_us: float, *, is_first: bool) -> None:
    run = candidate.prepare()
    run()
    timer.synchronize()
    if is_first:
        timer.warm_up(run, _WARM_UP_US)
    error = candidate.check()
    if error is not None and not error <= _WORST_ERROR:
        candidate.outcome, candidate.error = Outcome.WRONG_RESULT, f"relative error {error:.2g}"
        return
    candidate.run = run
    candidate.times_us = timer.runs_us(run, 1)
    if candidate.times_us[0] <= HOPELESS_FACTOR * best_us:
        candidate.times_us += timer.runs_us(run, FIRST_LOOK_RUNS - 1)
    look_us = candidate.median_us
    if look_us > ESTIMATE_FACTOR * best_us:
        candidate.is_estimate = True
        candidate.run = None
        return
    candidate.times_us = timer.runs_us(run, runs_within_budget(look_us + timer.overhead_us))


def runs_within_budget(run_us: float) -> int:
    """Return how many runs of ``run_us`` microseconds a choice gets."""
    return int(min(MOST_RUNS, max(FEWEST_RUNS, _BUDGET_US / run_us)))


def _measure_leaders_again(candidates: Sequence[Candidate], timer: Timer) -> None:
    """Measure the fastest again, in turn: of hundreds, the one that looks fastest is often the luckiest."""
    timed = [c for c in candidates if c.run is not None]
    if not timed:
        return
    medians = {id(c): c.median_us for c in timed}
    limit = LEADER_FACTOR * min(medians.values())
    near = sorted((c for c in timed if medians[id(c)] <= limit), key=lambda c: medians[id(c)])[:MOST_LEADERS]
    # Most readers ask whether to call the vendor, so its best kernel is timed as carefully as a leader.
    vendor = min((c for c in timed if c.is_vendor), key=lambda c: medians[id(c)], default=None)
    leaders = [*near, *([vendor] if vendor is not None and vendor not in near else [])]
    for _ in range(LEADER_ROUNDS):
        for candidate in leaders:
            if candidate.run is None:  # it failed in an earlier round
                continue
            count = runs_within_budget(medians[id(candidate)] + timer.overhead_us)
            try:
                candidate.times_us += timer.runs_us(candidate.run, count)
            except Exception as error:  # noqa: BLE001 - as above
                _note_failure(candidate, candidates.index(candidate), error, timer)


def _note_failure(candidate: Candidate, index: int, error: Exception, timer: Timer) -> None:
    candidate.run = None
    candidate.outcome = outcome_of(error)
    candidate.error = f"{type(error).__name__}: {first_line(error)}"
    log.debug("%s: %s", candidate.name, candidate.error)
    if any(words in str(error).lower() for words in _STICKY_ERRORS) or not works(timer):
        candidate.outcome = Outcome.RUNTIME_ERROR
        raise DeviceLostError(index, candidate.error) from error


def works(timer: Timer) -> bool:
    """Tell whether the device still works: what breaks it is reported again by every call from then on."""
    try:
        timer.synchronize()
    except Exception:  # noqa: BLE001 - whatever it is
        return False
    return True


def outcome_of(error: BaseException) -> Outcome:
    """Return what an exception of a kernel's compilation or launch means."""
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower()
    if names & {"OutOfResources", "OutOfMemoryError"} or "out of resource" in text or "out of memory" in text:
        return Outcome.OUT_OF_RESOURCES
    if names & _COMPILE_ERRORS or "ptxas" in text:
        return Outcome.COMPILE_ERROR
    return Outcome.RUNTIME_ERROR


def relative_error(output: Any, expected: Any) -> float:
    """Return ``|output - expected| / |expected|`` of two tensors, over about a million elements of them.

    NaN where either holds NaN or infinity.
    """
    step = output.numel() // _COMPARED | 1  # an odd step comes by every column of a matrix
    ours, theirs = (tensor.reshape(-1)[::step].double() for tensor in (output, expected))
    norm = theirs.norm()
    return float((ours - theirs).norm() / norm) if norm else float(ours.norm())
