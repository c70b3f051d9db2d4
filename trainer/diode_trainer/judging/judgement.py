"""What a ranking did on each problem: the common ground of all figures, tables and pictures of an evaluation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.noise import band_of, slowest_tie_us
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
    """How predicted times rank one problem's n configs that count: those that ran, with or without the vendor's."""

    shape: ProblemShape
    hardware: Hardware
    environment: str
    """What tells its timings from those of other environments."""
    family: str | None
    """The family of problems it was swept for; None where nobody said."""
    regime: str | None
    """How its times were taken, as in ``TimingMethod.regime``; None where it is not known."""
    regret: Mapping[int, float]
    """By k of ``KS``: the best true time of the k configs that are tried first over the best of all."""
    chosen: KernelConfig
    """The config that is predicted fastest, which is tried first."""
    chosen_us: float
    """Its true time."""
    chosen_predicted_us: float
    """inf where the model considers every config impossible."""
    best: KernelConfig
    best_us: float
    best_predicted_us: float
    roofline_us: float
    """The least time the device could need."""
    tie_us: float
    """Configs up to this time are within noise of the best: the tie set."""
    ties: int
    """How many configs those are, the best among them."""
    measured_us: NDArray[np.float64]
    """(n,) the true times."""
    predicted_us: NDArray[np.float64]
    """(n,) the predicted times; inf where the model considers a config impossible."""
    is_vendor: NDArray[np.bool_]
    """(n,)"""
    is_estimate: NDArray[np.bool_]
    """(n,) whether the true time is an upper-side guess, not a median."""

    @property
    def configs(self) -> int:
        """How many configs count: n."""
        return len(self.measured_us)

    @property
    def chose_vendor(self) -> bool:
        """Whether the config ranked first is the vendor's."""
        return self.chosen.is_vendor

    @property
    def best_is_vendor(self) -> bool:
        """Whether the best config is the vendor's."""
        return self.best.is_vendor

    @property
    def within_noise(self) -> bool:
        """Whether the config ranked first is in the tie set."""
        return self.regret[1] <= self.tie_regret

    @property
    def tie_regret(self) -> float:
        """Up to which regret a config is in the tie set."""
        return self.tie_us / self.best_us

    @property
    def share_of_oracle(self) -> float:
        """The best time over that of the config ranked first: 1 is perfect."""
        return self.best_us / self.chosen_us

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it, without the arrays; ``regret`` is regret@1, ``regret_at`` has every k."""
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
    """Judge predictions problem by problem; problems that cannot be judged are left out.

    Args:
        examples: problems that the model has not seen.
        predictions: of the configs of each.
        vendor: whether the vendor's kernels count.
    """
    pairs = zip(examples, predictions, strict=True)
    return tuple(
        _judgement(example, prediction, vendor=vendor)
        for example, prediction in pairs
        if judgeable(example, vendor=vendor)
    )


def summarise(judgements: Sequence[ProblemJudgement]) -> Report:
    """Return the figures of problems that were judged.

    Raises:
        DatasetError: there is none.
    """
    regret = np.array([[*judgement.regret.values()] for judgement in judgements]).reshape(-1, len(KS))
    tie = np.array([judgement.tie_regret for judgement in judgements])
    timed = [(j.predicted_us[~j.is_estimate], j.measured_us[~j.is_estimate]) for j in judgements]
    predicted, measured = (np.concatenate(some) for some in zip(*timed, strict=True)) if timed else ((), ())
    return report(regret, tie, errors=errors_of(np.asarray(predicted), np.asarray(measured)))


def _judgement(example: Examples, prediction: Prediction, *, vendor: bool) -> ProblemJudgement:
    counted = np.flatnonzero(eligible(example, vendor=vendor))
    measured, predicted = example.runtime_us[counted], prediction.runtime_us[counted]
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
    """Return the time up to which a config of a problem is within noise of its best."""
    return slowest_tie_us(best_us, example.usual_sigmas[band_of(best_us)])
