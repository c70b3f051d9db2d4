"""Time the fastest choices of a problem in turn, until each is clearly slower than the fastest or equal to it.

Among hundreds of choices, the one that looks fastest is often the luckiest. A kernel of over a millisecond also runs
into the power cap of a large GPU, so its speed depends on the kernel before it. Finalists therefore take turns in
rounds, each in a new random order, and are compared round by round.
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
_FEWEST_TO_COMPARE = 2
"""One round has no standard error."""
MOST_ROUNDS_OF_LONG = 24
LONG_US = 1_000.0
"""Time in microseconds above which a kernel draws so much power that its speed depends on the kernel before it."""
# Rounds are checked again and again, so the threshold that ends them is stricter than the one for a decision.
_SETTLED_Z = NormalDist().inv_cdf(1 - 0.01 / 2)
_TOLD_Z = NormalDist().inv_cdf(1 - 0.05 / 2)
_IMMATERIAL = 1e-3
"""Relative difference that does not matter: two kernels this close need no further rounds."""


@dataclass(frozen=True)
class Finals:
    """Result of the finals of one problem."""

    finalists: int
    rounds: int
    undecided: int
    """Number of finalists that may be as fast as the first, at a 5% level of significance."""


@dataclass(eq=False)
class Finalist:
    """A choice that may be the fastest."""

    take: Callable[[int], list[float]]
    """Returns this many samples of the kernel's time in microseconds; raises if the kernel fails."""
    us: float
    """Approximate kernel time in microseconds."""
    samples: int
    """Number of samples in a round."""
    fails: Callable[[Exception], None]
    """Called with the error of a failed kernel."""
    times_us: list[float] = field(default_factory=list)
    _rounds: list[float] = field(default_factory=list)
    has_failed: bool = False

    def run_round(self) -> None:
        """Take the samples of one round."""
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
        """Logarithm of each round's median, shape (rounds,)."""
        return np.log(self._rounds)


def run_finals(finalists: Sequence[Finalist], seed: int, is_spent: Callable[[], bool] = lambda: False) -> Finals:
    """Run rounds until each finalist is clearly slower than the fastest or equal to it, or until the last round.

    Args:
        finalists: the choices to compare.
        seed: seed of the order in which they take turns.
        is_spent: returns True when no further round may begin; two rounds run in any case.
    """
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
        if rounds >= _FEWEST_TO_COMPARE and is_spent():
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
    """Return the quantile of Student's t that corresponds to the normal quantile ``z``.

    Cornish and Fisher's expansion (Abramowitz and Stegun, 26.7.5); within 4% from three degrees of freedom on.

    Args:
        z: quantile of the normal distribution.
        freedom: degrees of freedom.
    """
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


def _behind(finalists: Sequence[Finalist]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how far each finalist is behind the fastest in log time, and its standard error; both of shape (n,)."""
    if not finalists:
        return np.empty(0), np.empty(0)
    logs = np.array([f.logs for f in finalists])  # (n, rounds)
    differences = logs - logs[np.argmin(logs.mean(1))]
    return differences.mean(1), differences.std(1, ddof=1) / np.sqrt(logs.shape[1])
