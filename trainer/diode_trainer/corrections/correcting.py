"""Makes corrections of a model's predictions from measured times.

How far a model is off, log(measured / predicted), is taken for a sum of what all configs of a problem share, what
those of one side (the vendor's library, or a Triton template) share, and each config's own, beside the noise of the
measurement. From the configs that were measured follows what to expect of the others: the best linear prediction in
this nested model, which shrinks every part towards 0, the more the fewer and noisier the measurements are.
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

    from diode_store.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.card import Card

    Floats = NDArray[np.float64]

PROBLEM_SD = 0.07
SIDE_SD = 0.06
CONFIG_SD = 0.06
"""Standard deviations of the three parts, of log(measured / predicted): of 250 problems of the bundled measurements,
predicted by a fit to the others, at configs predicted within half of the fastest."""
_ENOUGH_TO_SCATTER = 20
"""Measurements beside others of their side and problem, from which on their scatter is looked at."""
_MAD_OF_NORMAL = 1.4826
"""Standard deviation over median absolute deviation."""
_HOPELESS = 2.0
"""A measured config is left out if, with and without its own correction, it is this many times behind the best."""


class Model(Protocol):
    """What is asked of a model."""

    @property
    def card(self) -> Card:
        """The model's card."""

    @property
    def sha256(self) -> str:
        """Of the checkpoint."""

    def predict_us(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> Floats:
        """Return each config's runtime in microseconds, shape (n,); inf for what cannot run."""


@dataclass(frozen=True, eq=False)
class MeasuredProblem:
    """What was measured of one problem on one device; arrays have shape (n,)."""

    hardware: Hardware
    shape: ProblemShape
    columns: ConfigColumns
    runtime_us: Floats
    """Median; inf for a config that never ran."""
    count: NDArray[np.int64]
    """How many measurements there are of each."""
    sigma: Floats
    """Relative scatter of one measurement."""


def make_corrections(
    model: Model, measured: Iterable[MeasuredProblem], on_problem: Callable[[], None] = lambda: None
) -> Corrections:
    """Return the corrections of ``model`` by what was measured; problems that say nothing are left out.

    Args:
        model: what is corrected.
        measured: what was measured, problem by problem.
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
    """Return by how much measurements scatter beyond their method's noise and what a model errs by, relatively.

    Robust: some large errors of the model do not count for noise.

    Args:
        pairs: what was measured of each problem, and what a model predicts for it.
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
    """Return the corrections of one problem; None where nothing was measured that the model could predict.

    Args:
        measured: what was measured.
        predicted_us: what the model predicts for the same configs, shape (n,).
        noise: relative scatter of one measurement, beside ``measured.sigma``.
    """
    predictable = np.isfinite(predicted_us)
    if not predictable.any():
        return None
    residual, usable, sides = _residuals(measured, predicted_us)
    # Of a residual around the mean of its side.
    variance = CONFIG_SD**2 + (measured.sigma**2 + noise**2) / measured.count
    shared, of_sides = _shared(residual[usable], variance[usable], sides[usable])
    expected = np.array([of_sides.get(side, shared) for side in sides])
    own = expected + CONFIG_SD**2 / variance * (residual - expected)
    own[~np.isfinite(measured.runtime_us)] = np.inf
    matters = predictable & _matters(predicted_us, expected, own)
    configs = configs_of(measured.columns.take(matters))
    return ProblemOffsets(shared, of_sides, dict(zip(configs, own[matters].tolist(), strict=True)))


def _residuals(measured: MeasuredProblem, predicted_us: Floats) -> tuple[Floats, NDArray[np.bool_], NDArray[np.str_]]:
    """Return log(measured / predicted) of each config, which of these are usable, and each one's side."""
    usable = np.isfinite(measured.runtime_us) & np.isfinite(predicted_us)
    residual = np.zeros(len(predicted_us))
    residual[usable] = np.log(measured.runtime_us[usable] / predicted_us[usable])
    sides = np.array([side_of(template) for template in measured.columns.templates])
    return residual, usable, sides[measured.columns.template_index]


def _shared(residual: Floats, variance: Floats, sides: NDArray[np.str_]) -> tuple[float, dict[str, float]]:
    """Return what to expect of a problem's configs in general, and of those of each measured side."""
    found = sorted(set(sides.tolist()))
    weights = np.array([np.sum(1 / variance[sides == side]) for side in found])
    means = np.array([np.sum((residual / variance)[sides == side]) for side in found]) / weights
    around = SIDE_SD**2 + 1 / weights  # variance of a side's mean around the problem's
    shared = float(np.sum(means / around) / (np.sum(1 / around) + 1 / PROBLEM_SD**2))
    of_sides = shared + SIDE_SD**2 / around * (means - shared)
    return shared, dict(zip(found, of_sides.tolist(), strict=True))


def _matters(predicted_us: Floats, expected: Floats, own: Floats) -> NDArray[np.bool_]:
    """Return which configs could be chosen, with their own corrections or with their side's instead."""
    with np.errstate(invalid="ignore", over="ignore"):
        shared, corrected = predicted_us * np.exp(expected), predicted_us * np.exp(own)
    best = np.min(corrected, where=np.isfinite(corrected), initial=np.inf)
    matters: NDArray[np.bool_] = np.minimum(shared, corrected) <= _HOPELESS * best
    return matters
