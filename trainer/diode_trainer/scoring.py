"""A trained network as plain NumPy: fast on one core, and independent of torch's modes.

The hook asks from inside a compile, where fake tensors, default devices and autocast may be active; they do not
affect arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diode_store.pipelining import kernels_of
from diode_trainer.features import GENERATED, model_inputs
from diode_trainer.uncertainty import MOST_TOGETHER, tried_in_turn

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from diode_store.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.features import ModelInputs
    from diode_trainer.models import TimingNetwork

    Floats = NDArray[np.float32]

_FINALISTS = 80
"""How many of the configs that the scout finds best all members score."""
_SHORT = 256
"""Up to so many configs it is faster to score by all members at once than by one after another."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a network predicts for the n configs of one problem."""

    runtime_us: NDArray[np.float64]
    """Microseconds, shape (n,): the geometric mean over members; inf where a config cannot run."""
    finalists: NDArray[np.intp]
    """Shape (f,): which configs all members scored. The vendor's are among them, and no other config is predicted to
    be faster than any finalist that is not the vendor's."""
    member_logs: Floats
    """Shape (E, f): log(microseconds) as each member predicts it for the finalists."""
    kernels: NDArray[np.intp] | None = None
    """Shape (n,): equal numbers for configs that are one kernel; None where each is its own."""

    @classmethod
    def without_members(cls, runtime_us: NDArray[np.float64], kernels: NDArray[np.intp] | None = None) -> Prediction:
        """Return the prediction of a model that is not made of members."""
        return cls(runtime_us, np.empty(0, dtype=np.intp), np.empty((0, 0), dtype=np.float32), kernels)

    def without_repeats(self, among: NDArray[np.bool_] | None = None) -> Prediction:
        """Return the same in which of configs that are one kernel the one that is predicted fastest stands for all.

        The others are inf, and no finalists: nothing is gained by timing a kernel under another name as well.

        Args:
            among: (n,) which may stand for others; all unless given.
        """
        if self.kernels is None:
            return self
        order = np.argsort(
            self.runtime_us if among is None else np.where(among, self.runtime_us, np.inf), kind="stable"
        )
        _, first = np.unique(self.kernels[order], return_index=True)
        stands = np.zeros(len(order), dtype=np.bool_)
        stands[order[first]] = True
        left = stands[self.finalists]
        runtime_us = np.where(stands, self.runtime_us, np.inf)
        return Prediction(runtime_us, self.finalists[left], self.member_logs[:, left])

    def turns(self, counted: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return in which turn each of the c configs ``counted`` is timed, from 0 on, shape (c,); inf for never.

        Those that are chosen together come first, the others in the order of their predicted times. A kernel is timed
        once.
        """
        is_counted = np.zeros(len(self.runtime_us), dtype=np.bool_)
        is_counted[counted] = True
        distinct = self.without_repeats(is_counted)
        runtime_us = distinct.runtime_us[counted]
        order = np.argsort(runtime_us, kind="stable")
        place = np.full(len(self.runtime_us), -1, dtype=np.intp)
        place[counted] = np.arange(len(counted))
        scored = place[distinct.finalists]
        is_scored = scored >= 0
        turns = np.empty(len(counted))
        in_turn = tried_in_turn(order, scored[is_scored], distinct.member_logs[:, is_scored], MOST_TOGETHER)
        turns[in_turn] = np.arange(len(counted))
        turns[~np.isfinite(runtime_us)] = np.inf
        return turns

    def shifted(self, offsets: NDArray[np.float64]) -> Prediction:
        """Return the same with ``offsets``, shape (n,), on the logarithm of the runtimes; inf takes a config out."""
        left = np.isfinite(offsets[self.finalists])
        finalists = self.finalists[left]
        member_logs = self.member_logs[:, left] + offsets[finalists].astype(np.float32)
        return Prediction(self.runtime_us * np.exp(offsets), finalists, member_logs, self.kernels)


class Scorer:
    """Scores the configs of one problem; immutable, so any thread may use it.

    Args:
        network: the trained network.
        templates: those it was trained on; empty means any.
    """

    def __init__(self, network: TimingNetwork, templates: Collection[str] = ()) -> None:
        self._templates = frozenset(templates)
        self._members = _Members(network)
        self._scout = None if network.scout is None else _Members(network.scout)

    def predict_us(
        self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns, *, exact: bool = False
    ) -> NDArray[np.float64]:
        """Return the predicted runtime of each config in microseconds, shape (n,), as ``predict`` does."""
        return self.predict(shape, hardware, columns, exact=exact).runtime_us

    def predict(
        self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns, *, exact: bool = False
    ) -> Prediction:
        """Predict the runtime of each config.

        Of a long list the members score only what their scout finds good: what comes first is all but always the same,
        in a fraction of the time. The other configs come behind, in the scout's order.

        Args:
            shape: the problem.
            hardware: the device.
            columns: the n configs.
            exact: let all members score every config.
        """
        inputs = model_inputs(shape, hardware, columns)
        usable = inputs.possible
        if self._templates:
            usable = usable & columns.template_mask(self._templates.__contains__)
        candidates = np.flatnonzero(usable)
        scout = self._scout if not exact and len(candidates) > _FINALISTS else None
        finalists, others, scouted = _scouted(scout, inputs, candidates)
        members = self._members.score_all(inputs.problem, inputs.config.take(finalists, 1))
        logs = np.full(len(columns), np.inf)
        logs[finalists] = members.mean(0, dtype=np.float64)
        first, last = scouted.min(initial=np.inf), logs[finalists[~inputs.vendor[finalists]]].max(initial=-np.inf)
        logs[others] = (scouted - first) + max(last, first)
        with np.errstate(over="ignore"):
            runtime_us = np.exp(logs) * inputs.roofline_us
        member_logs = members + np.float32(np.log(inputs.roofline_us))
        return Prediction(runtime_us, finalists, member_logs, kernels_of(columns, shape, hardware.vendor))

    def __call__(self, problem: Floats, config: Floats) -> Floats:
        """Return what each member predicts for log(runtime / roofline), shape (E, n).

        Args:
            problem: (P,) raw features.
            config: (n, C) raw features.
        """
        return self._members.score_all(problem, config.T)


def _scouted(
    scout: _Members | None, inputs: ModelInputs, candidates: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """Return which candidates the members are to score, which not, and what the scout predicts for the latter.

    The members score all without a scout, and the vendor's whatever it says.
    """
    if scout is None:
        return candidates, candidates[:0], np.empty(0, dtype=np.float32)
    scores = scout.score(inputs.problem, inputs.config, slice(1))[0, candidates]
    good = inputs.vendor[candidates]
    good[np.argpartition(scores, _FINALISTS)[:_FINALISTS]] = True
    return candidates[good], candidates[~good], scores[~good]


class _Members:
    """The members' weights, stacked.

    Of ``relu(x + bias) = max(x, -bias) + bias`` the last term is left to the bias of the next layer, which saves a pass
    over the numbers of all configs.
    """

    def __init__(self, network: TimingNetwork) -> None:
        self.count = network.members
        state = {name: value.detach().cpu().double().numpy() for name, value in network.state_dict().items()}
        problem_in = state["problem_weight"] / state["normalisation.problem_scale"][:, None]  # (E, P, width)
        config_in = state["config_weight"] / state["normalisation.config_scale"][:, None]  # (E, C, width)
        start = state["problem_bias"] - (state["normalisation.problem_mean"] @ problem_in)[:, None]  # (E, 1, width)
        # Only generated kernels have their features' mean taken off; their flag stands for that.
        config_in[:, GENERATED] -= state["normalisation.config_mean"] @ config_in
        # As columns, since that is how a problem's features lie in memory: one row for each, one column for a config.
        self._problem_in, self._start, self._config_in = _columns(problem_in), _columns(start), _columns(config_in)
        layers = range(len(network.weights))
        self._layers = [(_columns(state[f"weights.{n}"]), _columns(state[f"biases.{n}"])) for n in layers]
        self._layers.append((_columns(state["out_weight"]), _columns(state["out_bias"])))

    def score_all(self, problem: Floats, config: Floats) -> Floats:
        """Return what every member predicts, shape (E, n): at once for short lists, else one after another."""
        at_once = self.count if config.shape[1] <= _SHORT else 1
        parts = [self.score(problem, config, slice(i, i + at_once)) for i in range(0, self.count, at_once)]
        return np.concatenate(parts)

    def score(self, problem: Floats, config: Floats, members: slice) -> Floats:
        """Return what ``members`` predict for log(runtime / roofline), a row for each of them.

        Args:
            problem: (P,) raw features.
            config: (C, n) raw features.
            members: which members.
        """
        bias = self._start[members] + self._problem_in[members] @ problem[:, None]  # (members, width, 1)
        hidden = self._config_in[members] @ config  # (members, width, n)
        for weights, biases in self._layers:
            np.maximum(hidden, -bias, out=hidden)
            weight = weights[members]
            hidden = weight @ hidden
            bias = weight @ bias + biases[members]
        hidden += bias
        return hidden[:, 0]


def _columns(stack: NDArray[np.float64]) -> Floats:
    return np.ascontiguousarray(stack.transpose(0, 2, 1), dtype=np.float32)
