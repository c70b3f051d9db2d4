"""Begin with a model of other devices and what it learned from, so that a new device needs few problems.

The fit goes on with that model's weights, on the new problems and on some that it knows, the new ones repeated. Ways
that go without the weights or without the known problems were worse or took longer: docs/models.md has the figures, and
``benchmarks/bench_warm_start.py`` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from diode_store.errors import DiodeError, ModelError
from diode_store.render import counted
from diode_store.resources import bundled_data_dir
from diode_trainer import artifact, catalogue
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.from_files import Files, read_files
from diode_trainer.models import TimingNetwork
from diode_trainer.training.train import Beginning, Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_store.records import Hardware
    from diode_trainer.artifact import TimingModel

NONE, AUTO = "none", "auto"
"""What to ask for in place of a model's name."""
EPOCHS, LEARNING_RATE = 25, 3e-3
"""Of a fit that goes on; with 10 epochs at 2e-3, a hundred new problems were learned less well (docs/models.md)."""
_MOST_KNOWN = 5000
"""Known problems that a fit learns from again: all that ship. With 1,000 of 3,732 it forgets: going on from an H200
with 844 problems of an H100 it lost 1.2 times as much there as with all, and with 2,140 1.1 times (docs/models.md)."""
_NEW_SHARE = 0.3
"""What share of an epoch the new problems are, if they need not be repeated too often for it."""
_MOST_REPEATS = 10
_DRAW = 0
"""Which known problems are learned from again depends on nothing else."""


@dataclass(frozen=True, eq=False)
class WarmStart:
    """What a fit for a new device begins with."""

    model: TimingModel
    network: TimingNetwork
    known: ExampleSet
    """The bundled problems that the model learned from."""

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.path.stem

    def facts(self) -> dict[str, Any]:
        """Return what a card says of it."""
        devices = [device.name for device in self.model.card.hardware]
        return {"model": self.name, "sha256": self.model.sha256, "hardware": devices, "problems": len(self.known)}

    def with_known(self, new: ExampleSet) -> ExampleSet:
        """Return the new problems and the known ones behind them."""
        return both(new, self.known)

    def beginning(self, new: int) -> Beginning:
        """Return what a fit to so many new problems, and all known ones behind them, begins with."""
        return Beginning(self.network, repeats(new, len(self.known)))

    def gently(self, recipe: Recipe, *, epochs: int | None = None, learning_rate: float | None = None) -> Recipe:
        """Return a recipe that goes on from here: with the model's dimensions and, unless given, gently and shortly."""
        network = self.network
        return replace(
            recipe,
            model_type=network.model_type,
            hidden_layer_widths=network.hidden_layer_widths,
            members=network.members,
            epochs=epochs or EPOCHS,
            learning_rate=learning_rate or LEARNING_RATE,
        )


def both(new: ExampleSet, known: ExampleSet) -> ExampleSet:
    """Return the new problems and the known ones behind them."""
    return ExampleSet(new.examples + known.examples, new.lineage)


def repeats(new: int, known: int) -> torch.Tensor:
    """Return how often an epoch learns from each problem, the new ones first; shape (new + known,)."""
    wanted = round(_NEW_SHARE / (1 - _NEW_SHARE) * known / max(new, 1))
    return torch.tensor([min(max(wanted, 1), _MOST_REPEATS)] * new + [1] * known)


def find(devices: Iterable[Hardware]) -> WarmStart | None:
    """Return what to begin with for devices, or None: see ``shipped_for``."""
    model = shipped_for(devices)
    return None if model is None else start_from(model)


def shipped_for(devices: Iterable[Hardware]) -> TimingModel | None:
    """Return the model to begin with for devices: the best shipped one, if it is of another device of their vendor.

    A model that knows one of the devices has seen what its folds would be judged by, so it is none.
    """
    wanted = list(devices)
    try:
        model = artifact.load_shipped()
    except DiodeError:
        return None
    vendors = {device.vendor for device in model.card.hardware}
    is_other = all(device.vendor in vendors and not model.card.domain.covers(device) for device in wanted)
    return model if is_other else None


def named(name: str, devices: Iterable[Hardware]) -> WarmStart:
    """Return what to begin with by the name of a model, or its path.

    Raises:
        ModelError: no such model, or none to begin with; the message says why.
    """
    model = artifact.load(catalogue.find_model(name))
    if known := [device.name for device in devices if model.card.domain.covers(device)]:
        raise ModelError(
            f"{name} learned from {', '.join(known)} itself, so that it could not be judged by what it has not seen;"
            " leave out --warm-start to begin with nothing"
        )
    return start_from(model)


def start_from(model: TimingModel) -> WarmStart:
    """Return a model and those of the bundled problems that it learned from.

    Raises:
        ModelError: it learned from none of them, or is upstream's.
    """
    if not isinstance(model.network, TimingNetwork):
        raise ModelError(f"{model.path}: upstream's model cannot be gone on with; name another")
    bundled = read_files(Files.in_folder(bundled_data_dir(), ["seg"]), None).measurements
    domain = model.card.domain
    learned = [m for m in bundled if domain.covers(m.hardware) and model.was_trained_on(m.problem.shape)]
    if not learned:
        raise ModelError(
            f"{model.path}: learned from none of {counted(len(bundled), 'bundled measurement')}, so that nothing would"
            " keep what it knows; name a shipped model"
        )
    drawn = np.random.default_rng(_DRAW).permutation(len(learned))[:_MOST_KNOWN]
    known = load_measurements([learned[i] for i in drawn], "the bundled measurements")
    return WarmStart(model, model.network, known)
