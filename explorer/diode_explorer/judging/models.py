"""The known models, read from their cards, and the loading of one."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_explorer.background import Task
from diode_store.errors import DiodeError, ModelError, SettingsError, first_line
from diode_store.values.sql import quoted
from diode_trainer.card import Card, card_path, read_card, shape_digest
from diode_trainer.catalogue import asked_first, known_defaults, long_name, user_models_dir
from diode_trainer.covered import nearest_first
from diode_trainer.scoring import Scorer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from diode_store.records import Hardware, ProblemShape

_KEPT_S = 5.0
"""Seconds before the folders of models are read again."""


@dataclass(frozen=True)
class KnownModel:
    """A model with its card, or with the reason why the card cannot be read."""

    name: str
    """Unique name: the file's, with the purpose before it if two files share a name."""
    path: Path
    card: Card | None
    error: str = ""
    """Reason why the card cannot be read."""


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model, which answers without torch."""

    scorer: Scorer | None
    """Scorer; None for upstream's kind of model."""
    trained_on: frozenset[int]

    def has_learned_from(self, shape: ProblemShape) -> bool:
        """Return whether the model was trained on a problem."""
        return shape_digest(shape) in self.trained_on


@dataclass(frozen=True)
class Load(Task[LoadedModel]):
    """Load a model, which imports torch."""

    path: Path
    sha256: str

    def work(self, database: str, tell: Callable[[float], None]) -> LoadedModel:  # noqa: ARG002 - it needs neither
        """Return the model."""
        from diode_trainer import artifact

        model = artifact.load(self.path)
        if model.sha256 != self.sha256:
            raise ModelError(f"{self.path} was just replaced; try again")
        scorer = model.scorer if isinstance(model.scorer, Scorer) else None
        return LoadedModel(scorer, model.trained_on)


class _Catalogue:
    """Reader of the models' cards, which keeps them for a few seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_s = -_KEPT_S
        self._folder: Path | None = None
        self._models: tuple[KnownModel, ...] = ()

    def models(self) -> tuple[KnownModel, ...]:
        """Return all models."""
        with self._lock:
            folder = user_models_dir()
            if folder != self._folder or time.monotonic() - self._read_s >= _KEPT_S:
                self._models = tuple(_read())
                self._folder, self._read_s = folder, time.monotonic()
            return self._models


_CATALOGUE = _Catalogue()


def known_models() -> tuple[KnownModel, ...]:
    """Return the models in the hook's order: the user's and the shipped defaults, then all others."""
    return _CATALOGUE.models()


def _read() -> Iterator[KnownModel]:
    try:
        preferred = known_defaults()
    except SettingsError:
        preferred = ()
    taken: set[str] = set()
    for path in asked_first(preferred):
        name = path.stem if path.stem not in taken else long_name(path)
        if name in taken:
            continue  # a model of the user's hides the shipped one of its name
        taken |= {name, long_name(path)}
        try:
            yield KnownModel(name, path, read_card(card_path(path)))
        except DiodeError as error:
            yield KnownModel(name, path, None, first_line(error))


def model_named(name: object) -> KnownModel | None:
    """Return the model with a name, or None."""
    return next((model for model in known_models() if model.name == name), None)


def model_asked(shape: ProblemShape, hardware: Hardware) -> KnownModel | None:
    """Return the model that the hook would ask about a problem; None if no model covers it or its neighborhood."""
    standings = [
        (each.card.domain.standing(hardware, shape.op), each)
        for each in known_models()
        if each.card and each.card.domain.knows_op(shape.op)
    ]
    asked = [pair for pair in standings if pair[0].is_known] or nearest_first(standings)
    return next((each for _, each in asked if _knows(each, shape, hardware)), None)


def _knows(model: KnownModel, shape: ProblemShape, hardware: Hardware) -> bool:
    return model.card is not None and not any(model.card.domain.misses(shape, hardware, near=True))


def names_sql(*more: str, without: object = None) -> str:
    """Return a SELECT of the names of all readable models, in their order.

    Args:
        more: further names, at the end.
        without: a name to leave out.
    """
    names = (*(model.name for model in known_models() if model.card and model.name != without), *more)
    rows = ", ".join(f"({place}, {quoted(name)})" for place, name in enumerate(names))
    return f"SELECT name FROM (VALUES {rows or '(0, NULL)'}) AS models(place, name) ORDER BY place"  # noqa: S608 - quoted
