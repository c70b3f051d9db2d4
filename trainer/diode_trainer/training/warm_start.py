"""Start from a model of other devices and part of its training data, so that a new device needs few problems.

The fit continues with the weights of that model, on the new problems (repeated) and some known ones.
docs/results/warm-start.md compares the alternatives, and ``benchmarks/bench_warm_start.py`` measures them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from diode_store.command_line.render import counted
from diode_store.errors import DiodeError, ModelError
from diode_store.system.resources import bundled_data_dir
from diode_trainer import artifact, catalogue
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.from_files import Files, read_files
from diode_trainer.models import TimingNetwork
from diode_trainer.training.train import Beginning

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_store.records import Hardware
    from diode_trainer.artifact import TimingModel
    from diode_trainer.training.recipe import Recipe

NONE, AUTO = "none", "auto"
"""Values of ``--warm-start`` other than the name of a model."""
EPOCHS, LEARNING_RATE = 25, 9e-3
"""Epochs and learning rate of a fit that continues from a model."""
_MOST_KNOWN = 5000
"""Limit on known problems in a fit. More would cost time; too few would let the model forget its devices."""
_NEW_SHARE = 0.3
"""Share of the new problems in an epoch, if ``_MOST_REPEATS`` allows it."""
_MOST_REPEATS = 10
"""Limit on how often an epoch repeats a new problem."""
_DRAW = 0
"""Seed of the draw of known problems."""


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Model and data that a fit for a new device starts from."""

    model: TimingModel
    network: TimingNetwork
    known: ExampleSet
    """Bundled problems that the model learned from."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.path.stem

    def facts(self) -> dict[str, Any]:
        """Return the warm start as a card describes it."""
        devices = [device.name for device in self.model.card.hardware]
        return {"model": self.name, "sha256": self.model.sha256, "hardware": devices, "problems": len(self.known)}

    def with_known(self, new: ExampleSet) -> ExampleSet:
        """Return the new problems followed by the known ones."""
        return both(new, self.known)

    def beginning(self, new: int) -> Beginning:
        """Return the beginning of a fit to ``new`` new problems followed by all known ones."""
        return Beginning(self.network, repeats(new, len(self.known)))

    def gently(self, recipe: Recipe, *, epochs: int | None = None, learning_rate: float | None = None) -> Recipe:
        """Return a recipe with the model's dimensions, and by default the epochs and rate of a warm start."""
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
    """Return the new problems followed by the known ones."""
    return ExampleSet(new.examples + known.examples, new.lineage)


def repeats(new: int, known: int) -> torch.Tensor:
    """Return how often an epoch repeats each problem, the new ones first; shape (new + known,)."""
    wanted = round(_NEW_SHARE / (1 - _NEW_SHARE) * known / max(new, 1))
    return torch.tensor([min(max(wanted, 1), _MOST_REPEATS)] * new + [1] * known)


def find(devices: Iterable[Hardware]) -> WarmStart | None:
    """Return the default start of a fit for devices; None if ``shipped_for`` has no model."""
    model = shipped_for(devices)
    return None if model is None else start_from(model)


def shipped_for(devices: Iterable[Hardware]) -> TimingModel | None:
    """Return the best shipped model if it learned from the same vendor's devices, but from none of ``devices``.

    A model that learned from one of the devices has already seen the test problems of the folds.
    """
    wanted = list(devices)
    try:
        model = artifact.load_shipped()
    except DiodeError:
        return None
    vendors = {device.vendor for device in model.card.hardware}
    is_other = all(device.vendor in vendors and not model.card.domain.learned_from(device) for device in wanted)
    return model if is_other else None


def named(name: str, devices: Iterable[Hardware]) -> WarmStart:
    """Return the start from a model given by name or path.

    Raises:
        ModelError: the model does not exist, or cannot be the start; the message says why.
    """
    model = artifact.load(catalogue.find_model(name))
    if known := [device.name for device in devices if model.card.domain.learned_from(device)]:
        raise ModelError(
            f"{name} learned from {', '.join(known)} itself, so no unseen problem is left to judge by;"
            " leave out --warm-start to start from random weights"
        )
    return start_from(model)


def start_from(model: TimingModel) -> WarmStart:
    """Return a model together with the bundled problems that it learned from.

    Raises:
        ModelError: the model learned from no bundled problem, or is upstream's.
    """
    if not isinstance(model.network, TimingNetwork):
        raise ModelError(f"{model.path}: upstream's model cannot be a warm start; name another model")
    bundled = read_files(Files.in_folder(bundled_data_dir(), ["seg"]), None).measurements
    domain = model.card.domain
    learned = [m for m in bundled if domain.learned_from(m.hardware) and model.was_trained_on(m.problem.shape)]
    if not learned:
        raise ModelError(
            f"{model.path}: learned from none of {counted(len(bundled), 'bundled measurement')}, so it would forget"
            " what it knows; name a shipped model"
        )
    drawn = np.random.default_rng(_DRAW).permutation(len(learned))[:_MOST_KNOWN]
    known = load_measurements([learned[i] for i in drawn], "the bundled measurements")
    return WarmStart(model, model.network, known)
