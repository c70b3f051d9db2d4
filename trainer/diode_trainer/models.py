"""Networks that map features of a problem and its configs to log(runtime / roofline).

A ``TimingNetwork`` is an ensemble of E multilayer perceptrons ("members") that are trained and evaluated together, and
whose predictions are averaged. ``MatmulTimingModel`` has one member, ``DeepMatmulTimingModel`` several. Members
disagree where they learned little, and their mean ranks better than any member. An ensemble may have a scout, a small
network that learned to predict the mean of the members.
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

_SCOUT = "scout."
"""Prefix of the names of a scout's tensors."""


class Normalisation(nn.Module):
    """Mean and scale of each feature, as buffers, so that a state dict alone is a whole model."""

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
    """An ensemble of E multilayer perceptrons over (problem features, config features).

    The first layer is split, so that the problem's part is computed once for all configs.
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
        """Network that selects the configs for the members to score; None if they score all."""
        if scout_widths:
            self.scout = MatmulTimingModel(problem_feature_dim, config_feature_dim, scout_widths)
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights after He et al. 2015; the last layer starts small, near the mean target."""
        scale = math.sqrt(2 / (self.problem_feature_dim + self.config_feature_dim))
        nn.init.normal_(self.problem_weight, std=scale, generator=generator)
        nn.init.normal_(self.config_weight, std=scale, generator=generator)
        nn.init.normal_(self.problem_bias, std=0.3, generator=generator)
        for weight in self.weights:
            nn.init.normal_(weight, std=math.sqrt(2 / weight.shape[1]), generator=generator)
        nn.init.normal_(self.out_weight, std=0.3 * math.sqrt(1 / self.hidden_layer_widths[-1]), generator=generator)

    def inputs(self, problem: Tensor, config: Tensor, problem_of: Tensor) -> Tensor:
        """Return the inputs of ``forward``: features with mean 0 and scale 1 over the training data.

        The zeros of vendor kernels stay zeros.

        Args:
            problem: (b, P) features.
            config: (r, C) features of the configs of all problems, concatenated.
            problem_of: (r,) problem of each config, from 0 to b - 1.

        Returns:
            (r, C + P)
        """
        to = self.normalisation
        is_generated = config[:, GENERATED, None]
        of_problem = (problem - to.problem_mean) / to.problem_scale
        return torch.cat(((config - is_generated * to.config_mean) / to.config_scale, of_problem[problem_of]), 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return each member's prediction of log(runtime / roofline), (E, r), from (r, C + P) ``inputs``."""
        weight = torch.cat((self.config_weight, self.problem_weight), 1)
        hidden = torch.relu_(torch.baddbmm(self.problem_bias, inputs.expand(self.members, -1, -1), weight))
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = torch.relu_(torch.baddbmm(bias, hidden, weight))
        return torch.baddbmm(self.out_bias, hidden, self.out_weight).squeeze(-1)

    def of_members(self, members: slice) -> TimingNetwork:
        """Return a network of some of the members, without a scout."""
        return self._like({name: value[members] for name, value in self._member_parameters().items()})

    @staticmethod
    def joined(networks: Sequence[TimingNetwork]) -> TimingNetwork:
        """Return a network of the members of several networks with equal normalization, without a scout."""
        states = [network._member_parameters() for network in networks]  # noqa: SLF001 - of this class
        return networks[0]._like({name: torch.cat([state[name] for state in states]) for name in states[0]})  # noqa: SLF001

    def _member_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of the members by name, without those of the scout."""
        return {name: value for name, value in self.named_parameters() if not name.startswith(_SCOUT)}

    def _like(self, parameters: dict[str, Tensor]) -> TimingNetwork:
        """Return a network with the same normalization and other members."""
        members = len(parameters["out_bias"])
        with torch.random.fork_rng(devices=[]):  # what the constructor draws is replaced
            like = type(self)(self.problem_feature_dim, self.config_feature_dim, self.hidden_layer_widths, members)
        like.load_state_dict({**parameters, **self.normalisation.state_dict(prefix="normalisation.")})
        return like.to(self.out_bias.device)


class MatmulTimingModel(TimingNetwork):
    """A single multilayer perceptron."""

    model_type = "base"
    default_widths = (96, 96, 96)
    default_members = 1


class DeepMatmulTimingModel(TimingNetwork):
    """An ensemble of multilayer perceptrons."""

    model_type = "deep"
    default_widths = (64, 64, 64)
    default_members = 6


MODEL_TYPES: dict[str, type[TimingNetwork]] = {
    model.model_type: model for model in (DeepMatmulTimingModel, MatmulTimingModel)
}


def model_class(model_type: str) -> type[TimingNetwork]:
    """Return the network class called ``model_type``.

    Raises:
        ModelError: the type is unknown; the message lists the known ones.
    """
    try:
        return MODEL_TYPES[model_type]
    except (KeyError, TypeError):
        raise ModelError(f"unknown model type {model_type!r}; known types: {', '.join(sorted(MODEL_TYPES))}") from None


class NetworkDimensions(NamedTuple):
    """Arguments of a network's constructor."""

    problem_feature_dim: int
    config_feature_dim: int
    hidden_layer_widths: tuple[int, ...]
    members: int
    scout_widths: tuple[int, ...] = ()
    """Empty without a scout."""


def dimensions_of(state_dict: Mapping[str, Tensor]) -> NetworkDimensions:
    """Return the dimensions of the network of a state dict.

    Raises:
        ModelError: the state dict is not of a ``TimingNetwork``.
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
    """Return the members and widths of the network whose tensors have the prefix ``of``."""
    members, last, _ = state_dict[f"{of}out_weight"].shape
    layers = sum(name.startswith(f"{of}weights.") for name in state_dict)
    return members, (*(state_dict[f"{of}weights.{layer}"].shape[1] for layer in range(layers)), last)
