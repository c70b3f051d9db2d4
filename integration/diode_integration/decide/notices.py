"""Log once that no model knows this device, or that the device is only near to those that a model knows.

The lines are not Python warnings, which would end a program that runs with ``-W error``.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.devices.known import known_devices
from diode_store.values import safely
from diode_trainer import catalogue
from diode_trainer.covered import best_standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.card import Card
    from diode_trainer.covered import Standing

log = logging.getLogger("diode_integration")

_TUNE = "`diode tune` trains a model for it (see `diode tune --help`)"
REMEDY = "`diode tune` measures and trains a model, which the hook then uses (see `diode tune --help`)"
_NVIDIA = Path("/proc/driver/nvidia/gpus")
"""Folder in which the driver describes its GPUs. Asking CUDA would start it, which a fork does not survive."""
_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))

_said: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""Locks that are acquired for good when a line is logged: by op, and of the empty op for the line about this device."""


def first_time(op: str = "") -> bool:
    """Return whether the line about this device, or an op on it, is still to be logged; True once in a process."""
    return _said[op].acquire(blocking=False)


def say_near(device: str, standing: Standing, op: str = "") -> None:
    """Log once that models rank the kernels of a device that is only near to their own devices, and why.

    With an op, once for that op: models know the device for other ops.
    """
    if first_time(op):
        how = f"models of {standing.nearest} rank its kernels, and the hook benchmarks more of them than usual"
        zero = "zero mode keeps the vendor kernel"
        what = f"{op} on {device}" if op else device
        line = f"no model knows {what}, but one is near: {standing.reason}; {how} ({zero}). {_TUNE}"
        safely.log(log, logging.WARNING, f"{line} (logged once)")


def say_at_import() -> None:
    """Log a line if no model knows a GPU of this machine, by the names that the driver shows.

    If the driver shows no GPU, or a GPU without published figures, the hook logs a line in the first compile instead.
    """
    if os.environ.get("DIODE_MODEL"):
        return  # the hook reports on that model itself
    cards = [model.card for model in catalogue.known_models()]
    here = gpus_here()
    if here is None or not cards or not all(card.hardware for card in cards):
        return
    standings = {name: standing_by_name(name, cards) for name in sorted(here)}
    found = [(name, standing) for name, standing in standings.items() if standing is not None]
    if any(standing.is_known for _, standing in found) or len(found) < len(here):
        return
    if near := [(name, standing) for name, standing in found if standing.is_near]:
        say_near(*near[0])
    elif here or not _is_for_this_cpu(cards):
        _say_unknown(here, cards)


def standing_by_name(name: str, cards: Sequence[Card]) -> Standing | None:
    """Return the standing of a named device with the model that knows it best; None without the device's figures."""
    trained = [device for card in cards for device in card.hardware if device.name == name]
    devices = trained or known_devices(name)
    return best_standing(card.domain.standing(device) for card in cards for device in devices)


def _is_for_this_cpu(cards: Sequence[Card]) -> bool:
    return any(device.arch.startswith(platform.machine()) for card in cards for device in card.hardware)


def _say_unknown(here: set[str], cards: Sequence[Card]) -> None:
    if not first_time():
        return
    known = sorted({f"{device.name} ({device.arch})" for card in cards for device in card.hardware})
    unknown = sorted(f"{device.name} ({device.arch})" for name in here for device in known_devices(name)[:1])
    devices = f"does not know {', '.join(unknown)}" if here else "finds no GPU"
    line = f"torch-diode abstains: it {devices}; its models are for {', '.join(known)}"
    what = "Stock Inductor chooses the kernels (zero mode keeps the vendor kernel)"
    safely.log(log, logging.WARNING, f"{line}. {what}" + (f"; {REMEDY}" if here else ""))


def gpus_here() -> set[str] | None:
    """Return the names of this machine's GPUs; empty if it has no GPU, None if unknown."""
    texts = [path.read_text() for path in _NVIDIA.glob("*/information")]
    lines = [line.partition(":") for text in texts for line in text.splitlines()]
    names = {value.strip() for key, _, value in lines if key == "Model"}
    return names or (None if any(path.exists() for path in _GPU_DEVICES) else set())
