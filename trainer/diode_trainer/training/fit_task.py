"""Task of one fit, to run here or in another process."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from diode_trainer.training.train import Beginning, EpochReport, Fit, fit

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from diode_trainer.data.tensors import Packed
    from diode_trainer.training.checkpoints import Checkpoint
    from diode_trainer.training.recipe import Recipe

    Heard = Callable[[str, EpochReport], None]
    """Receives the name of a fit and its report after each epoch."""


@dataclass(frozen=True, eq=False)
class FitTask:
    """One fit, or some ensemble members of it."""

    name: str
    packed: Packed
    rows: Tensor
    """Indices of the training problems in ``packed``."""
    recipe: Recipe
    seed: int
    device: str
    beginning: Beginning
    checkpoint: Checkpoint | None
    members: tuple[int, int] | None = None
    """First member and end (exclusive) of the members to fit; None for all."""

    def run(self, on_epoch: Heard) -> tuple[Fit, float]:
        """Return the fit and its seconds over all runs.

        Args:
            on_epoch: called after each epoch.

        Raises:
            DatasetError: too few problems.
            ModelError: the fit diverged, or its state cannot be kept.
        """
        started = time.perf_counter()
        fitted = fit(
            self.packed[self.rows],
            self.recipe,
            seed=self.seed,
            device=self.device,
            on_epoch=partial(on_epoch, self.name),
            checkpoint=self.checkpoint,
            beginning=self.beginning,
            members=slice(*(self.members or (None,))),
        )
        return fitted, time.perf_counter() - started if self.checkpoint is None else self.checkpoint.seconds

    def parts(self, members_each: int) -> list[FitTask]:
        """Split the task into tasks of ``members_each`` members."""
        network = self.beginning.network
        count = network.members if network is not None else self.recipe.all_members
        bounds = [(first, min(first + members_each, count)) for first in range(0, count, members_each)]
        return [
            replace(self, members=some, checkpoint=self.checkpoint and self.checkpoint.of_part(number))
            for number, some in enumerate(bounds, 1)
        ]

    @property
    def timings(self) -> int:
        """Number of timings that the fit reads over all epochs."""
        return int(self.packed.count[self.rows].clamp(max=self.recipe.most_configs).sum()) * self.recipe.epochs
