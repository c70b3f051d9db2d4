"""A trained network as plain NumPy: fast on one core, and indifferent to whatever mode torch is in.

The hook asks from inside a compile, where fake tensors, default devices and autocast may be active; arrays know
none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_trainer.models import TimingNetwork


class Scorer:
    """Scores the configs of one problem; immutable, so any thread may use it."""

    def __init__(self, network: TimingNetwork) -> None:
        state = {name: value.detach().cpu().double().numpy() for name, value in network.state_dict().items()}
        problem_in = state["problem_in.weight"].T / state["normalisation.problem_scale"][:, None]
        config_in = state["config_in.weight"].T / state["normalisation.config_scale"][:, None]
        # Only generated kernels have their features' mean taken off; their flag stands for that.
        config_in[2] -= state["normalisation.config_mean"] @ config_in
        start = state["problem_in.bias"] - state["normalisation.problem_mean"] @ problem_in
        self._members = network.members
        self._problem_in, self._config_in, self._start = (
            np.ascontiguousarray(array, dtype=np.float32) for array in (problem_in, config_in, start)
        )
        layers = range(len(network.weights))
        self._layers = [
            (state[f"weights.{i}"].astype(np.float32), state[f"biases.{i}"].astype(np.float32)) for i in layers
        ]
        self._out = state["out_weight"].astype(np.float32), state["out_bias"].astype(np.float32)

    def __call__(self, problem: NDArray[np.float32], config: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what each member predicts for log(runtime / roofline), shape (E, n).

        Args:
            problem: (P,) raw features.
            config: (n, C) raw features.
        """
        hidden = config @ self._config_in  # (n, E * width)
        hidden += self._start + problem @ self._problem_in
        np.maximum(hidden, 0, out=hidden)
        hidden = hidden.reshape(len(config), self._members, -1).transpose(1, 0, 2)  # (E, n, width)
        for weight, bias in self._layers:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0, out=hidden)
        weight, bias = self._out
        predicted: NDArray[np.float32] = hidden @ weight + bias
        return predicted[..., 0]
