"""How good a ranking is: the cost of trying only the k configs ranked first.

**regret@k** of a problem is (best runtime among its k configs ranked first) / (best runtime of all): 1 is perfect.
Configs that failed were not available and are left out before ranking, as are problems with fewer than two
configs left: every ranking of those is perfect. A ranking of fewer than k configs is tried whole.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Regret:
    """Regret over problems: geometric mean, 95th percentile and maximum."""

    geomean: float
    p95: float
    max: float


@dataclass(frozen=True)
class Report:
    """How one way of ranking does over many problems."""

    problems: int
    regret: dict[int, Regret]
    """By k."""
    within_2pct: float
    """Share of problems whose config ranked first is within 2% of the best."""
    within_5pct: float
    rmse_log: float | None = None
    """Root mean square error of the natural logarithm of the runtime, estimates left out; None for a ranking that
    predicts none."""

    def to_plain(self) -> dict[str, Any]:
        """Return the report as JSON has it: the k are strings, a ranking without an error has no ``rmse_log``."""
        plain = asdict(self)
        plain["regret"] = {str(k): regret for k, regret in plain["regret"].items()}
        if self.rmse_log is None:
            del plain["rmse_log"]
        return plain


def eligible(example: Examples, *, vendor: bool = True) -> NDArray[np.bool_]:
    """Return which configs of a problem count, shape (n,): those that ran, with or without the vendor's."""
    return example.ran if vendor else example.ran & ~example.is_vendor


def judgeable(example: Examples, *, vendor: bool = True) -> bool:
    """Whether a problem tells rankings apart at all."""
    return int(eligible(example, vendor=vendor).sum()) >= _FEWEST_CONFIGS


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


def report(regret: NDArray[np.float64], *, problems: int | None = None, rmse_log: float | None = None) -> Report:
    """Summarise regrets of many problems.

    Args:
        regret: (m, len(KS)), a row for each problem (or for each draw of each problem).
        problems: how many problems that are; m unless given.
        rmse_log: error of the predicted times.

    Raises:
        DatasetError: no row.
    """
    if not len(regret):
        raise DatasetError("no problem has two configs that ran, so there is nothing to judge by")
    geomean = np.exp(np.log(regret).mean(0))
    p95 = np.percentile(regret, 95, axis=0)
    by_k = {k: Regret(float(geomean[i]), float(p95[i]), float(regret[:, i].max())) for i, k in enumerate(KS)}
    return Report(
        problems=len(regret) if problems is None else problems,
        regret=by_k,
        within_2pct=float((regret[:, 0] <= 1.02).mean()),  # noqa: PLR2004 - the name says it
        within_5pct=float((regret[:, 0] <= 1.05).mean()),  # noqa: PLR2004 - likewise
        rmse_log=rmse_log,
    )


def evaluate(
    examples: Sequence[Examples], predicted_us: Sequence[NDArray[np.float64]], *, vendor: bool = True
) -> Report:
    """Judge predicted runtimes.

    Args:
        examples: problems that the model has not seen.
        predicted_us: (n,) for each of them; inf where the model considers a config impossible.
        vendor: whether the vendor's kernels count.

    Raises:
        DatasetError: no problem can be judged.
    """
    rows, errors = [], []
    for example, predicted in zip(examples, predicted_us, strict=True):
        if not judgeable(example, vendor=vendor):
            continue
        counted = eligible(example, vendor=vendor)
        rows.append(regrets(example.runtime_us[counted], predicted[counted]))
        timed = counted & ~example.is_estimate & np.isfinite(predicted)
        errors.append(np.log(predicted[timed] / example.runtime_us[timed]))
    all_errors = np.concatenate(errors) if errors else np.empty(0)
    rmse = float(np.sqrt((all_errors**2).mean())) if len(all_errors) else None
    return report(np.array(rows).reshape(-1, len(KS)), rmse_log=rmse)
