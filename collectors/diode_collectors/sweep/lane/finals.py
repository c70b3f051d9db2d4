"""The fastest choices of a problem once more, in turn, until their order is told from noise.

Of hundreds, the one that looks fastest is often the luckiest. Kernels over a millisecond run into the power cap of a
large GPU too: how fast one is then depends on what ran just before it. So finalists take turns, in an order that is
drawn anew each round, and are compared round by round.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

FEWEST_ROUNDS, MOST_ROUNDS = 4, 10
MOST_ROUNDS_OF_LONG = 24
LONG_US = 1_000.0
"""From here on a kernel draws so much power that how fast it is depends on what ran before it."""
# Rounds are looked at again and again, so what ends them must be rarer than what is then called decided.
_SETTLED_Z = NormalDist().inv_cdf(1 - 0.01 / 2)
_TOLD_Z = NormalDist().inv_cdf(1 - 0.05 / 2)
_IMMATERIAL = 1e-3
"""Nobody minds which of two kernels it is when their difference is known this well, and is no larger."""


@dataclass(frozen=True)
class Finals:
    """How well the order of a problem's fastest choices is known."""

    finalists: int
    rounds: int
    undecided: int
    """How many finalists may be as fast as the first: chance alone gives such a difference in one of twenty cases."""


@dataclass(eq=False)
class Finalist:
    """A choice that may be the fastest."""

    take: Callable[[int], list[float]]
    """Returns so many samples of its time in microseconds; raises when the kernel fails."""
    us: float
    """About how long it takes."""
    samples: int
    """How many make a round."""
    fails: Callable[[Exception], None]
    """Takes the error of a failure."""
    times_us: list[float] = field(default_factory=list)
    _rounds: list[float] = field(default_factory=list)
    has_failed: bool = False

    def run_round(self) -> None:
        """Take a round's samples."""
        try:
            times = self.take(self.samples)
        except Exception as error:  # noqa: BLE001 - Triton and CUDA raise anything
            self.has_failed = True
            self.fails(error)
            return
        self.times_us += times
        self._rounds.append(float(np.median(times)))

    @property
    def logs(self) -> NDArray[np.float64]:
        """The logarithm of each round's median, shape (rounds,)."""
        return np.log(self._rounds)


def run_finals(finalists: Sequence[Finalist], seed: int) -> Finals:
    """Run rounds until the order of all finalists against the fastest is settled, or there were enough."""
    chooser = random.Random(seed)  # noqa: S311 - an order is no secret
    left = [f for f in finalists if not f.has_failed]
    most = MOST_ROUNDS_OF_LONG if left and min(f.us for f in left) > LONG_US else MOST_ROUNDS
    rounds = 0
    while left and rounds < most:
        for finalist in chooser.sample(left, len(left)):
            finalist.run_round()
        left = [f for f in left if not f.has_failed]
        rounds += 1
        if rounds >= FEWEST_ROUNDS and left and _is_settled(left):
            break
    behind, errors = _behind(left)
    undecided = int((behind <= student(_TOLD_Z, rounds - 1) * errors).sum()) - 1 if left else 0
    return Finals(len(left), rounds, max(undecided, 0))


def _is_settled(finalists: Sequence[Finalist]) -> bool:
    behind, errors = _behind(finalists)
    freedom = len(finalists[0].logs) - 1
    told = behind > student(_SETTLED_Z, freedom) * errors
    equal = behind + student(_TOLD_Z, freedom) * errors < _IMMATERIAL
    return bool((told | equal).all())


def student(z: float, freedom: int) -> float:
    """Return the quantile of Student's t with so many degrees of freedom that ``z`` is of the normal distribution.

    Cornish and Fisher's expansion (Abramowitz and Stegun, 26.7.5), within 4% from three degrees on.
    """
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


def _behind(finalists: Sequence[Finalist]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how far each is behind the fastest in log time, shape (n,), and the standard error of that."""
    if not finalists:
        return np.empty(0), np.empty(0)
    logs = np.array([f.logs for f in finalists])  # (n, rounds)
    differences = logs - logs[np.argmin(logs.mean(1))]
    return differences.mean(1), differences.std(1, ddof=1) / np.sqrt(logs.shape[1])
