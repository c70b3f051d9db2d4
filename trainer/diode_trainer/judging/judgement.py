"""Judge a ranking problem by problem, as the basis of all figures, tables and pictures of an evaluation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.timing.noise import band_of, slowest_tie_us
from diode_trainer.data.regimes import in_regime
from diode_trainer.features import roofline_us
from diode_trainer.judging.metrics import KS, Report, eligible, errors_of, judgeable, regrets, report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from diode_store.kernels import KernelConfig
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.data.dataset import Examples
    from diode_trainer.scoring import Prediction


@dataclass(frozen=True, eq=False)
class ProblemJudgement:
    """Judgement of predicted times for a problem's n configs: those that ran, with or without vendor kernels."""

    shape: ProblemShape
    hardware: Hardware
    environment: str
    """Key of the environment of the timings."""
    family: str | None
    """Family of the problem; None if unknown."""
    regime: str | None
    """Regime of the timings, as in ``TimingMethod.regime``; None if unknown."""
    regret: Mapping[int, float]
    """Ratio of the best time among the first k choices to the best time of all, for each k of ``KS``."""
    chosen: KernelConfig
    """First choice: the fastest prediction."""
    chosen_us: float
    """Measured time of the first choice."""
    chosen_predicted_us: float
    """Predicted time of the first choice; inf if the model considers every config impossible."""
    best: KernelConfig
    best_us: float
    best_predicted_us: float
    roofline_us: float
    """Lower bound of the time on the device."""
    tie_us: float
    """Longest time within noise of the best, which bounds the tie set."""
    ties: int
    """Size of the tie set, including the best config."""
    measured_us: NDArray[np.float64]
    """(n,) measured times."""
    predicted_us: NDArray[np.float64]
    """(n,) predicted times; inf if the model considers a config impossible."""
    is_vendor: NDArray[np.bool_]
    """(n,)"""
    is_estimate: NDArray[np.bool_]
    """(n,) whether the measured time is an estimate (an upper bound), not a median."""

    @property
    def configs(self) -> int:
        """Number of configs that count: n."""
        return len(self.measured_us)

    @property
    def best_is_vendor(self) -> bool:
        """True if the best config is a vendor kernel."""
        return self.best.is_vendor

    @property
    def within_noise(self) -> bool:
        """True if the first choice is in the tie set."""
        return self.regret[1] <= self.tie_regret

    @property
    def tie_regret(self) -> float:
        """Largest regret of a config in the tie set."""
        return self.tie_us / self.best_us

    @property
    def share_of_oracle(self) -> float:
        """Ratio of the best time to the first choice's; 1 is perfect."""
        return self.best_us / self.chosen_us

    def to_plain(self) -> dict[str, Any]:
        """Return the judgement as JSON has it, without arrays; ``regret`` is regret@1, ``regret_at`` has every k."""
        return {
            "shape": asdict(self.shape),
            "hardware": self.hardware.name,
            "family": self.family,
            "regime": self.regime,
            "regret": self.regret[1],
            "regret_at": {str(k): regret for k, regret in self.regret.items()},
            "chosen": self.chosen.describe(),
            "chosen_us": self.chosen_us,
            "predicted_us": self.chosen_predicted_us,
            "best": self.best.describe(),
            "best_us": self.best_us,
            "best_predicted_us": self.best_predicted_us,
            "roofline_us": self.roofline_us,
            "configs": self.configs,
            "ties": self.ties,
            "within_noise": self.within_noise,
            "share_of_oracle": self.share_of_oracle,
        }


def judge_problems(
    examples: Sequence[Examples], predictions: Sequence[Prediction], *, vendor: bool = True
) -> tuple[ProblemJudgement, ...]:
    """Judge predictions problem by problem, without the problems that cannot be judged.

    Args:
        examples: problems outside the model's training data.
        predictions: predictions for the configs of each.
        vendor: True if vendor kernels count.
    """
    pairs = zip(examples, predictions, strict=True)
    return tuple(
        _judgement(example, prediction, vendor=vendor)
        for example, prediction in pairs
        if judgeable(example, vendor=vendor)
    )


def summarise(judgements: Sequence[ProblemJudgement]) -> Report:
    """Summarize judgements.

    Raises:
        DatasetError: there is no judgement.
    """
    regret = np.array([[*judgement.regret.values()] for judgement in judgements]).reshape(-1, len(KS))
    tie = np.array([judgement.tie_regret for judgement in judgements])
    timed = [(j.predicted_us[~j.is_estimate], j.measured_us[~j.is_estimate]) for j in judgements]
    predicted, measured = (np.concatenate(some) for some in zip(*timed, strict=True)) if timed else ((), ())
    return report(regret, tie, errors=errors_of(np.asarray(predicted), np.asarray(measured)))


def _judgement(example: Examples, prediction: Prediction, *, vendor: bool) -> ProblemJudgement:
    counted = np.flatnonzero(eligible(example, vendor=vendor))
    measured, predicted = example.runtime_us[counted], in_regime(prediction.runtime_us[counted], example.regime)
    chosen, best = int(np.argmin(predicted)), int(np.argmin(measured))
    tie_us = noise_limit_us(example, float(measured[best]))
    return ProblemJudgement(
        shape=example.shape,
        hardware=example.hardware,
        environment=example.environment,
        family=example.family,
        regime=example.regime,
        regret=dict(zip(KS, regrets(measured, prediction.turns(counted)).tolist(), strict=True)),
        chosen=example.columns.config(int(counted[chosen])),
        chosen_us=float(measured[chosen]),
        chosen_predicted_us=float(predicted[chosen]),
        best=example.columns.config(int(counted[best])),
        best_us=float(measured[best]),
        best_predicted_us=float(predicted[best]),
        roofline_us=roofline_us(example.shape, example.hardware),
        tie_us=tie_us,
        ties=int((measured <= tie_us).sum()),
        measured_us=measured,
        predicted_us=predicted,
        is_vendor=example.is_vendor[counted],
        is_estimate=example.is_estimate[counted],
    )


def noise_limit_us(example: Examples, best_us: float) -> float:
    """Return the longest time within noise of a problem's best time."""
    return slowest_tie_us(best_us, example.usual_sigmas[band_of(best_us)])
