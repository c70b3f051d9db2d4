"""Default recipe of each model type, and changes to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diode_store.errors import SettingsError
from diode_trainer.commands.train_options import MOST_LEARNING_RATE, MOST_WEIGHT_DECAY
from diode_trainer.models import model_class
from diode_trainer.training.recipe import Recipe

RECIPES = {
    "deep": Recipe("deep", epochs=70, weight_decay=0.2),
    "base": Recipe("base", epochs=60, weight_decay=0.2),
}
"""Default recipes by model type, chosen by cross-validation on the bundled measurements (docs/model-quality.md)."""

_FEWEST_EPOCHS = 30
_TURNS = 120_000
"""Problems over all epochs of a fit, within the recipe's epochs and the fewest."""


def with_epochs_for(recipe: Recipe, problems: int) -> Recipe:
    """Return a recipe with fewer epochs for many problems, since an epoch then has more steps."""
    return replace(recipe, epochs=min(recipe.epochs, max(_FEWEST_EPOCHS, _TURNS // max(problems, 1))))


def make_recipe(
    model_type: str, *, hidden_dim: int | None = None, num_layers: int | None = None, **changes: Any
) -> Recipe:
    """Return the recipe of a model type with ``changes``; None leaves a field as it is.

    Args:
        model_type: ``deep`` or ``base``.
        hidden_dim: width of each hidden layer.
        num_layers: number of hidden layers.
        changes: fields of ``Recipe``.

    Raises:
        ModelError: the model type is unknown.
        SettingsError: the learning rate or weight decay is out of range, or ``base`` gets several members.
    """
    default = model_class(model_type).default_widths
    widths = None
    if hidden_dim is not None or num_layers is not None:
        widths = (hidden_dim or default[0],) * (num_layers or len(default))
    given = {name: value for name, value in changes.items() if value is not None}
    recipe = replace(RECIPES[model_type], hidden_layer_widths=widths, **given)
    if model_type == "base" and (recipe.members or 1) > 1:
        raise SettingsError(f"--members {recipe.members}: base is a single network; give --model-type deep")
    if not 0 < recipe.learning_rate <= MOST_LEARNING_RATE:
        raise SettingsError(f"--learning-rate must be over 0 and at most 1, not {recipe.learning_rate}")
    if not 0 <= recipe.weight_decay <= MOST_WEIGHT_DECAY:
        raise SettingsError(f"--weight-decay must be from 0 to 100, not {recipe.weight_decay}")
    return recipe
