"""Metrics of a ranking: the cost of trying only k configs.

**regret@k** of a problem is (best runtime among the k configs tried first) / (best runtime of all): 1 is perfect. An
ensemble first tries its fastest prediction, and then the configs that complement it (``uncertainty.timed_together``),
each kernel once, as the hook does in top-k mode. Other rankings try configs in the order of their predictions. Failed
configs are left out before ranking. So are problems with fewer than two remaining configs, as every ranking of these is
perfect. A ranking of fewer than k configs is tried completely.
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
"""Values of k for which regret is reported."""
_FEWEST_CONFIGS = 2
NOTHING_TO_JUDGE = "no problem has two configs that ran, one of them a template's, so there is nothing to judge by"


@dataclass(frozen=True)
class Regret:
    """Distribution of regret over problems: geometric mean, 95th percentile and maximum."""

    geomean: float
    p95: float
    max: float


@dataclass(frozen=True)
class Share:
    """Distribution of a share over problems: mean, 10th percentile and minimum."""

    mean: float
    p10: float
    min: float


@dataclass(frozen=True)
class Errors:
    """Errors of predicted times over all configs, without estimates."""

    mse_log: float
    """Mean squared error of the natural logarithm."""
    mse_us: float
    """Mean squared error in squared microseconds, dominated by the longest kernels."""

    @property
    def rmse_log(self) -> float:
        """Root mean squared error of the natural logarithm; 0.11 is about 11%."""
        return math.sqrt(self.mse_log)

    @property
    def rmse_us(self) -> float:
        """Root mean squared error in microseconds."""
        return math.sqrt(self.mse_us)

    def to_plain(self) -> dict[str, float]:
        """Return the errors as JSON has them."""
        return {name: getattr(self, name) for name in ("rmse_log", "mse_log", "rmse_us", "mse_us")}


@dataclass(frozen=True)
class Report:
    """Results of a ranking over many problems."""

    problems: int
    regret: dict[int, Regret]
    """Regret by k."""
    within_2pct: float
    """Share of problems whose first choice is within 2% of the best."""
    within_5pct: float
    within_noise: float
    """Share of problems whose first choice is in the tie set."""
    share_of_oracle: Share
    """Best time over the first choice's time: the reached share of the best speed."""
    errors: Errors | None = None
    """Errors of the predicted times; None for a ranking that predicts none."""

    def to_plain(self) -> dict[str, Any]:
        """Return the report as JSON has it, with string keys for k, and without errors if there are none."""
        plain = asdict(self)
        del plain["errors"]
        plain["regret"] = {str(k): regret for k, regret in plain["regret"].items()}
        return {**plain, **(self.errors.to_plain() if self.errors else {})}


def eligible(example: Examples, *, vendor: bool = True) -> NDArray[np.bool_]:
    """Return a mask of the configs that count, shape (n,): those that ran, with or without vendor kernels."""
    return example.ran if vendor else example.ran & ~example.is_vendor


def judgeable(example: Examples, *, vendor: bool = True) -> bool:
    """Return whether a problem can tell rankings apart; problems with vendor kernels only cannot."""
    return not example.is_vendor[example.ran].all() and int(eligible(example, vendor=vendor).sum()) >= _FEWEST_CONFIGS


def regrets(
    runtime_us: NDArray[np.float64], score: NDArray[np.floating[Any]], ks: Sequence[int] = KS
) -> NDArray[np.float64]:
    """Return regret@k of one problem for each k, shape (len(ks),).

    Args:
        runtime_us: (n,) measured times of the available configs, all finite.
        score: (n,) scores to rank by, smallest first, ties in the configs' order. A config with an infinite score is
            tried only if all scores are infinite.
        ks: numbers of configs to try.
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
    """Summarize the regrets of many problems.

    Args:
        regret: (m, len(KS)), a row for each problem (or for each draw of each problem).
        tie: (m,) largest regret of a first choice within noise of the best.
        problems: number of problems; m by default.
        errors: errors of the predicted times.

    Raises:
        DatasetError: there is no row.
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
        within_5pct=float((first <= 1.05).mean()),  # noqa: PLR2004 - as above
        within_noise=float((first <= tie).mean()),
        share_of_oracle=Share(float(oracle.mean()), float(np.percentile(oracle, 10)), float(oracle.min())),
        errors=errors,
    )


def errors_of(predicted_us: NDArray[np.float64], measured_us: NDArray[np.float64]) -> Errors | None:
    """Return the errors of the finite predictions among n; None if there are none."""
    timed = np.isfinite(predicted_us)
    if not timed.any():
        return None
    predicted, measured = predicted_us[timed], measured_us[timed]
    return Errors(float((np.log(predicted / measured) ** 2).mean()), float(((predicted - measured) ** 2).mean()))
