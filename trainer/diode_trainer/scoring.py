"""A trained network as plain NumPy: fast on one core, and independent of torch's modes.

The hook asks from inside a compile, where fake tensors, default devices and autocast may be active; they do not
affect arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diode_trainer.features import GENERATED, model_inputs

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from diode_store.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.features import ModelInputs
    from diode_trainer.models import TimingNetwork

    Floats = NDArray[np.float32]

_ROUNDS = ((4, 256), (8, 64), (None, 32))
"""The cascade behind the first member, which scores every config: up to which member (None: the last) go on to score
how many of those configs that are best so far."""


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

    @classmethod
    def without_members(cls, runtime_us: NDArray[np.float64]) -> Prediction:
        """Return the prediction of a model that is not made of members."""
        return cls(runtime_us, np.empty(0, dtype=np.intp), np.empty((0, 0), dtype=np.float32))

    def shifted(self, offsets: NDArray[np.float64]) -> Prediction:
        """Return the same with ``offsets``, shape (n,), on the logarithm of the runtimes; inf takes a config out."""
        left = np.isfinite(offsets[self.finalists])
        finalists = self.finalists[left]
        member_logs = self.member_logs[:, left] + offsets[finalists].astype(np.float32)
        return Prediction(self.runtime_us * np.exp(offsets), finalists, member_logs)


class Scorer:
    """Scores the configs of one problem; immutable, so any thread may use it.

    Args:
        network: the trained network.
        templates: those it was trained on; empty means any.
    """

    def __init__(self, network: TimingNetwork, templates: Collection[str] = ()) -> None:
        self._templates = frozenset(templates)
        self._members = _Members(network)

    def predict_us(
        self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns, *, exact: bool = False
    ) -> NDArray[np.float64]:
        """Return the predicted runtime of each config in microseconds, shape (n,), as ``predict`` does."""
        return self.predict(shape, hardware, columns, exact=exact).runtime_us

    def predict(
        self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns, *, exact: bool = False
    ) -> Prediction:
        """Predict the runtime of each config.

        Of a long list all members score only what the first few of them find good: what comes first is all but always
        the same, in a fraction of the time. The other configs are ranked behind by those that did score them.

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
        if exact:
            finalists = np.flatnonzero(usable)
            logs = np.full(len(columns), np.inf)
            members = self._members.score_each(inputs.problem, inputs.config[:, finalists])
            logs[finalists] = members.mean(0, dtype=np.float64)
        else:
            logs, finalists, members = _cascade(self._members, inputs, usable)
        with np.errstate(over="ignore"):
            runtime_us = np.exp(logs) * inputs.roofline_us
        return Prediction(runtime_us, finalists, members + np.float32(np.log(inputs.roofline_us)))

    def __call__(self, problem: Floats, config: Floats) -> Floats:
        """Return what each member predicts for log(runtime / roofline), shape (E, n).

        Args:
            problem: (P,) raw features.
            config: (n, C) raw features.
        """
        return self._members.score_each(problem, config.T)


def _cascade(
    members: _Members, inputs: ModelInputs, usable: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.intp], Floats]:
    """Return the log(runtime / roofline) of all configs, which of them are finalists, and their members' logs."""
    scores = members.score(inputs.problem, inputs.config, slice(1))  # (members so far, configs that are left)
    left = np.flatnonzero(usable)
    scores = scores[:, left]
    dropped = []
    for end, most in _ROUNDS:
        if len(scores) == members.count:
            break
        mean = scores.mean(0)
        if len(left) > most:
            good = np.zeros(len(left), dtype=np.bool_)
            good[np.argpartition(mean, most)[:most]] = True
            good |= inputs.vendor[left]
            dropped.append((left[~good], mean[~good]))
            left, scores = left[good], scores[:, good]
        more = members.score(inputs.problem, inputs.config.take(left, 1), slice(len(scores), end))
        scores = np.concatenate((scores, more))
    logs = np.full(len(usable), np.inf)
    logs[left] = scores.mean(0, dtype=np.float64)
    _rank_behind(logs, left[~inputs.vendor[left]], dropped)
    return logs, left, scores


def _rank_behind(
    logs: NDArray[np.float64], ahead: NDArray[np.intp], dropped: list[tuple[NDArray[np.intp], Floats]]
) -> None:
    """Set the ``logs`` of what the rounds of a cascade dropped, so that it comes behind ``ahead`` in its own order."""
    for configs, mean in reversed(dropped):
        last = logs[ahead].max(initial=-np.inf)
        logs[configs] = mean + max(last - mean.min(initial=np.inf), 0.0)
        ahead = configs


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

    def score_each(self, problem: Floats, config: Floats) -> Floats:
        """Return what every member predicts, shape (E, n); for long lists faster than all at once."""
        return np.concatenate([self.score(problem, config, slice(i, i + 1)) for i in range(self.count)])

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
