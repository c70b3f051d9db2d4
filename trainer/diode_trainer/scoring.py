"""A trained network as plain NumPy: fast on one core, and independent of torch's modes.

The hook asks from inside a compile, where fake tensors, default devices and autocast may be active; they do not
affect arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from diode_store.inductor_default import TEMPLATES
from diode_store.pipelining import is_pipelined
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
_OF_A_KERNEL = ("template_index", "block_m", "block_n", "block_k", "group_m", "num_warps", "allow_tf32")
"""What tells kernels apart whose loop is not pipelined."""
_SHORT = 256
"""Up to so many configs it is faster to score by all members at once than by one after another."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a network predicts for the n configs of one problem."""

    runtime_us: NDArray[np.float64]
    """Microseconds, shape (n,): the geometric mean over members; inf where a config cannot run."""
    finalists: NDArray[np.intp]
    """Shape (f,): which configs all members scored. The vendor's are among them, and no other config is predicted to
    be faster than any finalist that is not the vendor's, but for ``repeats``."""
    member_logs: Floats
    """Shape (E, f): log(microseconds) as each member predicts it for the finalists."""
    repeats: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    """Which configs compile to the same kernel as a finalist that is predicted to be faster, so that nothing is gained
    by timing them as well."""

    @classmethod
    def without_members(cls, runtime_us: NDArray[np.float64]) -> Prediction:
        """Return the prediction of a model that is not made of members."""
        return cls(runtime_us, np.empty(0, dtype=np.intp), np.empty((0, 0), dtype=np.float32))

    def turns(self, counted: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return in which turn each of the c configs ``counted`` is timed, from 0 on, shape (c,); inf for never.

        Those that are chosen together come first, the others in the order of their predicted times. A kernel is timed
        once.
        """
        runtime_us = self.runtime_us[counted]
        order = np.argsort(runtime_us, kind="stable")
        place = np.full(len(self.runtime_us), -1, dtype=np.intp)
        place[counted] = np.arange(len(counted))
        scored = place[self.finalists]
        is_counted = scored >= 0
        turns = np.empty(len(counted))
        in_turn = tried_in_turn(order, scored[is_counted], self.member_logs[:, is_counted], MOST_TOGETHER)
        turns[in_turn] = np.arange(len(counted))
        turns[~np.isfinite(runtime_us)] = np.inf
        turns[np.isin(counted, self.repeats)] = np.inf
        return turns

    def shifted(self, offsets: NDArray[np.float64]) -> Prediction:
        """Return the same with ``offsets``, shape (n,), on the logarithm of the runtimes; inf takes a config out.

        A config that is made faster than any finalist is, as one that was measured may be, repeats none any longer.
        """
        left = np.isfinite(offsets[self.finalists])
        finalists = self.finalists[left]
        member_logs = self.member_logs[:, left] + offsets[finalists].astype(np.float32)
        repeats = self.repeats[offsets[self.repeats] >= offsets[self.finalists].min(initial=np.inf)]
        return Prediction(self.runtime_us * np.exp(offsets), finalists, member_logs, repeats)


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
        is_repeat = _repeats(columns, shape, hardware.vendor, finalists, logs[finalists])
        scored = members[:, ~is_repeat] + np.float32(np.log(inputs.roofline_us))
        return Prediction(runtime_us, finalists[~is_repeat], scored, finalists[is_repeat])

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


def _repeats(
    columns: ConfigColumns, shape: ProblemShape, vendor: str, finalists: NDArray[np.intp], logs: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which finalists compile to the same kernel as one with lower ``logs``, shape (f,)."""
    repeats = np.zeros(len(finalists), dtype=np.bool_)
    unpipelined = np.flatnonzero(~is_pipelined(shape, columns.block_k[finalists], vendor))
    if len(unpipelined):  # as of few products
        unpipelined = unpipelined[columns.template_mask(TEMPLATES.__contains__)[finalists[unpipelined]]]
    if len(unpipelined) > 1:
        by_rank = unpipelined[np.argsort(logs[unpipelined], kind="stable")]
        chosen = columns.take(finalists[by_rank])
        kernel = np.zeros(len(by_rank), dtype=np.int64)
        for name in _OF_A_KERNEL:
            numbers = getattr(chosen, name).astype(np.int64)
            kernel = kernel * (numbers.max() + 1) + numbers
        _, first, of_first = np.unique(kernel, return_index=True, return_inverse=True)
        # Configs of equal columns differ in what has none, so they are kernels of their own.
        repeats[by_rank] = chosen.num_stages != chosen.num_stages[first[of_first]]
    return repeats


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
