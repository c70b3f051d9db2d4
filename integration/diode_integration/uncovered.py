"""Logs once that no model knows this device, so that nothing is chosen by one.

It is logged, not a Python warning, which would end a program that runs with ``-W error``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store import safely
from diode_store.devices import known_device
from diode_store.errors import HardwareError
from diode_trainer import catalogue
from diode_trainer.card import similar_device

if TYPE_CHECKING:
    from diode_trainer.card import Card

log = logging.getLogger("diode_integration")

REMEDY = "`diode tune` measures and trains a model, which is then used without being named (docs/your-gpu.md)"
_NVIDIA = Path("/proc/driver/nvidia/gpus")
"""Where the driver describes its GPUs; asking CUDA would start it, which a fork does not survive."""
_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))

_said = threading.Lock()
"""Acquired for good once it was logged."""


def first_time() -> bool:
    """Return whether it is still to be logged; True once in a process."""
    return _said.acquire(blocking=False)


def say_at_import() -> None:
    """Log it if no model knows a GPU of this machine.

    Where the driver does not show which GPUs there are, the hook says so in the first compile.
    """
    if os.environ.get("DIODE_MODEL"):
        return  # the hook says what it makes of that one
    models = catalogue.known_models()
    known = {device.name for model in models for device in model.card.hardware}
    here = gpus_here()
    if here is None or known & here or not all(model.card.hardware for model in models):
        return
    if not here and any(
        device.arch.startswith(platform.machine()) for model in models for device in model.card.hardware
    ):
        return  # a model of a CPU, and there is nothing else to compile for
    similar = _similar(here, [model.card for model in models])
    if similar and asks_similar_models():
        return  # the hook asks the models of a similar device, and says so
    if known and first_time():
        devices = f"does not know {', '.join(sorted(here))}" if here else "finds no GPU"
        line = f"torch-diode abstains: it {devices}; its models are for {', '.join(sorted(known))}"
        if similar:
            line += f" ({similar} is similar: DIODE_SIMILAR=top_k has its models rank, and benchmarks decide)"
        safely.log(
            log,
            logging.WARNING,
            f"{line}. Stock Inductor chooses the kernels (in zero mode the vendor's are kept); {REMEDY}",
        )


def asks_similar_models() -> bool:
    """Return whether the environment has models of a similar device asked; without looking at what else it may say."""
    return os.environ.get("DIODE_SIMILAR") == "top_k" and os.environ.get("DIODE_MODE") != "zero"


def _similar(names: set[str], cards: list[Card]) -> str:
    """Return the name of the device most like the first of ``names`` that is like any; empty without one."""
    devices = []
    for name in sorted(names):
        with contextlib.suppress(HardwareError):  # the driver's name may mean several
            devices += [device for device in [known_device(name)] if device is not None]
    return next((found for device in devices if (found := similar_device(cards, device))), "")


def gpus_here() -> set[str] | None:
    """Return the names of this machine's GPUs, none if it has none; None if unknown."""
    texts = [path.read_text() for path in _NVIDIA.glob("*/information")]
    lines = [line.partition(":") for text in texts for line in text.splitlines()]
    names = {value.strip() for key, _, value in lines if key == "Model"}
    return names or (None if any(path.exists() for path in _GPU_DEVICES) else set())
