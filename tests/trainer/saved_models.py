"""A small model for the tests of what is saved, and ways to change its files."""

from __future__ import annotations

import hashlib
import io
import json
from typing import TYPE_CHECKING, Any

import torch

from diode_trainer.card import MATMUL_PURPOSE, Calibration, Card, Domain, card_path
from diode_trainer.covered import CoveredHardware
from diode_trainer.features import CONFIG_FEATURES, FEATURE_VERSION, PROBLEM_FEATURES
from diode_trainer.models import DeepMatmulTimingModel, TimingNetwork

if TYPE_CHECKING:
    from pathlib import Path

DIMENSIONS = (len(PROBLEM_FEATURES), len(CONFIG_FEATURES))
DOMAIN = Domain(
    hardware=(CoveredHardware("NVIDIA H200", "sm_90", 132),),
    ops=("mm",),
    dtypes=("bfloat16",),
    layouts=("nn", "nt"),
    templates=("aten::mm", "triton::mm"),
    shapes={"b": (1, 1), "m": (8, 4096), "n": (8, 4096), "k": (8, 4096)},
)
CALIBRATION = Calibration(0.7, 2.5, 0.4, 0.6, 0.006, 1208, 0.3, -0.2, -0.05, 0.1)
CARD = Card("small", MATMUL_PURPOSE, "deep", FEATURE_VERSION, DOMAIN, metrics={"folds": 5}, command="diode-train")


def small_network() -> TimingNetwork:
    """Return a small network with other than its first weights."""
    model = DeepMatmulTimingModel(*DIMENSIONS, (8, 4), 3)
    model.initialise(torch.Generator().manual_seed(2))
    with torch.no_grad():
        model.normalisation.config_mean[5:] = 0.5
        model.normalisation.problem_scale[:] = 2.0
    return model


def torch_bytes(content: object) -> bytes:
    """Return what ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's content."""
    content = torch.load(path, weights_only=True)
    assert isinstance(content, dict)
    return content


def edit_card(path: Path, **content: object) -> None:
    """Replace fields of a model's card and leave its checkpoint alone."""
    card = card_path(path)
    card.write_text(json.dumps({**json.loads(card.read_text()), **content}))


def change(path: Path, **fields: object) -> None:
    """Replace fields of a checkpoint, and make its card agree with the new bytes."""
    content = torch_bytes({**checkpoint(path), **fields})
    path.write_bytes(content)
    edit_card(path, sha256=hashlib.sha256(content).hexdigest())
