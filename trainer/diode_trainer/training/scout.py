"""The scout of a network with several members: a small network that is taught to predict what they do.

It costs a fraction of a member, so that of a long list the members need to score only what it finds good
(Hinton et al., "Distilling the Knowledge in a Neural Network", 2015).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from diode_store.errors import ModelError
from diode_trainer.training.train import EpochReport, Recipe, fit, predict

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_trainer.data.tensors import Packed
    from diode_trainer.models import TimingNetwork

NAME = "scout"
"""Of its fit, beside ``final`` and the folds'."""
# It has to put among its first what the members put first, not to choose: so ranking counts, and regret does not. What
# it is taught has no noise that a larger weight decay would keep it from learning.
RECIPE = Recipe(
    "base",
    hidden_layer_widths=(32, 32),
    epochs=20,
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
    threads: int = 1,
) -> None:
    """Give ``network`` a scout, taught on the problems that it was fitted to; a single member needs none.

    Args:
        network: the fitted network, which is changed.
        packed: what it was fitted to; only the features are used.
        seed: of the scout's fit.
        device: where to fit.
        on_epoch: called after each epoch of it.
        threads: of each operation.

    Raises:
        ModelError: the fit diverged.
    """
    if network.members == 1:
        return
    taught = replace(packed, target=predict(network, packed).clone(), estimate=torch.zeros_like(packed.estimate))
    try:
        fitted = fit(taught, RECIPE, seed=seed, device=device, on_epoch=on_epoch, threads=threads)
    except ModelError:
        raise ModelError("the scout, which learns what the members predict, diverged; give another --seed") from None
    network.scout = fitted.network
