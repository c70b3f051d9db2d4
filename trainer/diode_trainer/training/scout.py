"""The scout: a small network that learns to predict the mean of an ensemble's members.

A scout costs a fraction of a member, so the members score only its best candidates of a long list. The method is
knowledge distillation (Hinton et al., 2015).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from diode_store.errors import ModelError
from diode_trainer.feature_kinds import PRODUCTS
from diode_trainer.training.recipe import Recipe
from diode_trainer.training.train import EpochReport, fit, predict

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_trainer.data.tensors import Packed
    from diode_trainer.models import TimingNetwork

NAME = "scout"
"""Name of the scout's fit, beside ``final`` and the folds."""
# The scout preselects and does not choose, so ranking counts and regret does not. Its targets have no noise, so it
# needs no larger weight decay.
RECIPE = Recipe(
    "base",
    hidden_layer_widths=(48,),
    epochs=12,
    patience=0,
    listwise_weight=1.0,
    regret_weight=0.0,
    vendor_weight=1.0,
)


def teach_scout(
    network: TimingNetwork,
    packed: Packed,
    *,
    seed: int,
    device: str = "cpu",
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> None:
    """Teach ``network`` a scout on its own training problems; a network of one member or for short lists needs none.

    Args:
        network: fitted network; modified.
        packed: training data of the network; its times are not used.
        seed: seed of the scout's fit.
        device: device of the scout's fit.
        on_epoch: called after each epoch of the scout.

    Raises:
        ModelError: the fit diverged.
    """
    if network.members == 1 or packed.config.shape[1] != len(PRODUCTS.config):
        return
    taught = replace(packed, target=predict(network, packed).clone(), estimate=torch.zeros_like(packed.estimate))
    try:
        fitted = fit(taught, RECIPE, seed=seed, device=device, on_epoch=on_epoch)
    except ModelError:
        raise ModelError("the scout, which learns what the members predict, diverged; give another --seed") from None
    network.scout = fitted.network
