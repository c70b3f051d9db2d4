"""A checkpoint of the layout of upstream's ``v1_model.pt``, with weights that follow from a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

WIDTHS = (8, 6)
OVERHEAD_MS = 0.004
_FEATURES = 12


def state_dict(widths: tuple[int, ...] = WIDTHS) -> dict[str, Tensor]:
    """Return tensors with the names and shapes that upstream's network has at these widths."""
    state: dict[str, Tensor] = {}
    steps = [_FEATURES, *widths]
    for layer, (before, after) in enumerate(zip(steps, [*widths, 1], strict=True)):
        at = 3 * layer
        state[f"linear_relu_stack.{at}.weight"] = _waves(after, before, phase=at) / before**0.5
        state[f"linear_relu_stack.{at}.bias"] = _waves(after, phase=at + 1) - 5 * (after == 1)
        if layer < len(widths):
            norm = f"linear_relu_stack.{at + 1}."
            state[f"{norm}weight"] = 1 + 0.3 * _waves(after, phase=at + 2)
            state[f"{norm}bias"] = 0.2 * _waves(after, phase=at + 3)
            state[f"{norm}running_mean"] = 0.1 * _waves(after, phase=at + 4)
            state[f"{norm}running_var"] = 1.5 + _waves(after, phase=at + 5)
            state[f"{norm}num_batches_tracked"] = torch.tensor(100)
    return state


def checkpoint(**changes: Any) -> dict[str, Any]:
    """Return what upstream's ``save`` writes, with some fields replaced."""
    fields = {
        "model_state_dict": state_dict(),
        "problem_feature_dim": 7,
        "config_feature_dim": 5,
        "hidden_layer_widths": list(WIDTHS),
        "kernel_overhead": OVERHEAD_MS,
        "dropout_rate": 0.0,
    }
    return {**fields, **changes}


def _waves(*size: int, phase: int) -> Tensor:
    count = torch.Size(size).numel()
    return torch.sin(0.7 * torch.arange(count, dtype=torch.float64) + phase).reshape(size).float()
