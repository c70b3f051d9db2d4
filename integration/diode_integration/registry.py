"""The models there are: what lies under ``trained_models/<purpose>/``, by the cards beside them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from diode_integration.base import ModelPointer
from diode_store.errors import ModelError
from diode_store.resources import trained_models_dir
from diode_trainer.card import MATMUL_PURPOSE, read_card

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diode_trainer.card import Card


class ModelRegistry:
    """Models by purpose: those found in a folder, and those registered by hand."""

    def __init__(self, pointers: Iterable[ModelPointer] = ()) -> None:
        self._pointers: dict[tuple[str, str], ModelPointer] = {}
        for pointer in pointers:
            self.register_model(pointer)

    @classmethod
    def of_folder(cls, folder: Path) -> ModelRegistry:
        """Register every model under ``folder`` that has a card, best ranking first; damaged cards are left out."""
        cards = [(path, card) for path in sorted(folder.rglob("*.json")) if (card := _card(path)) is not None]
        cards.sort(key=lambda found: found[1].created_at, reverse=True)
        cards.sort(key=lambda found: _regret(found[1]))
        return cls(_pointer(folder, path, card) for path, card in cards)

    @classmethod
    def shipped(cls) -> ModelRegistry:
        """Register the models that come with torch-diode.

        Raises:
            DiodeError: the installation is incomplete.
        """
        return cls.of_folder(trained_models_dir())

    def register_model(self, pointer: ModelPointer) -> None:
        """Add a model; one of the same purpose and name is replaced."""
        self._pointers[pointer.model_purpose, pointer.model_name] = pointer

    def get_model(self, purpose: str, name: str) -> ModelPointer | None:
        """Return the model of this purpose and file name, or None."""
        return self._pointers.get((purpose, name))

    def models(self, purpose: str | None = None) -> list[ModelPointer]:
        """Return the models of a purpose, or all, in the order they were registered in."""
        return [pointer for pointer in self._pointers.values() if purpose in {None, pointer.model_purpose}]

    def manifest(self) -> dict[str, Any]:
        """Return every model by purpose, as plain values."""
        purposes = sorted({pointer.model_purpose for pointer in self._pointers.values()})
        return {
            "total_models": len(self._pointers),
            "models_by_purpose": {purpose: [p.describe() for p in self.models(purpose)] for purpose in purposes},
        }


def default_model(purpose: str = MATMUL_PURPOSE) -> Path:
    """Return the shipped model of a purpose that a user gets without asking: the one that ranks best.

    Raises:
        ModelError: none is shipped.
        DiodeError: the installation is incomplete.
    """
    models = ModelRegistry.shipped().models(purpose)
    if not models:
        raise ModelError(f"no model for {purpose} is shipped; train one with `diode-train` and pass its path")
    return models[0].path


def _card(path: Path) -> Card | None:
    """Return the card of a model; None when it is damaged or there is no checkpoint beside it."""
    try:
        return read_card(path) if path.with_suffix(".pt").exists() else None
    except ModelError:
        return None


def _regret(card: Card) -> float:
    return math.inf if card.regret_at_1 is None else card.regret_at_1


def _pointer(folder: Path, card_path: Path, card: Card) -> ModelPointer:
    devices = ", ".join(device.name for device in card.hardware) or "any hardware"
    return ModelPointer(
        model_name=card_path.with_suffix(".pt").name,
        relative_path=str(card_path.parent.relative_to(folder)),
        model_purpose=card.purpose,
        description=f"{card.model_type} model of {', '.join(card.ops) or 'any op'} on {devices}",
        version=card.created_at,
        folder=folder,
    )
