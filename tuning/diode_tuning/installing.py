"""Installation of a device's model, and copies of the model that was there before."""

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
    """Return the path of a device's model."""
    return catalogue.user_models_dir() / MATMUL_PURPOSE / f"{catalogue.name_for(hardware.name)}{catalogue.MODEL_SUFFIX}"


def sha256_of(path: Path) -> str | None:
    """Return the SHA-256 from a model's card, None without a model, and an empty string for a damaged card."""
    try:
        return read_card(card_path(path)).sha256 if path.exists() else None
    except ModelError:
        return ""  # a damaged model is there


def better_beginning(path: Path) -> dict[str, Any] | None:
    """Return the comparison of a model with the one it started from, if the latter loses less according to the card."""
    try:
        card = read_card(card_path(path))
    except ModelError:
        return None
    found = card.compared.get(card.training.get("warm_start", {}).get("sha256"))
    return dict(found) if found and found["its_regret_at_1"] < found["regret_at_1"] else None


def keep_copy(path: Path, folder: Path) -> Path:
    """Copy the files of a model to a folder of their own in ``folder``, unless the copy exists.

    Raises:
        ModelError: the files cannot be copied.
    """
    kept = folder / (sha256_of(path) or "damaged")[:12]
    try:
        kept.mkdir(parents=True, exist_ok=True)
        for file in catalogue.files_of(path):
            shutil.copy2(file, kept / file.name)
    except OSError as error:
        raise ModelError(f"{kept}: cannot copy the previous model ({error.strerror or error}); make room") from None
    return kept / path.name
