"""A trained network as plain NumPy: fast on one core, and independent of torch's modes.

The hook asks from inside a compile, where fake tensors, default devices and autocast may be active; they do not
affect arrays.
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
        # All members' first layers are one: (E * width, P), (E * width, C), (E * width,).
        self._problem_in, self._config_in = (
            _plain(weight.transpose(0, 2, 1).reshape(-1, weight.shape[1])) for weight in (problem_in, config_in)
        )
        self._start = _plain(start.reshape(-1))
        layers = range(len(network.weights))
        self._members = [
            _Member(
                layers=[(_plain(state[f"weights.{n}"][i].T), _plain(state[f"biases.{n}"][i].T)) for n in layers],
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
        hidden = self._config_in @ config.T  # (E * width, n): as the features lie in memory
        hidden += (self._start + self._problem_in @ problem)[:, None]
        np.maximum(hidden, 0, out=hidden)
        predicted = np.empty((len(self._members), len(config)), dtype=np.float32)
        for member, own, row in zip(self._members, np.split(hidden, len(self._members)), predicted, strict=True):
            member.finish(own, row)
        return predicted


class _Member(NamedTuple):
    """All but the first layer; NumPy multiplies a stack of matrices more slowly than one at a time."""

    layers: list[tuple[Floats, Floats]]
    out_weight: Floats
    out_bias: float

    def finish(self, hidden: Floats, out: Floats) -> None:
        """Go on from ``hidden`` (width, n) and write what is predicted to ``out`` (n,)."""
        for weight, bias in self.layers:
            hidden = weight @ hidden
            hidden += bias
            np.maximum(hidden, 0, out=hidden)
        np.matmul(self.out_weight, hidden, out=out)
        out += self.out_bias


def _plain(array: NDArray[np.float64]) -> Floats:
    return np.ascontiguousarray(array, dtype=np.float32)
