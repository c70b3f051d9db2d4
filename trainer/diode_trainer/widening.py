"""Read models of an older feature version on.

Version 4 appended features that are 0 for the ops that version 3 knew, and changed no other. So a model of version 3
is a model of version 4 whose first layers have zero weights for the new features. Its predictions stay the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from diode_store.errors import ModelError
from diode_trainer.feature_kinds import PRODUCTS, kind_of
from diode_trainer.features import (
    CONFIG_FEATURES,
    FEATURE_VERSION,
    PROBLEM_FEATURES,
    WIDENED_DIMENSIONS,
    WIDENED_VERSION,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import Tensor

RETRAIN = "train it again with `diode-train`"
OLD_OPS = ("addmm", "baddbmm", "bmm", "mm")
"""Ops that a model of version 3 can know."""
_MISSING = {
    "problem": len(PROBLEM_FEATURES) - WIDENED_DIMENSIONS[0],
    "config": len(CONFIG_FEATURES) - WIDENED_DIMENSIONS[1],
}
"""Number of features that version 3 lacks, of a problem and of a config."""
_NETWORKS = ("", "scout.")
"""Prefixes of the tensors of the members and of their scout."""


def check_version(version: int, ops: Collection[str]) -> None:
    """Check that a model made for a feature version of some ops can be used.

    Raises:
        ModelError: the features have changed since.
    """
    kind = kind_of(ops)
    if version not in ({FEATURE_VERSION, WIDENED_VERSION} if kind is PRODUCTS else {kind.version}):
        raise ModelError(f"expected feature version {kind.version}, got a model made for version {version}; {RETRAIN}")


def widened(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of a network of version 3 with zero weights for the features of version 4."""
    found = dict(state)
    for network in _NETWORKS:
        for kind, count in _MISSING.items():
            for name, axis, value in (
                (f"{network}{kind}_weight", 1, 0.0),
                (f"{network}normalisation.{kind}_mean", 0, 0.0),
                (f"{network}normalisation.{kind}_scale", 0, 1.0),
            ):
                if name in found:
                    found[name] = _appended(found[name], axis, count, value)
    return found


def _appended(tensor: Tensor, axis: int, count: int, value: float) -> Tensor:
    sizes = list(tensor.shape)
    sizes[axis] = count
    return torch.cat((tensor, tensor.new_full(sizes, value)), axis)
