"""One of several fits: what it learns from and how, to be run here or in a process of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from diode_trainer.training import scout
from diode_trainer.training.history import FINAL
from diode_trainer.training.train import Beginning, EpochReport, Fit, Recipe, fit, limited_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from diode_trainer.data.tensors import Packed
    from diode_trainer.training.checkpoints import Checkpoint

    Heard = Callable[[str, EpochReport], None]
    """Is told the name of a fit, and what it reports after an epoch."""


@dataclass(frozen=True, eq=False)
class FitTask:
    """One of several fits. The final one teaches its scout as well; folds are judged by what all members predict."""

    name: str
    packed: Packed
    rows: Tensor
    """The problems of ``packed`` that it learns from."""
    recipe: Recipe
    seed: int
    device: str
    beginning: Beginning
    checkpoint: Checkpoint | None

    def run(self, on_epoch: Heard, threads: int) -> tuple[Fit, float]:
        """Return the fit, and the seconds that it took in all runs.

        Args:
            on_epoch: called after each epoch of it, and of the scout's.
            threads: of each operation.

        Raises:
            DatasetError: too few problems.
            ModelError: it diverged, or its state cannot be kept.
        """
        with limited_threads(threads):
            return self._run(on_epoch, threads)

    def _run(self, on_epoch: Heard, threads: int) -> tuple[Fit, float]:
        started, part = time.perf_counter(), self.packed[self.rows]
        how: dict[str, Any] = {"seed": self.seed, "device": self.device, "threads": threads}
        hear = partial(on_epoch, self.name)
        fitted = fit(part, self.recipe, **how, on_epoch=hear, checkpoint=self.checkpoint, beginning=self.beginning)
        fitted_at = time.perf_counter()
        seconds = fitted_at - started if self.checkpoint is None else self.checkpoint.seconds
        if self.name == FINAL:
            scout.teach_scout(fitted.network, part, **how, on_epoch=partial(on_epoch, scout.NAME))
        return fitted, seconds + time.perf_counter() - fitted_at

    @property
    def timings(self) -> int:
        """How many timings it learns from in all of its epochs."""
        return int(self.packed.count[self.rows].sum()) * self.recipe.epochs
