"""Where the model of a device goes, and what becomes of the one that was there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from diode_store.errors import ModelError
from diode_trainer import catalogue
from diode_trainer.card import MATMUL_PURPOSE, card_path, read_card

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import Hardware


def target(hardware: Hardware) -> Path:
    """Return where the model of a device goes."""
    return catalogue.user_models_dir() / MATMUL_PURPOSE / f"{catalogue.name_for(hardware.name)}{catalogue.MODEL_SUFFIX}"


def sha256_of(path: Path) -> str | None:
    """Return the SHA-256 that the card of a model says; None without a model."""
    try:
        return read_card(card_path(path)).sha256 if path.exists() else None
    except ModelError:
        return ""  # something is there


def better_beginning(path: Path) -> dict[str, Any] | None:
    """Return how a model compares with the one that it began with, as its card says it, if that one loses less."""
    try:
        card = read_card(card_path(path))
    except ModelError:
        return None
    found = card.compared.get(card.training.get("warm_start", {}).get("sha256"))
    return dict(found) if found and found["its_regret_at_1"] < found["regret_at_1"] else None


def keep_copy(path: Path, folder: Path) -> Path:
    """Copy the files of a model to a folder of their own in ``folder``, unless it was done before.

    Raises:
        ModelError: they cannot be copied.
    """
    kept = folder / (sha256_of(path) or "damaged")[:12]
    try:
        kept.mkdir(parents=True, exist_ok=True)
        for file in catalogue.files_of(path):
            shutil.copy2(file, kept / file.name)
    except OSError as error:
        raise ModelError(f"{kept}: cannot keep the model before ({error.strerror or error}); make room") from None
    return kept / path.name
