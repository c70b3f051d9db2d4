"""Verify that a model on disk is intact and usable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diode_store.candidates.columns import ConfigColumns
from diode_store.devices.known import KNOWN_DEVICES
from diode_store.errors import ModelError
from diode_store.records import Hardware, ProblemShape
from diode_trainer.artifact import load

if TYPE_CHECKING:
    from pathlib import Path

    from diode_trainer.artifact import TimingModel
    from diode_trainer.card import Domain

_BLOCKS = (64, 64, 32, 8, 3, 4)
_MANY = 200
"""Length of a list for which members ask their scout."""


def verify(path: Path) -> str | None:
    """Return what is wrong with the model at ``path``, or None.

    A good model loads: its bytes match its card, and its features are ours. It predicts finite, positive times for a
    config of each known template, in a short and in a long list. The problem is in the middle of the model's shapes.
    """
    try:
        model = load(path)
    except ModelError as error:
        return str(error)
    shape, hardware, columns = _question(model)
    for asked in (columns, columns.take(np.arange(max(_MANY, len(columns))) % len(columns))):
        with np.errstate(all="ignore"):
            predicted = model.predict_us(shape, hardware, asked)
        if not (np.isfinite(predicted).all() and (predicted > 0).all()):
            return f"{path}: predicts {predicted[: len(columns)].tolist()} us; train it again with `diode-train`"
    return None


def _question(model: TimingModel) -> tuple[ProblemShape, Hardware, ConfigColumns]:
    domain = model.card.domain
    op = next(iter(domain.ops), "mm")
    shape = _middle(domain, op) if op not in domain.of_ops else domain.of_ops[op].example(op)
    device = next(iter(domain.hardware), None)
    hardware = (
        KNOWN_DEVICES[0]
        if device is None
        else Hardware(device.vendor, device.name, device.arch, device.multiprocessors)
    )
    templates = domain.templates or ("aten::mm", "triton::mm")
    rows = [(name, *((0,) * len(_BLOCKS) if name.startswith("aten::") else _BLOCKS), False) for name in templates]
    return shape, hardware, ConfigColumns.from_rows(rows)


def _middle(domain: Domain, op: str) -> ProblemShape:
    middle = {name: int((low * high) ** 0.5) for name, (low, high) in domain.shapes.items()}
    sizes = {name: middle.get(name, 512) for name in "bmnk"}
    dtype = next(iter(domain.dtypes), "bfloat16")
    tf32 = dtype == "tf32"
    b, m, n, k = (sizes[name] for name in "bmnk")
    return ProblemShape(op, "float32" if tf32 else dtype, b, m, n, k, "nn", tf32)
