"""From an artifact to predicted times, or to the reason why there are none.

A model is used only inside the domain that its card declares; outside it, a ``Predictor`` abstains with a reason, and
another chooses. Predictions are cached: the layers of a network repeat.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from diode_integration.policy import Spread
from diode_store.columns import INT_COLUMNS
from diode_store.errors import DiodeError
from diode_store.pipelining import kernels_of
from diode_store.records import is_vendor_template
from diode_trainer.scoring import Prediction
from diode_trainer.uncertainty import FEWEST_MEMBERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.columns import ConfigColumns
    from diode_store.records import Hardware, Problem, ProblemShape
    from diode_trainer.card import Card, Domain
    from diode_trainer.corrections.corrections import Corrections, ProblemOffsets

_CACHED_PROBLEMS = 1024
"""How many predictions are kept: some 15 MB when each is of a whole EXHAUSTIVE list."""


@runtime_checkable
class Model(Protocol):
    """What the hook needs of a model; ``diode_trainer.artifact.load`` returns one."""

    @property
    def card(self) -> Card:
        """The model's card."""

    @property
    def sha256(self) -> str:
        """Of the checkpoint, 64 hexadecimal digits."""

    def predict_us(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> NDArray[np.float64]:
        """Return each config's runtime in microseconds, shape (n,); inf for what cannot run."""


@runtime_checkable
class MembersModel(Model, Protocol):
    """A model that also says what each of its members predicts."""

    def predict(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> Prediction:
        """Return each config's runtime, and what the members predict for the best of them."""


class AbstentionError(DiodeError):
    """This is outside the model's domain; who chooses instead is a setting (``unknown``)."""

    def __init__(self, reason: str, detail: str) -> None:
        """Keep ``reason``, one word that ends the name of a ``fallback_`` statistic, and a line for a person."""
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, eq=False)
class SizeRange:
    """What is predicted for n candidates at several sizes of a range."""

    predicted_us: NDArray[np.float64]
    """Shape (sizes, n), that at the hint first; inf for what cannot run."""
    text: str
    """The range, for a person."""

    @property
    def at_hint(self) -> NDArray[np.float64]:
        """The predictions at the hint, shape (n,)."""
        first: NDArray[np.float64] = self.predicted_us[0]
        return first

    def worst_regret_us(self) -> tuple[NDArray[np.float64], str]:
        """Return each candidate's worst regret times the best time at the hint, shape (n,), and a line about it.

        Sizes at which nothing can run do not count.
        """
        best = self.predicted_us.min(axis=1)
        table, best = self.predicted_us[np.isfinite(best)], best[np.isfinite(best)]
        worst = (table / best[:, None]).max(axis=0)
        return worst * best[0], f"worst regret {worst.min() - 1:.1%} over {self.text}"


@dataclass(frozen=True, eq=False)
class Ranking:
    """Predictions for the candidates of one call; microseconds, inf for what cannot run or is another's kernel."""

    problem: Problem
    hardware: Hardware
    predicted_us: NDArray[np.float64]
    """Shape (n,)."""
    is_vendor: NDArray[np.bool_]
    """Shape (n,)."""
    model_sha256: str = ""
    """Of the model that predicts."""
    corrected: bool = False
    """Whether predictions were corrected by what was measured of this problem."""
    spread: Spread | None = None
    """What the model's members say of the best candidates; None if it has none, or they did not all score the one that
    is predicted fastest."""
    over: SizeRange | None = None
    """What is predicted at other sizes, where a range of them is stated; then ``predicted_us`` is by worst regret."""
    unfused_us: float = 0.0
    """What ``predicted_us`` counts for a vendor's kernels beyond their own times, as nothing is fused into them."""
    similar_to: str = ""
    """The device that the model knows, where it does not know this one, so that benchmarks have the last word."""
    alone_us: NDArray[np.float64] | None = None
    """Shape (n,): what is predicted of the kernels alone, where ``predicted_us`` counts more."""

    @property
    def p_within_2pct(self) -> float | None:
        """How likely the candidate that is predicted fastest is within 2% of the best; None without a calibration."""
        return None if self.spread is None else self.spread.how_sure(self.is_vendor)

    @property
    def kernels_us(self) -> NDArray[np.float64]:
        """The predicted times of the kernels alone, at the hint where a range is stated; shape (n,)."""
        if self.over is not None:
            return self.over.at_hint
        return self.predicted_us if self.alone_us is None else self.alone_us

    def charged(self, unfused_us: float) -> Ranking:
        """Return the ranking with a cost counted for each of a vendor's kernels, in microseconds."""
        if not unfused_us:
            return self
        predicted = self.predicted_us + np.where(self.is_vendor, unfused_us, 0.0)
        spread = self.spread
        if spread is not None and predicted.argmin() in spread.indices:
            spread = spread.charged(self.is_vendor, unfused_us)
        else:
            spread = None  # not all members scored the one that is first now
        return replace(self, predicted_us=predicted, alone_us=self.predicted_us, unfused_us=unfused_us, spread=spread)


class Predictor:
    """Asks one model, with a cache; any thread may use it."""

    def __init__(self, model: Model, corrections: Corrections | None = None, similar_to: str = "") -> None:
        """Prepare to ask.

        Args:
            model: whom.
            corrections: of what it predicts.
            similar_to: the device that it knows, where it is asked about one that it does not.
        """
        self.model = model
        self.corrections = corrections
        self.similar_to = similar_to
        self._cache: OrderedDict[tuple[bytes, bytes, bytes], Prediction] = OrderedDict()
        self._lock = threading.Lock()

    def knows(self, template: str) -> bool:
        """Return whether the model was trained on kernels of this template uid."""
        templates = self.model.card.domain.templates
        return not templates or template in templates

    @property
    def knows_its_spread(self) -> bool:
        """Whether the model says how far its members disagree, and what that is worth."""
        return isinstance(self.model, MembersModel) and self.model.card.calibration is not None

    def check(self, problem: Problem, hardware: Hardware) -> None:
        """Check that this problem and device are inside the model's domain.

        Raises:
            AbstentionError: they are not.
        """
        check_domain(problem.shape, hardware, self.model.card.domain, on_any_device=bool(self.similar_to))

    def rank(self, problem: Problem, hardware: Hardware, columns: ConfigColumns, *, distinct: bool = True) -> Ranking:
        """Predict the time of each of n candidates.

        Args:
            problem: what is to be computed.
            hardware: on which device.
            columns: the candidates.
            distinct: let the fastest of those that are one kernel stand for all, as if the others could not run.

        Raises:
            AbstentionError: the problem or device is outside the model's domain, or no candidate can run.
        """
        self.check(problem, hardware)
        prediction = self._predict(problem, hardware, columns)
        shape = prediction.runtime_us.shape
        if shape != (len(columns),):
            raise AbstentionError("features", f"the model gave {shape} times for {len(columns)} candidates")
        if distinct:
            prediction = prediction.without_repeats()
        predicted = prediction.runtime_us
        if not np.isfinite(predicted).any():
            raise AbstentionError("nothing_fits", f"none of the {len(columns)} candidates can run on {hardware.name}")
        is_vendor = columns.template_mask(is_vendor_template)
        corrected = self._offsets(problem, hardware) is not None
        spread = self._spread(prediction)
        ranking = Ranking(problem, hardware, predicted, is_vendor, self.model.sha256, corrected, spread)
        return replace(ranking, similar_to=self.similar_to)

    def _spread(self, prediction: Prediction) -> Spread | None:
        if len(prediction.member_logs) < FEWEST_MEMBERS:
            return None
        if prediction.runtime_us.argmin() not in prediction.finalists:
            return None  # corrections put one first that not all members scored
        # How far off it is on a device that it does not know, nobody has calibrated.
        calibration = None if self.similar_to else self.model.card.calibration
        return Spread(prediction.finalists, prediction.member_logs, calibration)

    def _predict(self, problem: Problem, hardware: Hardware, columns: ConfigColumns) -> Prediction:
        key = (problem.key, hardware.key, signature(columns))
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        prediction = self._ask(problem.shape, hardware, columns)
        offsets = self._offsets(problem, hardware)
        if offsets is not None and prediction.runtime_us.shape == (len(columns),):
            prediction = prediction.shifted(offsets.of(columns))
        for array in (prediction.runtime_us, prediction.finalists, prediction.member_logs):
            array.flags.writeable = False
        with self._lock:
            self._cache[key] = prediction
            while len(self._cache) > _CACHED_PROBLEMS:
                self._cache.popitem(last=False)
        return prediction

    def _ask(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> Prediction:
        if isinstance(self.model, MembersModel):
            return self.model.predict(shape, hardware, columns)
        runtime_us = np.asarray(self.model.predict_us(shape, hardware, columns), dtype=np.float64)
        return Prediction.without_members(runtime_us, kernels_of(columns, shape, hardware.vendor))

    def _offsets(self, problem: Problem, hardware: Hardware) -> ProblemOffsets | None:
        return self.corrections.of(problem.shape, hardware) if self.corrections else None


def signature(columns: ConfigColumns) -> bytes:
    """Return a 16-byte digest of the candidates and their order."""
    digest = hashlib.blake2b("\0".join(columns.templates).encode(), digest_size=16)
    for name in ("template_index", *INT_COLUMNS, "allow_tf32"):
        digest.update(np.ascontiguousarray(getattr(columns, name)).data)
    return digest.digest()


def check_domain(shape: ProblemShape, hardware: Hardware, domain: Domain, *, on_any_device: bool = False) -> None:
    """Check that ``domain`` covers a problem and, unless ``on_any_device``, a device; what it leaves empty is open.

    Raises:
        AbstentionError: it does not.
    """
    for miss in domain.misses(shape, hardware):
        if miss.reason != "hardware" or not on_any_device:
            raise AbstentionError(miss.reason, miss.detail)
