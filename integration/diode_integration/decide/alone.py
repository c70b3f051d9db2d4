"""The kernel of flex attention or of a convolution that a model predicts fastest.

Inductor times attention with a mask of its own, which no caller has. Its clock picks convolutions that are slower than
the library's. So the hook keeps one kernel alone in every mode. That of a plain compile stays unless the model predicts
a clear gain.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diode_integration.decide.decision import DecidedBy, Decision, PredictedConfig
from diode_integration.decide.models import KnownModel, ModelSet, alone_files, in_a_thread
from diode_store.candidates.attention_space import decoded_rows
from diode_store.candidates.columns import ConfigColumns
from diode_store.errors import ModelError
from diode_store.ops.attending import BACKWARD, DECODING, FORWARD
from diode_store.values import safely
from diode_trainer.covered import nearest_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_integration.decide.ranking import Ranking
    from diode_store.kernels import KernelConfig
    from diode_store.records import Hardware, Problem
    from diode_trainer.catalogue import ModelFile

CONVOLUTION = "convolution"
_USUAL = {CONVOLUTION: "the library's kernel", **dict.fromkeys((FORWARD, BACKWARD, DECODING), "Inductor's default")}
"""Words for the kernel of a plain compile, by op."""
log = logging.getLogger("diode_integration")


class Gains(NamedTuple):
    """Gains by which another kernel has to be predicted faster than the default."""

    known: float
    """Share of the default's predicted time that it has to save."""
    near: float
    """The same on a device that the model is only near to."""
    deviations: float = 0.0
    """Standard deviations of the members' predictions by which it has to be faster, beyond noise; 0 for any."""


_NOISE = 0.02
"""Share of a time that counts as noise."""
LEAST_GAINS = {
    CONVOLUTION: Gains(0.25, 0.4),
    FORWARD: Gains(0.2, 0.25),
    BACKWARD: Gains(_NOISE, 0.1, deviations=2.0),
    DECODING: Gains(_NOISE, 0.1),
}
"""Gains by op, so that of families that a model never saw hardly any problem gets slower than with the default
(docs/results/attention-convolutions.md has the trials).
"""


def is_clear(
    op: str, default_us: float, best_us: float, ratios: NDArray[np.floating] | None, *, is_near: bool = False
) -> bool:
    """Return whether a kernel is predicted to be clearly faster than the default.

    Args:
        op: the op.
        default_us: predicted time of the default in microseconds; inf if it cannot run.
        best_us: predicted time of the other kernel.
        ratios: each member's log(other / default), shape (E,); None if unknown.
        is_near: True if the model is only near to knowing the device.
    """
    gains = LEAST_GAINS[op]
    if default_us * (1 - (gains.near if is_near else gains.known)) <= best_us:
        return False
    if not gains.deviations or ratios is None or not np.isfinite(default_us):
        return True
    return bool(ratios.mean() + gains.deviations * ratios.std() < math.log1p(-_NOISE))


class Picked(NamedTuple):
    """Config that a model chose, with the decision to record."""

    config: KernelConfig | None
    """None if no model knows the problem."""
    decision: Decision
    changes: bool = False
    """True if it is not the default."""
    configs: Sequence[KernelConfig] = ()
    """The n configs that were ranked."""
    predicted_us: NDArray[np.float64] = np.empty(0)
    """Shape (n,), in microseconds; inf for a config that cannot run."""
    has_default: bool = False
    """True if the first config is that of a plain compile."""

    def fastest(self, top: int) -> tuple[PredictedConfig, ...]:
        """Return the configs with the fastest predictions, fastest first: at most ``top``, and the default."""
        order = np.argsort(self.predicted_us, kind="stable")
        order = order[(np.arange(len(order)) < top) | ((order == 0) & self.has_default)]
        found = ((self.configs[i], float(self.predicted_us[i])) for i in order)
        return tuple(PredictedConfig(config, time_us) for config, time_us in found if time_us < np.inf)


def alone_models() -> AloneModels | None:
    """Return the models of attention and convolutions that are there; None without any."""
    files = alone_files()
    return AloneModels(files) if files else None


class AloneModels:
    """Models that each know one op, loaded on their first use; safe to share between threads."""

    def __init__(self, files: Sequence[ModelFile]) -> None:
        """Keep the models in the order in which they are asked; load none."""
        self._files = files
        self._lock = threading.Lock()

    @property
    def key(self) -> str:
        """Digest of the models' SHA-256s, for cache keys."""
        return hashlib.sha256("".join(file.card.sha256 for file in self._files).encode()).hexdigest()

    @cached_property
    def _models(self) -> ModelSet | None:
        """The models; None if none can be used, which is logged once."""
        try:
            return in_a_thread(lambda: ModelSet(map(KnownModel.of_file, self._files)))
        except ModelError as error:
            safely.log(log, logging.WARNING, f"no usable model of flex attention and convolutions: {error}")
            return None

    @property
    def known(self) -> Sequence[KnownModel]:
        """The models, in the order in which they are asked."""
        with self._lock:
            return self._models.known if self._models is not None else ()

    def choose(
        self, problem: Problem, hardware: Hardware, default: KernelConfig | None, others: Sequence[KernelConfig]
    ) -> Picked:
        """Return the kernel for a problem.

        Args:
            problem: the problem.
            hardware: the device to choose for.
            default: the kernel of a plain compile; None if the call cannot have it.
            others: configs to choose from beside it.
        """
        configs = [*filter(None, [default]), *(config for config in others if config != default)]
        if problem.op == DECODING:  # the rows follow from the problem, and records have them
            configs = [replace(config, block_m=decoded_rows(problem.shape)) for config in configs]
        ranking, why = self._ranked(problem, hardware, configs) if configs else (None, "op: no config fits the call")
        if ranking is None:
            return Picked(None, _decision(problem, hardware, why, decided_by=DecidedBy.STOCK))
        predicted = ranking.predicted_us
        best, reason = int(np.argmin(predicted)), "predicted fastest"
        if default is not None and best > 0:
            usual, spread = _USUAL[problem.op], ranking.spread
            ratios = None if spread is None else member_ratios(spread.indices, spread.member_logs, best, 0)
            reason = f"predicted {1 - predicted[best] / predicted[0]:.0%} below {usual}"
            if not is_clear(problem.op, predicted[0], predicted[best], ratios, is_near=bool(ranking.near_to)):
                best, reason = 0, f"{usual} is kept: the fastest is {reason}, which is not clear enough"
        elif default is not None:
            reason = f"{_USUAL[problem.op]} is predicted fastest"
        chosen = (PredictedConfig(configs[best], float(predicted[best])),)
        decision = _decision(problem, hardware, reason, candidates=len(configs), chosen=chosen, ranking=ranking)
        if default is not None and default.is_vendor:
            decision = replace(decision, vendor_us=float(predicted[0]))
        changes = default is None or best > 0
        return Picked(configs[best], decision, changes, configs, predicted, default is not None)

    def _ranked(
        self, problem: Problem, hardware: Hardware, configs: Sequence[KernelConfig]
    ) -> tuple[Ranking | None, str]:
        """Return the ranking of the first model that knows a problem; else None and the reason."""
        with self._lock:
            models = self._models
        if models is None:
            return None, "no_model: no model of the op can be used"
        found = models.standings(hardware, problem.op)
        standings = [pair for pair in found if pair[1].card.domain.knows_op(problem.op)]
        asked = [pair for pair in standings if pair[0].is_known] + nearest_first(standings)
        why = f"hardware: {standings[0][0].reason}" if standings else f"no_model: no model knows {problem.op}"
        columns = ConfigColumns.from_configs(configs)
        for _, model in asked:
            miss = model.miss(problem, hardware)
            if miss is not None:
                why = f"{miss.reason}: {miss.detail}"
                continue
            predictor = models.predictor(model)
            if predictor is None:
                why = f"no_model: {model.card.name} cannot be used"
                continue
            ranking = predictor.rank(problem, hardware, columns)
            if ranking.defect is None:
                return ranking, ""
            why = ": ".join(ranking.defect)
        return None, why


def member_ratios(
    indices: NDArray[np.intp], member_logs: NDArray[np.float32], best: int, default: int
) -> NDArray[np.float32] | None:
    """Return each member's log(best / default), shape (E,); None if the members did not score both.

    Args:
        indices: indices of the f configs that the members scored, shape (f,).
        member_logs: their predictions as log(microseconds), shape (E, f).
        best: index of the kernel predicted fastest.
        default: index of the default.
    """
    places = [np.flatnonzero(indices == each) for each in (best, default)]
    if any(len(place) == 0 for place in places):
        return None
    of_best, of_default = (member_logs[:, place[0]] for place in places)
    ratios: NDArray[np.float32] = of_best - of_default
    return ratios


def _decision(
    problem: Problem,
    hardware: Hardware,
    reason: str,
    *,
    candidates: int = 0,
    chosen: tuple[PredictedConfig, ...] = (),
    ranking: Ranking | None = None,
    decided_by: DecidedBy = DecidedBy.MODEL,
) -> Decision:
    return Decision(
        op=problem.op,
        problem=problem,
        hardware=hardware.name,
        device=hardware,
        candidates=candidates,
        chosen=chosen,
        vendor_us=None,
        reason=reason,
        decided_by=decided_by,
        model_sha256=ranking.model_sha256 if ranking else None,
        similar_to=(ranking.near_to or None) if ranking else None,
    )
