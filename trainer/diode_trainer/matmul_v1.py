"""Upstream torch-diode's first model, ``MatmulModelV1``: its features, its network, and the problems it can rank.

This follows upstream's revision 6656d0c, to judge its ``v1_model.pt`` beside our models, as upstream's ``ModelWrapper``
asks it. The model has 7 features of the problem and 5 of the config, and none of the device. It was trained on Triton's
``mm`` template alone, so it cannot rank vendor kernels, other templates or other ops.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from diode_store.errors import ModelError
from diode_store.values.units import US_PER_MS
from diode_trainer.card import MATMUL_PURPOSE, Card, Domain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape

MODEL_TYPE = "v1"
PROBLEM_FEATURES = ("dtype_size", "dim_m", "dim_n", "dim_k", "total_gb", "total_gflop", "flops_per_byte")
"""Problem features in the network's order. Dtype sizes are in bits, traffic in 1e9 bytes, work in 1e9 operations."""
CONFIG_FEATURES = ("block_k", "block_m", "block_n", "num_stages", "num_warps")
"""Config features in the network's order."""
FEATURE_VERSION = 1
"""Version of these features, which never change."""

# Mean and scale of the natural logarithm of each feature, over upstream's training data.
_PROBLEM_MEAN = (2.78275084, 8.23996746, 7.27791873, 7.92035942, -2.39558163, 3.40679233, 5.80237395)
_PROBLEM_SCALE = (0.08322756, 2.31893439, 1.65605574, 2.15447078, 2.19682881, 2.99600806, 1.24328795)
_CONFIG_MEAN = (3.95781827, 4.19478321, 4.19098234, 0.9045909, 1.28331208)
_CONFIG_SCALE = (0.92352521, 0.93849802, 0.93872011, 0.57455891, 0.5837217)

_OPS = ("mm",)
_TEMPLATES = ("triton::mm",)
_DTYPE_BITS = {"bfloat16": 16, "float16": 16, "float32": 32}
DOMAIN = Domain(ops=_OPS, dtypes=(*sorted(_DTYPE_BITS), "tf32"), templates=_TEMPLATES)
NOTES = (
    "Upstream torch-diode's MatmulModelV1, trained by upstream on Triton kernels of an H100. It ranks Triton's mm"
    " template on the op mm alone: neither a vendor's kernel nor another template is ever its choice."
)

_STACK = "linear_relu_stack."
_FIRST = f"{_STACK}0.weight"
_STEP = 3
"""Modules per layer: linear, batch norm and activation."""
_KERNEL_OVERHEAD_MS = 0.00541
"""Upstream's default: the shortest time in its data."""
_NORM_EPSILON = 1e-5
_LONGEST_REASON = 300
"""Limit for error messages; PyTorch lists every missing tensor."""
_RETRAIN = "get a whole copy of upstream's v1_model.pt, or train a model with `diode-train`"


class MatmulModelV1(nn.Module):
    """A multilayer perceptron with batch norms, whose prediction is added to the overhead of a launch."""

    model_type = MODEL_TYPE

    def __init__(self, hidden_layer_widths: tuple[int, ...], kernel_overhead: float = _KERNEL_OVERHEAD_MS) -> None:
        super().__init__()
        self.hidden_layer_widths = hidden_layer_widths
        self.kernel_overhead = kernel_overhead
        """Milliseconds of a launch."""
        layers: list[nn.Module] = []
        width = len(PROBLEM_FEATURES) + len(CONFIG_FEATURES)
        for after in hidden_layer_widths:
            layers += [nn.Linear(width, after), nn.BatchNorm1d(after, eps=_NORM_EPSILON), nn.ReLU()]
            width = after
        self.linear_relu_stack = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, problem: Tensor, config: Tensor) -> Tensor:
        """Predict log milliseconds, shape (n, 1), from n rows of normalized features."""
        log_time: Tensor = self.linear_relu_stack(torch.cat((problem, config), 1))
        return torch.logaddexp(log_time, torch.full_like(log_time, math.log(self.kernel_overhead)))


def is_v1(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint, or a bare state dict, is of this network."""
    return _FIRST in _state_of(checkpoint)


def network_of(checkpoint: Mapping[str, Any]) -> MatmulModelV1:
    """Rebuild the network from a checkpoint, or from a bare state dict.

    Raises:
        ModelError: the features differ, or the tensors do not fit together.
    """
    state = _state_of(checkpoint)
    try:
        widths = _widths(state)
        network = MatmulModelV1(widths, _overhead(checkpoint))
        network.load_state_dict(dict(state))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = textwrap.shorten(str(error), _LONGEST_REASON)
        raise ModelError(f"its tensors do not make a MatmulModelV1 ({reason}); {_RETRAIN}") from None
    if not all(bool(torch.isfinite(value).all()) for value in network.state_dict().values()):
        raise ModelError(f"its weights are not all finite numbers; {_RETRAIN}")
    return network.requires_grad_(requires_grad=False).eval()


def card_of(name: str, sha256: str) -> Card:
    """Return the card of a model that has none."""
    return Card(name, MATMUL_PURPOSE, MODEL_TYPE, FEATURE_VERSION, DOMAIN, notes=NOTES, sha256=sha256)


def can_rank(shape: ProblemShape) -> bool:
    """Return whether the model was made for problems of this op and dtype."""
    return shape.op in _OPS and shape.dtype in _DTYPE_BITS


def problem_features(shape: ProblemShape) -> NDArray[np.float64]:
    """Return the normalized features of a problem, shape (7,)."""
    bits = _DTYPE_BITS[shape.dtype]
    m, n, k = shape.m, shape.n, shape.k
    gigabytes = (m * k + k * n + m * n) * bits / 8 / 1e9
    gigaflops = 2 * m * n * k / 1e9
    features = np.array([bits, m, n, k, gigabytes, gigaflops, gigaflops / gigabytes])
    normalised: NDArray[np.float64] = (np.log(features) - _PROBLEM_MEAN) / _PROBLEM_SCALE
    return normalised


def config_features(columns: ConfigColumns) -> NDArray[np.float64]:
    """Return the normalized features of configs that have all five, shape (n, 5)."""
    features = np.stack([getattr(columns, name) for name in CONFIG_FEATURES], axis=1)
    normalised: NDArray[np.float64] = (np.log(features) - _CONFIG_MEAN) / _CONFIG_SCALE
    return normalised


@dataclass(frozen=True, eq=False)
class _Layer:
    """A linear layer that includes its batch norm."""

    weight: NDArray[np.float64]
    """(out, in)."""
    bias: NDArray[np.float64]
    """(out, 1)."""


class V1Scorer:
    """Scores the configs of one problem in NumPy. Immutable, so any thread may use it.

    Scores are float64, to which upstream's float32 is as close as any float32 would be.
    """

    def __init__(self, network: MatmulModelV1) -> None:
        stack = network.linear_relu_stack
        self._hidden = [_folded(stack, at) for at in range(0, len(stack) - 1, _STEP)]
        self._last = _folded(stack, len(stack) - 1)
        self._log_overhead = math.log(network.kernel_overhead)

    def predict_us(self, shape: ProblemShape, _hardware: Hardware, columns: ConfigColumns) -> NDArray[np.float64]:
        """Return the predicted runtimes in microseconds, shape (n,).

        A runtime is inf if the model cannot rank the config: for vendor kernels, other templates and other ops.
        """
        predicted = np.full(len(columns), np.inf)
        if not can_rank(shape):
            return predicted
        ranked = columns.template_mask(_TEMPLATES.__contains__)
        for name in CONFIG_FEATURES:
            ranked &= getattr(columns, name) > 0
        if ranked.any():
            predicted[ranked] = self._predict_us(shape, columns.take(ranked))
        return predicted

    def _predict_us(self, shape: ProblemShape, columns: ConfigColumns) -> NDArray[np.float64]:
        config = config_features(columns)
        problem = np.broadcast_to(problem_features(shape), (len(config), len(PROBLEM_FEATURES)))
        hidden = np.concatenate((problem, config), axis=1).T  # (12, n)
        for layer in self._hidden:
            hidden = layer.weight @ hidden
            hidden += layer.bias
            np.maximum(hidden, 0, out=hidden)
        logs = self._last.weight @ hidden + self._last.bias  # (1, n)
        milliseconds: NDArray[np.float64] = np.exp(np.logaddexp(logs[0], self._log_overhead))
        return milliseconds * US_PER_MS


def _folded(stack: nn.Sequential, at: int) -> _Layer:
    """Return the linear layer at ``at``, with the batch norm after it, if any, folded in."""
    state = {name: value.double().numpy() for name, value in stack.state_dict().items()}
    weight, bias = state[f"{at}.weight"], state[f"{at}.bias"]
    norm = f"{at + 1}."
    if f"{norm}running_var" in state:
        scale = state[f"{norm}weight"] / np.sqrt(state[f"{norm}running_var"] + _NORM_EPSILON)
        weight = weight * scale[:, None]
        bias = (bias - state[f"{norm}running_mean"]) * scale + state[f"{norm}bias"]
    return _Layer(weight, bias[:, None])


def _state_of(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    inside = checkpoint.get("model_state_dict", checkpoint)
    return inside if isinstance(inside, dict) else {}


def _widths(state: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the widths of the hidden layers from the weights of the linear layers."""
    weights = {int(name.split(".")[1]): value for name, value in state.items() if name.endswith(".weight")}
    linear = [weights[at].shape for at in sorted(weights) if weights[at].ndim == 2]  # noqa: PLR2004 - (out, in)
    expected = len(PROBLEM_FEATURES) + len(CONFIG_FEATURES)
    if not linear or linear[0][1] != expected:
        got = linear[0][1] if linear else 0
        raise ModelError(f"expected {expected} features (7 of the problem, 5 of the config), got {got}; {_RETRAIN}")
    return tuple(int(out) for out, _ in linear[:-1])


def _overhead(checkpoint: Mapping[str, Any]) -> float:
    """Return the launch overhead of a checkpoint's training; a bare state dict gets the default."""
    overhead = float(checkpoint.get("kernel_overhead", _KERNEL_OVERHEAD_MS))
    if not 0 < overhead < math.inf:
        raise ModelError(f"kernel_overhead must be positive milliseconds, not {overhead}; {_RETRAIN}")
    return overhead
