"""Keep the best weights of each ensemble member during a fit.

Each member stops independently, as if it were fitted alone.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from diode_trainer.models import TimingNetwork


@dataclass(eq=False)
class Best:
    """The best weights of each member, and how good they are."""

    network: TimingNetwork
    epochs: Tensor
    """(E,) epochs of the kept weights; 0 if none were kept."""
    losses: Tensor
    """(E,) validation losses of the kept weights; infinite if none were kept."""

    @classmethod
    def none_of(cls, network: TimingNetwork) -> Best:
        """Return the state before the first validation."""
        zeros = torch.zeros(network.members, dtype=torch.int64)
        return cls(copy.deepcopy(network), zeros, zeros.double() + math.inf)

    def has_stopped(self, done: int, patience: int) -> Tensor:
        """Return which members did not improve in the last ``patience`` epochs, (E,) bool; with 0 none ever stops."""
        if not patience:
            return torch.zeros_like(self.epochs, dtype=torch.bool)
        return (self.epochs > 0) & (done - self.epochs >= patience)

    def update(self, network: TimingNetwork, losses: Tensor, epoch: int, patience: int) -> None:
        """Keep the members of ``network`` that improved in ``epoch`` and had not stopped before."""
        # A member without validation problems keeps its last epoch.
        better = ~(losses >= self.losses) & ~self.has_stopped(epoch - 1, patience)
        self.epochs[better], self.losses[better] = epoch, losses[better]
        with torch.no_grad():
            for kept, now in zip(self.network.parameters(), network.parameters(), strict=True):
                kept[better.to(kept.device)] = now[better.to(now.device)]
