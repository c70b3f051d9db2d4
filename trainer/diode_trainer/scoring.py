"""A trained network in plain NumPy: fast on one core, and independent of torch's modes.

The hook asks from inside a compile. Fake tensors, default devices and autocast may be active there, but do not affect
arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.candidates.pipelining import kernels_of
from diode_store.devices.descriptor import describe
from diode_trainer.feature_kinds import alone_inputs, is_alone, rows
from diode_trainer.features import GENERATED, ListFeatures, ModelInputs
from diode_trainer.uncertainty import MOST_TOGETHER, tried_in_turn
from diode_trainer.work import Work

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.models import TimingNetwork
    from diode_trainer.work import Kind

    Floats = NDArray[np.float32]

_FINALISTS = 46
"""Number of configs that all members score, by the scout's ranking. With two vendor kernels this makes 48, a multiple
of the 16 that matrix products are computed in.
"""
_FINALISTS_OF_REPEATS = 80
"""The same number if some configs are one kernel, so that enough distinct kernels are scored."""
_SHORT = 256
"""Longest list that is faster to score by all members at once than one by one."""
_BEHIND = 1e-9
"""Log of the ratio that puts unscored configs behind the last scored one."""
_KEPT_LISTS = 16
"""Number of lists that a scorer caches, each for a kind of problem."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions for the n configs of one problem."""

    runtime_us: NDArray[np.float64]
    """Microseconds, shape (n,): geometric mean over the members; inf if a config cannot run."""
    finalists: NDArray[np.intp]
    """Configs that all members scored, shape (f,). They include the vendor kernels. No other config is predicted to be
    faster than a finalist that is not a vendor kernel.
    """
    member_logs: Floats
    """Log microseconds that each member predicts for the finalists, shape (E, f)."""
    kernels: NDArray[np.intp] | None = None
    """Kernel numbers, shape (n,): configs with equal numbers are one kernel. None if all are distinct."""

    @classmethod
    def without_members(cls, runtime_us: NDArray[np.float64], kernels: NDArray[np.intp] | None = None) -> Prediction:
        """Return the prediction of a model without members."""
        return cls(runtime_us, np.empty(0, dtype=np.intp), np.empty((0, 0), dtype=np.float32), kernels)

    def spread_out(self, places: NDArray[np.intp], length: int) -> Prediction:
        """Return the prediction for a list of ``length`` configs with these at ``places``; the others are inf."""
        runtime_us = np.full(length, np.inf)
        runtime_us[places] = self.runtime_us
        kernels = None
        if self.kernels is not None:
            kernels = length + np.arange(length)
            kernels[places] = self.kernels
        return Prediction(runtime_us, places[self.finalists], self.member_logs, kernels)

    def without_repeats(self, among: NDArray[np.bool_] | None = None) -> Prediction:
        """Deduplicate configs that compile to the same kernel; keep the fastest prediction.

        The other configs get inf and are no finalists, as timing a kernel twice gains nothing.

        Args:
            among: (n,) configs that may be kept; all by default.
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
        """Return the turn in which each of the c configs ``counted`` is timed, from 0, shape (c,); inf for never.

        Configs that are chosen together come first, then the others by predicted time. Each kernel is timed once.
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
        """Return the prediction with ``offsets``, shape (n,), added to the log runtimes; inf removes a config."""
        left = np.isfinite(offsets[self.finalists])
        finalists = self.finalists[left]
        member_logs = self.member_logs[:, left] + offsets[finalists].astype(np.float32)
        return Prediction(self.runtime_us * np.exp(offsets), finalists, member_logs, self.kernels)


class Scorer:
    """Scores the configs of one problem. Any thread may use it.

    Args:
        network: trained network.
        templates: templates in its training data; empty means any.
    """

    def __init__(self, network: TimingNetwork, templates: Collection[str] = ()) -> None:
        self._templates = frozenset(templates)
        self._members = _Members(network)
        self._scout = None if network.scout is None else _Members(network.scout)
        self._listed = lru_cache(maxsize=_KEPT_LISTS)(self._list)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, without the cache of lists."""
        return {name: value for name, value in vars(self).items() if name != "_listed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the result of ``__getstate__``, with an empty cache."""
        vars(self).update(state)
        self._listed = lru_cache(maxsize=_KEPT_LISTS)(self._list)

    def predict_us(
        self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns, *, exact: bool = False
    ) -> NDArray[np.float64]:
        """Return the runtimes of ``predict`` in microseconds, shape (n,)."""
        return self.predict(shape, hardware, columns, exact=exact).runtime_us

    def predict(
        self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns, *, exact: bool = False
    ) -> Prediction:
        """Predict the runtime of each config.

        In a long list the members score only the best configs of their scout. This takes a fraction of the time and
        nearly always gives the same first choices. The other configs follow in the scout's order.

        Args:
            shape: problem.
            hardware: device.
            columns: n configs.
            exact: let all members score every config.
        """
        if is_alone(shape.op):
            return self._of_alone(shape, hardware, columns)
        work = Work(shape, describe(hardware))
        listed = self._listed(columns, work.kind(columns))
        inputs = ModelInputs(work, listed.features)
        finalists, logs = listed.usable, np.full(len(columns), np.inf)
        kernels = kernels_of(columns, shape, hardware.vendor)
        most = _FINALISTS if kernels is None else _FINALISTS_OF_REPEATS
        # All members score the list of a grouped product, so that those of several routings have the same finalists.
        is_long = work.groups is None and len(finalists) > most + len(listed.vendors)
        if self._scout is not None and listed.begun is not None and not exact and is_long:
            finalists, logs = listed.finalists_of(self._scout.score_list(inputs, listed.begun), most)
        members = self._members.score_all(inputs.rows(finalists))
        scores = np.add.reduce(members, dtype=np.float64) / len(members)
        first = np.minimum.reduce(logs, initial=np.inf)
        if first < np.inf:  # puts all other configs behind the finalists
            logs += scores[~inputs.vendor[finalists]].max(initial=first) - first + _BEHIND
        logs[finalists] = scores
        with np.errstate(over="ignore"):
            runtime_us = np.exp(logs, out=logs)
        runtime_us *= inputs.roofline_us
        member_logs = members + np.float32(math.log(inputs.roofline_us))
        return Prediction(runtime_us, finalists, member_logs, kernels)

    def _of_alone(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> Prediction:
        """Return the predictions of all members for a short list."""
        inputs = alone_inputs(shape, hardware, columns)
        usable = inputs.possible
        if self._templates:
            usable = usable & columns.template_mask(self._templates.__contains__)
        finalists = np.flatnonzero(usable)
        members = self._members.score_all(rows(inputs, finalists)) + np.float32(math.log(inputs.roofline_us))
        runtime_us = np.full(len(columns), np.inf)
        runtime_us[finalists] = np.exp(members.mean(0, dtype=np.float64))
        return Prediction(runtime_us, finalists, members)

    def __call__(self, problem: Floats, config: Floats) -> Floats:
        """Return the predictions of each member for log(runtime / roofline), shape (E, n).

        Args:
            problem: (P,) raw features.
            config: (n, C) raw features.
        """
        alike = np.repeat(np.append(problem, np.float32(1))[:, None], len(config), 1)
        return self._members.score_all(np.concatenate((config.T, alike)))

    def _list(self, columns: ConfigColumns, kind: Kind) -> _Listed:
        features = ListFeatures(columns, kind)
        usable = features.possible
        if self._templates:
            usable = usable & columns.template_mask(self._templates.__contains__)
        begun = None if self._scout is None else self._scout.begin(features.known)
        return _Listed(features, usable, begun)


class _Listed:
    """Cached data of a list of n configs, for all problems of a kind.

    Args:
        features: features of the list.
        usable: mask of the configs that can run and whose template the network knows, shape (n,).
        begun: result of the scout's ``begin``; None without a scout.
    """

    def __init__(self, features: ListFeatures, usable: NDArray[np.bool_], begun: tuple[Floats, Floats] | None) -> None:
        self.features, self.begun = features, begun
        self.usable, self._unusable = np.flatnonzero(usable), np.flatnonzero(~usable)
        self.vendors = np.flatnonzero(usable & features.terms.vendor)

    def finalists_of(self, scores: Floats, most: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return the configs for the members to score, and the scout's predictions for the other usable ones.

        The vendor kernels are always scored.

        Args:
            scores: (n,) predictions of the scout; modified.
            most: number of scored configs beside the vendor kernels; the list is longer.
        """
        scores[self._unusable] = np.inf
        scores[self.vendors] = -np.inf
        count = most + len(self.vendors)
        finalists = np.sort(np.argpartition(scores, count - 1)[:count])
        scores[finalists] = np.inf
        return finalists, scores.astype(np.float64)


class _Members:
    """Stacked weights of the members.

    Each layer but the last has one more unit, which is always 1, so that the next weights include the biases.
    """

    def __init__(self, network: TimingNetwork) -> None:
        self.count = network.members
        state = {name: value.detach().cpu().double().numpy() for name, value in network.state_dict().items()}
        problem_in = state["problem_weight"] / state["normalisation.problem_scale"][:, None]  # (E, P, width)
        config_in = state["config_weight"] / state["normalisation.config_scale"][:, None]  # (E, C, width)
        start = state["problem_bias"] - (state["normalisation.problem_mean"] @ problem_in)[:, None]  # (E, 1, width)
        # Only the features of generated kernels are centered; their flag marks these.
        config_in[:, GENERATED] -= state["normalisation.config_mean"] @ config_in
        layers = [(np.concatenate((config_in, problem_in), 1), start)]
        layers += [(state[f"weights.{n}"], state[f"biases.{n}"]) for n in range(len(network.weights))]
        self._first, *self._layers = (_with_bias(*layer, one=True) for layer in layers)
        self._layers.append(_with_bias(state["out_weight"], state["out_bias"], one=False))

    def score_all(self, rows: Floats) -> Floats:
        """Return the predictions of every member, shape (E, n): at once for short lists, else one by one.

        Args:
            rows: result of ``ModelInputs.rows``, shape (C + P + 1, n).
        """
        if rows.shape[1] <= _SHORT:
            together = self._first.reshape(-1, len(rows)) @ rows
            return self._finish(together.reshape(*self._first.shape[:2], -1), slice(self.count), self._layers)
        parts = [self._finish(self._first[[i]] @ rows, slice(i, i + 1), self._layers) for i in range(self.count)]
        return np.concatenate(parts)

    def begin(self, known: Floats) -> tuple[Floats, Floats]:
        """Return the part of the first two layers of the first member that depends on the list alone.

        In ``relu(x + begun) = max(x, -begun) + begun`` the last term goes to the second layer.
        """
        begun: Floats = self._first[0, :, : len(known)] @ known
        return -begun, self._layers[0][0] @ begun

    def score_list(self, inputs: ModelInputs, begun: tuple[Floats, Floats]) -> Floats:
        """Return the predictions of the first member for all configs, shape (n,), from the result of ``begin``."""
        least, added = begun
        hidden: Floats = (self._first[0] @ inputs.mix) @ inputs.terms
        np.maximum(hidden, least, out=hidden)
        hidden = self._layers[0][0] @ hidden
        hidden += added
        scores: Floats = self._finish(hidden[None], slice(1), self._layers[1:])[0]
        return scores

    @staticmethod
    def _finish(hidden: Floats, members: slice, layers: Sequence[Floats]) -> Floats:
        """Return the predictions of ``members``, a row each, for log(runtime / roofline) from inputs of ``layers``."""
        # The array of zeros is small, but large enough that NumPy does not loop over rows.
        axes = 1 if hidden.shape[2] <= _SHORT else 2
        for weights in layers:
            np.maximum(hidden, np.zeros(hidden.shape[axes:], dtype=np.float32), out=hidden)  # faster than a scalar
            hidden = weights[members] @ hidden
        return hidden[:, 0]


def _with_bias(weight: NDArray[np.float64], bias: NDArray[np.float64], *, one: bool) -> Floats:
    """Return (E, in, out) weights as columns, followed by their biases and a unit that passes on the 1."""
    stack = np.concatenate((weight, bias), 1).transpose(0, 2, 1)
    if one:
        passed_on = np.zeros_like(stack[:, :1])
        passed_on[..., -1] = 1
        stack = np.concatenate((stack, passed_on), 1)
    return np.ascontiguousarray(stack, dtype=np.float32)
