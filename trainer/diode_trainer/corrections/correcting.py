"""Make corrections of a model's predictions from measured times.

The error of a model, log(measured / predicted), is modeled as a sum of parts. One part is common to all configs of a
problem, another to all configs of a side (the vendor library, or a Triton template). A third is each config's own, and
the measurement adds noise. The correction is the best linear prediction in this nested model. It shrinks every part
towards 0, more so for fewer and noisier measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import numpy as np

from diode_trainer.corrections.corrections import Corrections, ProblemOffsets, configs_of, device_of, side_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.card import Card

    Floats = NDArray[np.float64]

PROBLEM_SD = 0.07
SIDE_SD = 0.06
CONFIG_SD = 0.06
"""Standard deviations of the three parts of log(measured / predicted), estimated on bundled problems that the model had
not seen.
"""
_ENOUGH_TO_SCATTER = 20
"""Fewest measurements, beside others of their side and problem, to estimate their scatter."""
_MAD_OF_NORMAL = 1.4826
"""Ratio of standard deviation to median absolute deviation of a normal distribution."""
_HOPELESS = 2.0
"""Ratio to the best time from which a config gets no correction of its own, both with and without one."""


class Model(Protocol):
    """A model that can be corrected."""

    @property
    def card(self) -> Card:
        """Card of the model."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the checkpoint."""

    def predict_us(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> Floats:
        """Return each config's runtime in microseconds, shape (n,); inf for a config that cannot run."""


@dataclass(frozen=True, eq=False)
class MeasuredProblem:
    """Measurements of one problem on one device; arrays have shape (n,)."""

    hardware: Hardware
    shape: ProblemShape
    columns: ConfigColumns
    runtime_us: Floats
    """Median runtime; inf for a config that never ran."""
    count: NDArray[np.int64]
    """Number of measurements of each config."""
    sigma: Floats
    """Relative scatter of one measurement."""


def make_corrections(
    model: Model, measured: Iterable[MeasuredProblem], on_problem: Callable[[], None] = lambda: None
) -> Corrections:
    """Return corrections of ``model``; measurements that correct nothing are left out.

    Args:
        model: model to correct.
        measured: measurements by problem.
        on_problem: called after each problem.
    """
    pairs = []
    for problem in measured:
        pairs.append((problem, model.predict_us(problem.shape, problem.hardware, problem.columns)))
        on_problem()
    noise = unexplained_noise(pairs)
    offsets = {(device_of(of.hardware), of.shape): offsets_of(of, predicted, noise) for of, predicted in pairs}
    found = {problem: known for problem, known in offsets.items() if known is not None}
    return Corrections(model.sha256, found, model.card.name, datetime.now(UTC).isoformat(timespec="seconds"))


def unexplained_noise(pairs: Iterable[tuple[MeasuredProblem, Floats]]) -> float:
    """Estimate the relative scatter of measurements beyond their method's noise and the model's error.

    The estimate is robust: a few large errors of the model do not count as noise.

    Args:
        pairs: measurements of each problem, with the model's predictions.
    """
    standardised: list[float] = []
    for measured, predicted in pairs:
        residual, usable, sides = _residuals(measured, predicted)
        expected_sd = np.sqrt(CONFIG_SD**2 + measured.sigma**2 / measured.count)
        for side in set(sides[usable].tolist()):
            of_side = usable & (sides == side)
            count = int(of_side.sum())
            if count > 1:
                deviation = (residual[of_side] - residual[of_side].mean()) * np.sqrt(count / (count - 1))
                standardised += (deviation / expected_sd[of_side]).tolist()
    if len(standardised) < _ENOUGH_TO_SCATTER:
        return 0.0
    scale = _MAD_OF_NORMAL * float(np.median(np.abs(standardised)))
    return CONFIG_SD * float(np.sqrt(max(scale**2 - 1, 0.0)))


def offsets_of(measured: MeasuredProblem, predicted_us: Floats, noise: float = 0.0) -> ProblemOffsets | None:
    """Return the corrections of one problem; None if the model predicts none of the measured configs.

    Args:
        measured: measurements.
        predicted_us: predictions for the same configs, shape (n,).
        noise: relative scatter of one measurement, beside ``measured.sigma``.
    """
    predictable = np.isfinite(predicted_us)
    if not predictable.any():
        return None
    residual, usable, sides = _residuals(measured, predicted_us)
    # Variance of a residual around the mean of its side.
    variance = CONFIG_SD**2 + (measured.sigma**2 + noise**2) / measured.count
    shared, of_sides = _shared(residual[usable], variance[usable], sides[usable])
    expected = np.array([of_sides.get(side, shared) for side in sides])
    own = expected + CONFIG_SD**2 / variance * (residual - expected)
    own[~np.isfinite(measured.runtime_us)] = np.inf
    matters = predictable & _matters(predicted_us, expected, own)
    configs = configs_of(measured.columns.take(matters))
    return ProblemOffsets(shared, of_sides, dict(zip(configs, own[matters].tolist(), strict=True)))


def _residuals(measured: MeasuredProblem, predicted_us: Floats) -> tuple[Floats, NDArray[np.bool_], NDArray[np.str_]]:
    """Return log(measured / predicted) of each config, a mask of the usable ones, and their sides."""
    usable = np.isfinite(measured.runtime_us) & np.isfinite(predicted_us)
    residual = np.zeros(len(predicted_us))
    residual[usable] = np.log(measured.runtime_us[usable] / predicted_us[usable])
    sides = np.array([side_of(template) for template in measured.columns.templates])
    return residual, usable, sides[measured.columns.template_index]


def _shared(residual: Floats, variance: Floats, sides: NDArray[np.str_]) -> tuple[float, dict[str, float]]:
    """Return the expected error of all configs of a problem, and of each measured side."""
    found = sorted(set(sides.tolist()))
    weights = np.array([np.sum(1 / variance[sides == side]) for side in found])
    means = np.array([np.sum((residual / variance)[sides == side]) for side in found]) / weights
    around = SIDE_SD**2 + 1 / weights  # variance of a side's mean around the problem's
    shared = float(np.sum(means / around) / (np.sum(1 / around) + 1 / PROBLEM_SD**2))
    of_sides = shared + SIDE_SD**2 / around * (means - shared)
    return shared, dict(zip(found, of_sides.tolist(), strict=True))


def _matters(predicted_us: Floats, expected: Floats, own: Floats) -> NDArray[np.bool_]:
    """Return the configs that could be chosen, with their own correction or with their side's."""
    with np.errstate(invalid="ignore", over="ignore"):
        shared, corrected = predicted_us * np.exp(expected), predicted_us * np.exp(own)
    best = np.min(corrected, where=np.isfinite(corrected), initial=np.inf)
    matters: NDArray[np.bool_] = np.minimum(shared, corrected) <= _HOPELESS * best
    return matters
