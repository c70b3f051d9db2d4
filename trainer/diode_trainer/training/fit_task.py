"""One of several fits: what it learns from and how, to be run here or in a process of its own."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from diode_trainer.data.tensors import Packed
from diode_trainer.models import TimingNetwork, dimensions_of, model_class
from diode_trainer.training import scout
from diode_trainer.training.checkpoints import Checkpoint
from diode_trainer.training.history import FINAL
from diode_trainer.training.train import Beginning, EpochReport, Fit, Recipe, fit, limited_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

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

    def to_plain(self) -> dict[str, Any]:
        """Return it as tensors and plain values, for another process."""
        begins_with = self.beginning.network
        return {
            "name": self.name,
            "packed": vars(self.packed),
            "rows": self.rows,
            "recipe": asdict(self.recipe),
            "seed": self.seed,
            "device": self.device,
            "network": None if begins_with is None else network_to_plain(begins_with),
            "repeats": self.beginning.repeats,
            "checkpoint": None if self.checkpoint is None else self.checkpoint.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> FitTask:
        """Return what ``to_plain`` told.

        Raises:
            ModelError: its checkpoint cannot be read any more.
        """
        network, checkpoint = plain["network"], plain["checkpoint"]
        return cls(
            plain["name"],
            Packed(**plain["packed"]),
            plain["rows"],
            Recipe(**plain["recipe"]),
            plain["seed"],
            plain["device"],
            Beginning(None if network is None else network_from_plain(network), plain["repeats"]),
            None if checkpoint is None else Checkpoint.from_plain(checkpoint),
        )

    @property
    def timings(self) -> int:
        """How many timings it learns from in all of its epochs."""
        return int(self.packed.count[self.rows].sum()) * self.recipe.epochs


def network_to_plain(network: TimingNetwork) -> dict[str, Any]:
    """Return a network as tensors and plain values, for another process."""
    return {"model_type": network.model_type, "state": dict(network.state_dict())}


def network_from_plain(plain: dict[str, Any]) -> TimingNetwork:
    """Return what ``network_to_plain`` told, to predict with."""
    state = plain["state"]
    with torch.random.fork_rng(devices=[]):  # what the constructor draws is replaced
        network = model_class(plain["model_type"])(*dimensions_of(state))
    network.load_state_dict(state)
    return network.requires_grad_(requires_grad=False).eval()
