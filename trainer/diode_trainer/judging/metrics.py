"""How good a ranking is: the cost of trying only k configs.

**regret@k** of a problem is (best runtime among the k configs tried first) / (best runtime of all): 1 is perfect.
A model of several members first tries the config that it predicts fastest, and then those that go best with it
(``uncertainty.timed_together``), each kernel once, as the hook does in top-k mode; all others try what they predict
fastest.
Configs that failed were not available and are left out before ranking, as are problems with fewer than two
configs left: every ranking of those is perfect. A ranking of fewer than k configs is tried whole.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.errors import DatasetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_trainer.data.dataset import Examples

KS = (1, 3, 5, 10)
"""The k at which regret is reported."""
_FEWEST_CONFIGS = 2
NOTHING_TO_JUDGE = "no problem has two configs that ran, one of them a template's, so there is nothing to judge by"


@dataclass(frozen=True)
class Regret:
    """Regret over problems: geometric mean, 95th percentile and maximum."""

    geomean: float
    p95: float
    max: float


@dataclass(frozen=True)
class Share:
    """A share of each problem, over problems: mean, 10th percentile and minimum."""

    mean: float
    p10: float
    min: float


@dataclass(frozen=True)
class Errors:
    """How far predicted times are from measured ones, config by config; estimates are left out."""

    mse_log: float
    """Mean square error of the natural logarithm."""
    mse_us: float
    """Mean square error in microseconds, squared; the longest kernels decide it."""

    @property
    def rmse_log(self) -> float:
        """Root mean square error of the natural logarithm; 0.11 is about 11%."""
        return math.sqrt(self.mse_log)

    @property
    def rmse_us(self) -> float:
        """Root mean square error in microseconds."""
        return math.sqrt(self.mse_us)

    def to_plain(self) -> dict[str, float]:
        """Return them as JSON has them."""
        return {name: getattr(self, name) for name in ("rmse_log", "mse_log", "rmse_us", "mse_us")}


@dataclass(frozen=True)
class Report:
    """How one way of ranking does over many problems."""

    problems: int
    regret: dict[int, Regret]
    """By k."""
    within_2pct: float
    """Share of problems whose config ranked first is within 2% of the best."""
    within_5pct: float
    within_noise: float
    """Share of problems whose config ranked first is in the tie set."""
    share_of_oracle: Share
    """The best time over that of the config ranked first, the share of the best possible speed."""
    errors: Errors | None = None
    """None for a ranking that predicts no times."""

    def to_plain(self) -> dict[str, Any]:
        """Return the report as JSON has it: the k are strings, a ranking without errors has none of their keys."""
        plain = asdict(self)
        del plain["errors"]
        plain["regret"] = {str(k): regret for k, regret in plain["regret"].items()}
        return {**plain, **(self.errors.to_plain() if self.errors else {})}


def eligible(example: Examples, *, vendor: bool = True) -> NDArray[np.bool_]:
    """Return which configs of a problem count, shape (n,): those that ran, with or without the vendor's."""
    return example.ran if vendor else example.ran & ~example.is_vendor


def judgeable(example: Examples, *, vendor: bool = True) -> bool:
    """Whether a problem tells rankings apart at all: not one of which nothing but the vendor's kernels ran."""
    return not example.is_vendor[example.ran].all() and int(eligible(example, vendor=vendor).sum()) >= _FEWEST_CONFIGS


def regrets(
    runtime_us: NDArray[np.float64], score: NDArray[np.floating[Any]], ks: Sequence[int] = KS
) -> NDArray[np.float64]:
    """Return regret@k of one problem for each k, shape (len(ks),).

    Args:
        runtime_us: (n,) true times of the available configs, all finite.
        score: (n,) what to rank by, smallest first, ties in the configs' order; an infinite score means that the
            config is never tried, unless nothing else is.
        ks: how many configs are tried.
    """
    order = np.argsort(score, kind="stable")
    tried = max(int(np.isfinite(score).sum()), 1)
    best_so_far = np.minimum.accumulate(runtime_us[order])
    last = np.minimum(np.asarray(ks), tried) - 1
    regret: NDArray[np.float64] = best_so_far[last] / runtime_us.min()
    return regret


def report(
    regret: NDArray[np.float64],
    tie: NDArray[np.float64],
    *,
    problems: int | None = None,
    errors: Errors | None = None,
) -> Report:
    """Summarise regrets of many problems.

    Args:
        regret: (m, len(KS)), a row for each problem (or for each draw of each problem).
        tie: (m,) up to which regret the config ranked first is within noise of the best.
        problems: how many problems that are; m unless given.
        errors: of the predicted times.

    Raises:
        DatasetError: no row.
    """
    if not len(regret):
        raise DatasetError(NOTHING_TO_JUDGE)
    geomean = np.exp(np.log(regret).mean(0))
    p95 = np.percentile(regret, 95, axis=0)
    first = regret[:, 0]
    oracle = 1 / first
    return Report(
        problems=len(regret) if problems is None else problems,
        regret={k: Regret(float(geomean[i]), float(p95[i]), float(regret[:, i].max())) for i, k in enumerate(KS)},
        within_2pct=float((first <= 1.02).mean()),  # noqa: PLR2004 - the name says it
        within_5pct=float((first <= 1.05).mean()),  # noqa: PLR2004 - likewise
        within_noise=float((first <= tie).mean()),
        share_of_oracle=Share(float(oracle.mean()), float(np.percentile(oracle, 10)), float(oracle.min())),
        errors=errors,
    )


def errors_of(predicted_us: NDArray[np.float64], measured_us: NDArray[np.float64]) -> Errors | None:
    """Return the errors of n predicted times, those that are not finite left out; None if none is left."""
    timed = np.isfinite(predicted_us)
    if not timed.any():
        return None
    predicted, measured = predicted_us[timed], measured_us[timed]
    return Errors(float((np.log(predicted / measured) ** 2).mean()), float(((predicted - measured) ** 2).mean()))
