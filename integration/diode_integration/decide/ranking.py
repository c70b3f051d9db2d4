"""Predicted times of a call's candidates.

Predictions are cached, since the layers of a network repeat.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from diode_store.candidates.operands import has_whole_rows
from diode_store.candidates.pipelining import kernels_of
from diode_store.records import is_vendor_template
from diode_trainer.launch import MOST_SECONDS, compile_seconds
from diode_trainer.policy import Spread
from diode_trainer.routing import predict_unrouted
from diode_trainer.scoring import Prediction
from diode_trainer.uncertainty import FEWEST_MEMBERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, Problem, ProblemShape
    from diode_trainer.card import Card
    from diode_trainer.corrections.corrections import Corrections, ProblemOffsets
    from diode_trainer.op_domain import Miss

_CACHED_PROBLEMS = 1024
"""Number of predictions to keep: some 15 MB if each is of a whole EXHAUSTIVE list."""


@runtime_checkable
class Model(Protocol):
    """A model, as far as the hook uses it; ``diode_trainer.artifact.load`` returns one."""

    @property
    def card(self) -> Card:
        """The model's card."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the checkpoint, 64 hexadecimal digits."""

    def predict_us(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> NDArray[np.float64]:
        """Return each config's runtime in microseconds, shape (n,); inf for a config that cannot run."""


@runtime_checkable
class MembersModel(Model, Protocol):
    """A model that also tells each member's predictions."""

    def predict(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> Prediction:
        """Return each config's runtime, and the members' predictions for the best configs."""


@dataclass(frozen=True, eq=False)
class SizeRange:
    """Predictions for n candidates at several sizes of a range."""

    predicted_us: NDArray[np.float64]
    """Microseconds, shape (sizes, n), at the hint first; inf for a candidate that cannot run."""
    text: str
    """The range, for a person."""

    @property
    def at_hint(self) -> NDArray[np.float64]:
        """Predictions at the hint, shape (n,)."""
        first: NDArray[np.float64] = self.predicted_us[0]
        return first

    def worst_regret_us(self) -> tuple[NDArray[np.float64], str]:
        """Return each candidate's worst regret times the best time at the hint, shape (n,), and a line about it.

        Sizes without a candidate that can run do not count.
        """
        best = self.predicted_us.min(axis=1)
        table, best = self.predicted_us[np.isfinite(best)], best[np.isfinite(best)]
        worst = (table / best[:, None]).max(axis=0)
        return worst * best[0], f"worst regret {worst.min() - 1:.1%} over {self.text}"


@dataclass(frozen=True, eq=False)
class Ranking:
    """Predictions for the candidates of one call, in microseconds."""

    problem: Problem
    hardware: Hardware
    predicted_us: NDArray[np.float64]
    """Shape (n,); inf for a candidate that cannot run, or repeats the kernel of another one."""
    is_vendor: NDArray[np.bool_]
    """Shape (n,)."""
    model_sha256: str = ""
    """SHA-256 of the model."""
    corrected: bool = False
    """True if measurements of this problem corrected the predictions."""
    spread: Spread | None = None
    """Predictions of the model's members for the best candidates. None if the model has no members, or if not all
    members scored the candidate that is predicted fastest.
    """
    over: SizeRange | None = None
    """Predictions at other sizes, if a range is stated; ``predicted_us`` then counts the worst regret."""
    unfused_us: float = 0.0
    """Cost in ``predicted_us`` of vendor kernels beyond their own times, since nothing is fused into them."""
    near_to: str = ""
    """Training device most like this one, if the model is only near to knowing the device; else empty."""
    alone_us: NDArray[np.float64] | None = None
    """Predictions for the kernels alone, shape (n,), if ``predicted_us`` counts more."""

    defect: tuple[str, str] | None = None
    """Reason and detail why the predictions are of no use."""

    @property
    def p_within_2pct(self) -> float | None:
        """Probability that the candidate predicted fastest is within 2% of the best; None without a calibration."""
        return None if self.spread is None else self.spread.how_sure(self.is_vendor)

    @property
    def kernels_us(self) -> NDArray[np.float64]:
        """Predicted times of the kernels alone, at the hint if a range is stated; shape (n,)."""
        if self.over is not None:
            return self.over.at_hint
        return self.predicted_us if self.alone_us is None else self.alone_us

    def charged(self, unfused_us: float) -> Ranking:
        """Return the ranking with a cost in microseconds added to each vendor kernel."""
        if not unfused_us:
            return self
        predicted = self.predicted_us + np.where(self.is_vendor, unfused_us, 0.0)
        spread = self.spread
        if spread is not None and predicted.argmin() in spread.indices:
            spread = spread.charged(self.is_vendor, unfused_us)
        else:
            spread = None  # not all members scored the new first candidate
        return replace(self, predicted_us=predicted, alone_us=self.predicted_us, unfused_us=unfused_us, spread=spread)


class _Predicted(NamedTuple):
    """Cached prediction of a problem, and the seconds that its candidates take to compile."""

    prediction: Prediction
    compile_s: NDArray[np.float32] | None


class Predictor:
    """Asks one model, with a cache; any thread may use it."""

    def __init__(self, model: Model, corrections: Corrections | None = None) -> None:
        """Prepare to ask.

        Args:
            model: the model.
            corrections: corrections of its predictions.
        """
        self.model = model
        self.corrections = corrections
        self._cache: OrderedDict[tuple[bytes, bytes, bytes], _Predicted] = OrderedDict()
        self._lock = threading.Lock()

    def knows(self, template: str) -> bool:
        """Return whether the model was trained on kernels of this template uid."""
        templates = self.model.card.domain.templates
        return not templates or template in templates

    def miss(self, problem: Problem, hardware: Hardware) -> Miss | None:
        """Return why the model does not know a product on a device; None if it does, or is near to knowing it."""
        return next(iter(self.model.card.domain.misses(problem.shape, hardware, near=True)), None)

    @property
    def knows_its_spread(self) -> bool:
        """True if the model says how far its members disagree, with a calibration."""
        return isinstance(self.model, MembersModel) and self.model.card.calibration is not None

    def rank(self, problem: Problem, hardware: Hardware, columns: ConfigColumns, *, distinct: bool = True) -> Ranking:
        """Predict the time of each of n candidates.

        Args:
            problem: the matrix product.
            hardware: the device.
            columns: the candidates.
            distinct: keep the fastest of the candidates that are one kernel, as if the others could not run.

        Returns:
            The ranking; with a ``defect`` if no candidate can run, or the model gave a wrong number of times.
        """
        prediction, compile_s = self._predict(problem, hardware, columns)
        shape = prediction.runtime_us.shape
        if shape != (len(columns),):
            what = f"the model gave {shape} times for {len(columns)} candidates"
            nothing = np.full(len(columns), np.inf)
            return Ranking(problem, hardware, nothing, nothing > 0, defect=("features", what))
        if distinct:
            prediction = prediction.without_repeats()
        predicted, is_vendor = prediction.runtime_us, columns.template_mask(is_vendor_template)
        if not np.isfinite(predicted).any():
            what = f"none of the {len(columns)} candidates can run on {hardware.name}"
            return Ranking(problem, hardware, predicted, is_vendor, defect=("nothing_fits", what))
        corrected = self._offsets(problem, hardware) is not None
        standing = self.model.card.domain.standing(hardware, problem.op)
        spread = self._spread(problem.shape, hardware, prediction, compile_s)
        ranking = Ranking(problem, hardware, predicted, is_vendor, self.model.sha256, corrected, spread)
        return replace(ranking, near_to=standing.nearest) if standing.is_near else ranking

    def _spread(
        self, shape: ProblemShape, hardware: Hardware, prediction: Prediction, compile_s: NDArray[np.float32] | None
    ) -> Spread | None:
        if len(prediction.member_logs) < FEWEST_MEMBERS:
            return None
        if prediction.runtime_us.argmin() not in prediction.finalists:
            return None  # corrections put a candidate first that not all members scored
        calibration = self.model.card.calibration_on(hardware, shape.op)
        if calibration is not None:
            length = int(np.isfinite(prediction.runtime_us).sum())
            calibration = calibration.at(is_odd=not has_whole_rows(shape), length=length)
        seconds = None if compile_s is None else compile_s[prediction.finalists]
        return Spread(prediction.finalists, prediction.member_logs, calibration, compile_s=seconds)

    def _predict(self, problem: Problem, hardware: Hardware, columns: ConfigColumns) -> _Predicted:
        key = (problem.key, hardware.key, columns.digest)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        compile_s = compile_seconds(problem.shape, columns)
        prediction = self._ask_of_quick(problem.shape, hardware, columns, compile_s)
        offsets = self._offsets(problem, hardware)
        if offsets is not None and prediction.runtime_us.shape == (len(columns),):
            prediction = prediction.shifted(offsets.of(columns))
        for array in (prediction.runtime_us, prediction.finalists, prediction.member_logs):
            array.flags.writeable = False
        with self._lock:
            predicted = self._cache[key] = _Predicted(prediction, compile_s)
            while len(self._cache) > _CACHED_PROBLEMS:
                self._cache.popitem(last=False)
        return predicted

    def _ask_of_quick(
        self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns, compile_s: NDArray[np.float32] | None
    ) -> Prediction:
        """Return the predictions for the configs that compile quickly, as if the others could not run.

        The model does not see the others: its scout might leave only those to the members.
        """
        quick = None if compile_s is None else np.flatnonzero(compile_s <= MOST_SECONDS)
        if quick is None or len(quick) == len(columns):
            return self._ask(shape, hardware, columns)
        found = self._ask(shape, hardware, columns.take(quick))
        if found.runtime_us.shape != quick.shape or not np.isfinite(found.runtime_us).any():
            return self._ask(shape, hardware, columns)
        return found.spread_out(quick, len(columns))

    def _ask(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> Prediction:
        return predict_unrouted(lambda routed: self._ask_of_one(routed, hardware, columns), shape)

    def _ask_of_one(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> Prediction:
        if isinstance(self.model, MembersModel):
            return self.model.predict(shape, hardware, columns)
        runtime_us = np.asarray(self.model.predict_us(shape, hardware, columns), dtype=np.float64)
        return Prediction.without_members(runtime_us, kernels_of(columns, shape, hardware.vendor))

    def _offsets(self, problem: Problem, hardware: Hardware) -> ProblemOffsets | None:
        return self.corrections.of(problem.shape, hardware) if self.corrections else None
