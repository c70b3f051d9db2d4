"""A dataset as tensors: features in, log(runtime / roofline) out.

Lists of configs have very different lengths, so they are concatenated without padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from diode_store.errors import DatasetError
from diode_trainer.data.regimes import as_deployed
from diode_trainer.feature_kinds import config_features, kind_of, problem_features
from diode_trainer.features import VENDOR_FLAGS, roofline_us

if TYPE_CHECKING:
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.models import TimingNetwork

_CONSTANT = 1e-6
"""Standard deviation below which a feature counts as constant."""


@dataclass(frozen=True, eq=False)
class Packed:
    """m problems and their r configs that ran, concatenated by problem."""

    problem: Tensor
    """(m, P) features."""
    count: Tensor
    """(m,) number of configs by problem; 0 if all failed."""
    config: Tensor
    """(r, C) features."""
    target: Tensor
    """(r,) log(runtime / roofline)."""
    vendor: Tensor
    """(r,) bool."""
    estimate: Tensor
    """(r,) bool: the time is an estimate (an upper bound), not a median."""

    def __len__(self) -> int:
        """Return m."""
        return len(self.problem)

    @property
    def problem_of(self) -> Tensor:
        """Problem of each config, shape (r,)."""
        numbers = torch.arange(len(self), device=self.count.device)
        return torch.repeat_interleave(numbers, self.count, output_size=len(self.target))

    def rows_of(self, problems: Tensor) -> Tensor:
        """Return the rows of the configs of ``problems``, concatenated."""
        count = self.count[problems]
        # Difference between a config's row here and its place in the result.
        shift = (self.count.cumsum(0) - self.count)[problems] - (count.cumsum(0) - count)
        shift = torch.repeat_interleave(shift, count)
        return shift + torch.arange(len(shift), device=shift.device)

    def __getitem__(self, problems: Tensor) -> Packed:
        """Return the problems at the given indices, in that order."""
        count, rows = self.count[problems], self.rows_of(problems)
        return Packed(
            self.problem[problems], count, self.config[rows], self.target[rows], self.vendor[rows], self.estimate[rows]
        )

    def to(self, device: str) -> Packed:
        """Return a copy on ``device``."""
        return Packed(*(value.to(device) for value in vars(self).values()))


def pack(dataset: ExampleSet) -> Packed:
    """Compute the features of every problem of ``dataset``, and of each config that ran.

    Times behind a write flush are converted to deployed times, so that a problem has one time in all regimes.

    Raises:
        DatasetError: ops that no model learns together.
    """
    ops = {example.shape.op for example in dataset}
    if len({kind_of({op}) for op in ops}) > 1:
        raise DatasetError(
            f"no model learns {', '.join(sorted(ops))} together; name one op of attention, convolution, or none"
        )
    kind = kind_of(ops)
    problem = np.empty((len(dataset), len(kind.problem)), dtype=np.float32)
    count = np.array([int(example.ran.sum()) for example in dataset], dtype=np.int64)
    config = np.empty((int(count.sum()), len(kind.config)), dtype=np.float32)
    target = np.empty(len(config), dtype=np.float32)
    vendor, estimate = (np.empty(len(config), dtype=np.bool_) for _ in range(2))
    end = 0
    for i, example in enumerate(dataset):
        ran, shape, hardware = np.flatnonzero(example.ran), example.shape, example.hardware
        rows, end = slice(end, end + len(ran)), end + len(ran)
        problem[i] = problem_features(shape, hardware)
        config[rows] = config_features(shape, hardware, example.columns.take(ran))
        us = as_deployed(example.runtime_us[ran], example.regime)
        target[rows] = np.log(us / roofline_us(shape, hardware))
        vendor[rows], estimate[rows] = example.is_vendor[ran], example.is_estimate[ran]
    return Packed(*(torch.from_numpy(array) for array in (problem, count, config, target, vendor, estimate)))


def normalise(network: TimingNetwork, packed: Packed) -> None:
    """Set the network's normalization to the mean and spread of ``packed``; vendor flags are not normalized.

    A constant feature gets no weight, as its effect cannot be learned.
    """
    to = network.normalisation
    constant = _set(to.problem_mean, to.problem_scale, packed.problem)
    flags = slice(len(VENDOR_FLAGS) + 1)
    constant_config = _set(to.config_mean, to.config_scale, packed.config[~packed.vendor])
    to.config_mean[flags], to.config_scale[flags], constant_config[flags] = 0.0, 1.0, False
    with torch.no_grad():
        network.problem_weight[:, constant] = 0
        network.config_weight[:, constant_config] = 0


def _set(mean: Tensor, scale: Tensor, features: Tensor) -> Tensor:
    """Set mean and scale from ``features`` (rows, F); return a mask of the constant ones."""
    values = features.double()
    if not len(values):
        return torch.ones(features.shape[-1], dtype=torch.bool)
    mean.copy_(values.mean(0))
    spread = values.std(0, unbiased=False)
    constant = spread < _CONSTANT
    scale.copy_(torch.where(constant, 1.0, spread))
    return constant
