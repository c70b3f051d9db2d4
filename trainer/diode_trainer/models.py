"""The networks: from the features of a problem and its configs to log(runtime / roofline).

A ``TimingNetwork`` is a stack of E multilayer perceptrons ("members") that are trained and evaluated together;
what they predict is averaged. ``MatmulTimingModel`` has one member, ``DeepMatmulTimingModel`` several: they
disagree where there was little to learn from, and their mean ranks better than any of them. It may have a scout, a
small network that was taught to predict what they do.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from diode_store.errors import ModelError
from diode_trainer.features import GENERATED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Normalisation(nn.Module):
    """Mean and scale of each feature; buffers, so that a state dict alone is a whole model."""

    problem_mean: Tensor
    problem_scale: Tensor
    config_mean: Tensor
    config_scale: Tensor

    def __init__(self, problem_feature_dim: int, config_feature_dim: int) -> None:
        super().__init__()
        self.register_buffer("problem_mean", torch.zeros(problem_feature_dim))
        self.register_buffer("problem_scale", torch.ones(problem_feature_dim))
        self.register_buffer("config_mean", torch.zeros(config_feature_dim))
        self.register_buffer("config_scale", torch.ones(config_feature_dim))


class TimingNetwork(nn.Module):
    """E multilayer perceptrons over (problem features, config features).

    The first layer is split, so that a problem's part of it is computed once for all of its configs.
    """

    model_type: ClassVar[str] = ""
    default_widths: ClassVar[tuple[int, ...]] = ()
    default_members: ClassVar[int] = 1

    def __init__(
        self,
        problem_feature_dim: int,
        config_feature_dim: int,
        hidden_layer_widths: Sequence[int] | None = None,
        members: int | None = None,
        scout_widths: Sequence[int] = (),
    ) -> None:
        super().__init__()
        widths = tuple(hidden_layer_widths or self.default_widths)
        self.problem_feature_dim = problem_feature_dim
        self.config_feature_dim = config_feature_dim
        self.hidden_layer_widths = widths
        self.members = members or self.default_members
        self.normalisation = Normalisation(problem_feature_dim, config_feature_dim)
        self.problem_weight = nn.Parameter(torch.empty(self.members, problem_feature_dim, widths[0]))
        self.config_weight = nn.Parameter(torch.empty(self.members, config_feature_dim, widths[0]))
        self.problem_bias = nn.Parameter(torch.empty(self.members, 1, widths[0]))
        steps = list(pairwise(widths))
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(self.members, i, o)) for i, o in steps)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(self.members, 1, o)) for _, o in steps)
        self.out_weight = nn.Parameter(torch.empty(self.members, widths[-1], 1))
        self.out_bias = nn.Parameter(torch.zeros(self.members, 1, 1))
        self.scout: TimingNetwork | None = None
        """Says which of many configs the members should score at all; None where they score all."""
        if scout_widths:
            self.scout = MatmulTimingModel(problem_feature_dim, config_feature_dim, scout_widths)
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights after He et al. 2015; the last layer starts small, near the mean of the targets."""
        scale = math.sqrt(2 / (self.problem_feature_dim + self.config_feature_dim))
        nn.init.normal_(self.problem_weight, std=scale, generator=generator)
        nn.init.normal_(self.config_weight, std=scale, generator=generator)
        nn.init.normal_(self.problem_bias, std=0.3, generator=generator)
        for weight in self.weights:
            nn.init.normal_(weight, std=math.sqrt(2 / weight.shape[1]), generator=generator)
        nn.init.normal_(self.out_weight, std=0.3 * math.sqrt(1 / self.hidden_layer_widths[-1]), generator=generator)

    def normalised(self, problem: Tensor, config: Tensor) -> tuple[Tensor, Tensor]:
        """Return both with mean 0 and scale 1 over the training set; vendor rows keep their zeros."""
        to = self.normalisation
        is_generated = config[..., GENERATED, None]
        return (problem - to.problem_mean) / to.problem_scale, (
            config - is_generated * to.config_mean
        ) / to.config_scale

    def forward(self, problem: Tensor, config: Tensor, problem_of: Tensor) -> Tensor:
        """Predict log(runtime / roofline).

        Args:
            problem: (b, P), normalised.
            config: (r, C), normalised; those of all problems behind one another.
            problem_of: (r,) whose each config is, from 0 to b - 1.

        Returns:
            (E, r): what each member predicts.
        """
        of_problem = self.problem_bias + problem @ self.problem_weight  # (E, b, width)
        # One product for both: a column for each problem picks its part, which is faster than an index.
        picks = torch.nn.functional.one_hot(problem_of, len(problem)).to(config.dtype)  # (r, b)
        both = torch.cat((config, picks), 1) @ torch.cat((self.config_weight, of_problem), 1)
        hidden = torch.relu_(both)  # (E, r, width)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = torch.relu_(torch.baddbmm(bias, hidden, weight))
        return torch.baddbmm(self.out_bias, hidden, self.out_weight).squeeze(-1)


class MatmulTimingModel(TimingNetwork):
    """One multilayer perceptron."""

    model_type = "base"
    default_widths = (96, 96, 96)
    default_members = 1


class DeepMatmulTimingModel(TimingNetwork):
    """Several multilayer perceptrons whose predictions are averaged."""

    model_type = "deep"
    default_widths = (64, 64, 64)
    default_members = 6


MODEL_TYPES: dict[str, type[TimingNetwork]] = {
    model.model_type: model for model in (DeepMatmulTimingModel, MatmulTimingModel)
}


def model_class(model_type: str) -> type[TimingNetwork]:
    """Return the network class called ``model_type``.

    Raises:
        ModelError: it is unknown; the message lists the known ones.
    """
    try:
        return MODEL_TYPES[model_type]
    except (KeyError, TypeError):
        raise ModelError(f"unknown model type {model_type!r}; known types: {', '.join(sorted(MODEL_TYPES))}") from None


class NetworkDimensions(NamedTuple):
    """What a network is built with."""

    problem_feature_dim: int
    config_feature_dim: int
    hidden_layer_widths: tuple[int, ...]
    members: int
    scout_widths: tuple[int, ...] = ()
    """Empty without a scout."""


_SCOUT = "scout."
"""What the names of a scout's tensors begin with."""


def dimensions_of(state_dict: Mapping[str, Tensor]) -> NetworkDimensions:
    """Return the dimensions of the network that a state dict is of.

    Raises:
        ModelError: it is not the state dict of a ``TimingNetwork``.
    """
    try:
        _, problem_dim, _ = state_dict["problem_weight"].shape
        _, config_dim, _ = state_dict["config_weight"].shape
        members, widths = _members_and_widths(state_dict)
        has_scout = any(name.startswith(_SCOUT) for name in state_dict)
        scout_widths = _members_and_widths(state_dict, _SCOUT)[1] if has_scout else ()
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise ModelError(f"not the state dict of a diode model: {error} is missing or has another shape") from None
    return NetworkDimensions(problem_dim, config_dim, widths, members, scout_widths)


def _members_and_widths(state_dict: Mapping[str, Tensor], of: str = "") -> tuple[int, tuple[int, ...]]:
    """Return those of the network whose tensors' names begin with ``of``."""
    members, last, _ = state_dict[f"{of}out_weight"].shape
    layers = sum(name.startswith(f"{of}weights.") for name in state_dict)
    return members, (*(state_dict[f"{of}weights.{layer}"].shape[1] for layer in range(layers)), last)
