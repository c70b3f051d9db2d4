"""A dataset as padded tensors: features in, log(runtime / roofline) out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from diode_trainer.features import (
    CONFIG_FEATURES,
    PROBLEM_FEATURES,
    VENDOR_FLAGS,
    config_features,
    problem_features,
    roofline_us,
)

if TYPE_CHECKING:
    from diode_trainer.dataset import Dataset
    from diode_trainer.models import TimingNetwork

_CONSTANT = 1e-6
"""A feature that varies less than this over the training set never varies."""


@dataclass(frozen=True, eq=False)
class Packed:
    """m problems, padded to W configs each."""

    problem: Tensor
    """(m, P) features."""
    config: Tensor
    """(m, W, C) features; padding is 0."""
    target: Tensor
    """(m, W) log(runtime / roofline); 0 where nothing was measured."""
    counted: Tensor
    """(m, W) bool: exists and ran."""
    vendor: Tensor
    """(m, W) bool."""
    estimate: Tensor
    """(m, W) bool: an upper-side guess, not a median."""

    def __len__(self) -> int:
        """Return m."""
        return len(self.problem)

    def __getitem__(self, rows: Tensor) -> Packed:
        """Return the problems at ``rows``."""
        return Packed(*(getattr(self, f.name)[rows] for f in fields(self)))

    def to(self, device: str) -> Packed:
        """Return the same on ``device``."""
        return Packed(*(getattr(self, f.name).to(device) for f in fields(self)))


def pack(dataset: Dataset) -> Packed:
    """Compute the features of every problem and config of ``dataset``."""
    count, width = len(dataset), max(len(example) for example in dataset)
    problem = np.empty((count, len(PROBLEM_FEATURES)), dtype=np.float32)
    config = np.zeros((count, width, len(CONFIG_FEATURES)), dtype=np.float32)
    target = np.zeros((count, width), dtype=np.float32)
    counted, vendor, estimate = (np.zeros((count, width), dtype=np.bool_) for _ in range(3))
    for i, example in enumerate(dataset):
        n = len(example)
        problem[i] = problem_features(example.shape, example.hardware)
        config[i, :n] = config_features(example.shape, example.hardware, example.columns)
        counted[i, :n], vendor[i, :n], estimate[i, :n] = example.ran, example.is_vendor, example.is_estimate
        roofline = roofline_us(example.shape, example.hardware)
        target[i, :n][example.ran] = np.log(example.runtime_us[example.ran] / roofline)
    return Packed(*(torch.from_numpy(array) for array in (problem, config, target, counted, vendor, estimate)))


def normalise(network: TimingNetwork, packed: Packed) -> None:
    """Set the network's normalisation to the mean and spread of ``packed``; flags of vendors keep their values.

    A feature that never varies there gets no weight: what it would do elsewhere cannot be learned.
    """
    to = network.normalisation
    constant = _set(to.problem_mean, to.problem_scale, packed.problem)
    flags = slice(len(VENDOR_FLAGS) + 1)
    constant_config = _set(to.config_mean, to.config_scale, packed.config[packed.counted & ~packed.vendor])
    to.config_mean[flags], to.config_scale[flags], constant_config[flags] = 0.0, 1.0, False
    with torch.no_grad():
        network.problem_weight[:, constant] = 0
        network.config_weight[:, constant_config] = 0


def _set(mean: Tensor, scale: Tensor, features: Tensor) -> Tensor:
    """Set mean and scale to those of ``features`` (rows, F); return which of the F never vary."""
    values = features.double()
    if not len(values):
        return torch.ones(features.shape[-1], dtype=torch.bool)
    mean.copy_(values.mean(0))
    spread = values.std(0, unbiased=False)
    constant = spread < _CONSTANT
    scale.copy_(torch.where(constant, 1.0, spread))
    return constant
