"""A trained network as plain NumPy: fast on one core, and indifferent to whatever mode torch is in.

The hook asks from inside a compile, where fake tensors, default devices and autocast may be active; arrays know
none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diode_trainer.features import GENERATED, features_and_fit, problem_features, roofline_us

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from diode_store.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.models import TimingNetwork

    Floats = NDArray[np.float32]


class Scorer:
    """Scores the configs of one problem; immutable, so any thread may use it.

    Args:
        network: the trained network.
        templates: those it was trained on; empty means any.
    """

    def __init__(self, network: TimingNetwork, templates: Collection[str] = ()) -> None:
        self._templates = frozenset(templates)
        state = {name: value.detach().cpu().double().numpy() for name, value in network.state_dict().items()}
        problem_in = state["problem_weight"] / state["normalisation.problem_scale"][:, None]  # (E, P, width)
        config_in = state["config_weight"] / state["normalisation.config_scale"][:, None]  # (E, C, width)
        start = state["problem_bias"][:, 0] - state["normalisation.problem_mean"] @ problem_in  # (E, width)
        # Only generated kernels have their features' mean taken off; their flag stands for that.
        config_in[:, GENERATED] -= state["normalisation.config_mean"] @ config_in
        layers = range(len(network.weights))
        self._members = [
            _Member(
                problem_in=_plain(problem_in[i]),
                config_in=_plain(config_in[i]),
                start=_plain(start[i]),
                layers=[(_plain(state[f"weights.{n}"][i]), _plain(state[f"biases.{n}"][i])) for n in layers],
                out_weight=_plain(state["out_weight"][i, :, 0]),
                out_bias=float(state["out_bias"][i, 0, 0]),
            )
            for i in range(network.members)
        ]

    def predict_us(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> NDArray[np.float64]:
        """Return the predicted runtime of each config in microseconds, shape (n,); inf for an impossible one."""
        features, possible = features_and_fit(shape, hardware, columns)
        logs = self(problem_features(shape, hardware), features)
        with np.errstate(over="ignore"):
            predicted = np.exp(logs.mean(0, dtype=np.float64)) * roofline_us(shape, hardware)
        if self._templates:
            possible = possible & columns.template_mask(self._templates.__contains__)
        return np.where(possible, predicted, np.inf)

    def __call__(self, problem: Floats, config: Floats) -> Floats:
        """Return what each member predicts for log(runtime / roofline), shape (E, n).

        Args:
            problem: (P,) raw features.
            config: (n, C) raw features.
        """
        predicted = np.empty((len(self._members), len(config)), dtype=np.float32)
        for row, member in zip(predicted, self._members, strict=True):
            member.predict(problem, config, row)
        return predicted


class _Member(NamedTuple):
    """One multilayer perceptron; NumPy multiplies a batch of matrices more slowly than one at a time."""

    problem_in: Floats
    config_in: Floats
    start: Floats
    layers: list[tuple[Floats, Floats]]
    out_weight: Floats
    out_bias: float

    def predict(self, problem: Floats, config: Floats, out: Floats) -> None:
        hidden = config @ self.config_in  # (n, width)
        hidden += self.start + problem @ self.problem_in
        np.maximum(hidden, 0, out=hidden)
        for weight, bias in self.layers:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0, out=hidden)
        np.matmul(hidden, self.out_weight, out=out)
        out += self.out_bias


def _plain(array: NDArray[np.float64]) -> Floats:
    return np.ascontiguousarray(array, dtype=np.float32)
