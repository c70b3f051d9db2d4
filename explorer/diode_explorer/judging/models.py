"""Which models there are, by their cards alone, and how one is loaded."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_explorer.background import Task
from diode_store.errors import DiodeError, ModelError, SettingsError, first_line
from diode_trainer.card import Calibration, Card, card_path, read_card, shape_digest
from diode_trainer.catalogue import asked_first, long_name, user_models_dir
from diode_trainer.defaults import known_defaults
from diode_trainer.scoring import Scorer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from diode_store.records import Hardware, ProblemShape

_KEPT_S = 5.0
"""For so long it is not looked again which models there are."""


@dataclass(frozen=True)
class KnownModel:
    """A model of which the card was read, or why it was not."""

    name: str
    """Its file's, which tells it from all others; where two have the same, that of its purpose before it."""
    path: Path
    card: Card | None
    error: str = ""
    """Why its card could not be read."""


@dataclass(frozen=True)
class LoadedModel:
    """What it takes to ask a model, without torch."""

    scorer: Scorer | None
    """None for one of another kind than ours."""
    calibration: Calibration | None
    trained_on: frozenset[int]

    def has_learned_from(self, shape: ProblemShape) -> bool:
        """Whether a problem is among those that it was trained on."""
        return shape_digest(shape) in self.trained_on


@dataclass(frozen=True)
class Load(Task[LoadedModel]):
    """Loads a model, which takes torch."""

    path: Path
    sha256: str

    def work(self, database: str, tell: Callable[[float], None]) -> LoadedModel:  # noqa: ARG002 - it needs neither
        """Return the model."""
        from diode_trainer import artifact

        model = artifact.load(self.path)
        if model.sha256 != self.sha256:
            raise ModelError(f"{self.path} was replaced a moment ago")
        scorer = model.scorer if isinstance(model.scorer, Scorer) else None
        return LoadedModel(scorer, model.card.calibration, model.trained_on)


class _Catalogue:
    """Reads the cards, once in a while."""

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
    """Return the user's models and the shipped ones in the order in which the hook asks them, then all others."""
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
    """Return the model of a name; None if there is none."""
    return next((model for model in known_models() if model.name == name), None)


def model_asked(shape: ProblemShape, hardware: Hardware) -> KnownModel | None:
    """Return the model that the hook would ask about a problem on a device; None if none knows them."""
    return next(
        (each for each in known_models() if each.card and not [*each.card.domain.misses(shape, hardware)]), None
    )


def names_sql(*more: str) -> str:
    """Return a SELECT of the names of models whose card was read, in their order.

    Args:
        more: further names, at the end.
    """
    names = (*(model.name for model in known_models() if model.card), *more)
    rows = ", ".join("({}, {})".format(place, "'" + name.replace("'", "''") + "'") for place, name in enumerate(names))
    return f"SELECT name FROM (VALUES {rows or '(0, NULL)'}) AS models(place, name) ORDER BY place"  # noqa: S608 - quoted
