"""Find the models under ``trained_models/<purpose>/`` by their cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_integration.base import ModelPointer
from diode_store.system.resources import trained_models_dir
from diode_trainer import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from diode_trainer.card import Card
    from diode_trainer.catalogue import ModelFile


class ModelRegistry:
    """Models by purpose: found in a folder, or registered by hand."""

    def __init__(self, pointers: Iterable[ModelPointer] | None = None) -> None:
        """Register ``pointers``, or the models that ship with torch-diode.

        Raises:
            DiodeError: the installation is incomplete.
        """
        self._pointers: dict[tuple[str, str], ModelPointer] = {}
        for pointer in _pointers(trained_models_dir()) if pointers is None else pointers:
            self.register_model(pointer)

    @classmethod
    def of_folder(cls, folder: Path) -> ModelRegistry:
        """Register every model under ``folder`` that has a card, best first; models with damaged cards are left out."""
        return cls(_pointers(folder))

    @classmethod
    def shipped(cls) -> ModelRegistry:
        """Register the models that ship with torch-diode.

        Raises:
            DiodeError: the installation is incomplete.
        """
        return cls()

    def register_model(self, pointer: ModelPointer) -> None:
        """Add a model, in place of one with the same purpose and name."""
        self._pointers[pointer.model_purpose, pointer.model_name] = pointer

    def get_model(self, purpose: str, name: str) -> ModelPointer | None:
        """Return the model with this purpose and file name, or None."""
        return self._pointers.get((purpose, name))

    def models(self, purpose: str | None = None) -> list[ModelPointer]:
        """Return the models of a purpose, or all, in the order of registration."""
        return [pointer for pointer in self._pointers.values() if purpose in {None, pointer.model_purpose}]

    def manifest(self) -> dict[str, Any]:
        """Return every model by purpose, as plain values."""
        purposes = sorted({pointer.model_purpose for pointer in self._pointers.values()})
        return {
            "total_models": len(self._pointers),
            "models_by_purpose": {purpose: [p.describe() for p in self.models(purpose)] for purpose in purposes},
        }


def pointer_to(file: ModelFile) -> ModelPointer:
    """Return the pointer to a found model."""
    return _pointer(file.path.parent.parent, *file)


def _pointers(folder: Path) -> Iterator[ModelPointer]:
    """Yield the models under a folder, best first."""
    return (_pointer(folder, path, card) for path, card in catalogue.best_first(folder))


def _pointer(folder: Path, path: Path, card: Card) -> ModelPointer:
    devices = ", ".join(device.name for device in card.hardware) or "any hardware"
    return ModelPointer(
        model_name=path.name,
        relative_path=str(path.parent.relative_to(folder)),
        model_purpose=card.purpose,
        description=f"{card.model_type} model of {', '.join(card.ops) or 'any op'} on {devices}",
        version=card.created_at,
        folder=folder,
    )
