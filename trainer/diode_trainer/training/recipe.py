"""Hyperparameters of a fit."""

from __future__ import annotations

from dataclasses import dataclass

from diode_trainer.models import model_class


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a fit."""

    model_type: str = "deep"
    hidden_layer_widths: tuple[int, ...] | None = None
    """Widths of the hidden layers; None for the default of the model type."""
    members: int | None = None
    """Number of ensemble members; None for the default of the model type."""
    epochs: int = 60
    batch_size: int = 128
    """Problems in one step. A small data set gets batches down to 16, at a rate scaled by the square root."""
    most_configs: int = 44
    """Configs of a problem in one epoch; each epoch draws anew from longer lists."""
    learning_rate: float = 0.012
    """Peak of the learning rate, which rises over the first tenth of the steps and then falls along a cosine."""
    weight_decay: float = 0.02
    patience: int = 20
    """Epochs without improvement on the held-out problems before a member stops; 0 means never."""
    temperature: float = 0.08
    listwise_weight: float = 0.5
    """Weight of the ranking loss over all configs."""
    triton_listwise_weight: float = 0.5
    """Weight of the ranking loss over the configs that are not vendor kernels."""
    regret_temperature: float = 0.05
    """Log runtime behind the best prediction at which a config may still be picked."""
    regret_weight: float = 0.4
    """Weight of the expected regret, over all configs and again over those that are not vendor kernels."""
    huber_delta: float = 0.2
    estimate_weight: float = 0.2
    """Weight of an estimate in the regression, relative to a median."""
    vendor_weight: float = 5.0
    """Weight of a vendor kernel in the regression; a list has one for dozens of other configs."""
    averaging: float = 0.99
    """Decay of the moving average of the weights; the averaged weights are kept."""

    @property
    def all_members(self) -> int:
        """Number of members, with the default of the model type applied."""
        return self.members or model_class(self.model_type).default_members
