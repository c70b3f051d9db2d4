"""Models that a handler may ask.

The cards tell what each model knows, so that only the first model is loaded at once. Another is loaded when a product
needs it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from diode_integration.decide.ranking import Predictor
from diode_store.devices.known import describe
from diode_store.errors import DiodeError, ModelError, SettingsError
from diode_store.values import safely
from diode_trainer import artifact, catalogue
from diode_trainer.card import MATMUL_PURPOSE, PURPOSES
from diode_trainer.catalogue import known_defaults
from diode_trainer.covered import Familiarity, Standing, best_standing, labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from diode_integration.decide.ranking import Model
    from diode_store.records import Hardware, Problem
    from diode_trainer.card import Card
    from diode_trainer.catalogue import ModelFile
    from diode_trainer.corrections.corrections import Corrections
    from diode_trainer.op_domain import Miss

log = logging.getLogger("diode_integration")
_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class KnownModel:
    """A model with its card."""

    card: Card
    sha256: str
    load: Callable[[], Model]
    """Loads the model; raises ``ModelError`` if it cannot be used."""
    path: Path | None = None
    """Path of the checkpoint; None for a loaded model."""

    def miss(self, problem: Problem, hardware: Hardware) -> Miss | None:
        """Return why the model does not know a product on a device that it knows or is near to; None if it does."""
        return next(iter(self.card.domain.misses(problem.shape, hardware, near=True)), None)

    @classmethod
    def loaded(cls, model: Model) -> KnownModel:
        """Return a loaded model."""
        return cls(model.card, model.sha256, lambda: model)

    @classmethod
    def of_file(cls, file: ModelFile) -> KnownModel:
        """Return a model that is loaded once, on its first use."""
        return cls(file.card, file.card.sha256, cache(partial(_load, file)), file.path)


class ModelSet:
    """Models in the order in which they are asked; safe to share between threads."""

    def __init__(
        self,
        models: Iterable[KnownModel],
        corrections: Corrections | None = None,
        on_load: Callable[[Model], None] = lambda _model: None,
    ) -> None:
        """Load the first usable model; unusable ones before it are left out and logged.

        Args:
            models: the models in order.
            corrections: corrections of one of them.
            on_load: called with each loaded model.

        Raises:
            ModelError: no model is usable; the message says why.
        """
        self._lock = threading.RLock()
        self._predictors: dict[int, Predictor | None] = {}
        self._on_load = on_load
        self._lacking: list[str] = []
        self.corrections = corrections
        self.known = tuple(models)
        first = next((found for model in self.known if (found := self._first(model)) is not None), None)
        if first is None:
            raise ModelError(self.why_none)
        self.first = first
        self.known = tuple(model for model in self.known if self._is_whole(model))

    @property
    def key(self) -> str:
        """SHA-256 of the only model, or of all models' SHA-256s together, for cache keys."""
        if len(self.known) == 1:
            return self.known[0].sha256
        return hashlib.sha256("".join(model.sha256 for model in self.known).encode()).hexdigest()

    @property
    def know_their_spread(self) -> bool:
        """True if a model says how far its members disagree, with a calibration."""
        return self.first.knows_its_spread or any(model.card.calibration is not None for model in self.known[1:])

    def standings(self, hardware: Hardware, op: str) -> list[tuple[Standing, KnownModel]]:
        """Return the standing of a device with each model, for an op."""
        return [(model.card.domain.standing(hardware, op), model) for model in self.known]

    def standing(self, hardware: Hardware) -> Standing:
        """Return the standing of a device with the model that knows it best."""
        found = best_standing(model.card.domain.standing(hardware) for model in self.known)
        return found or Standing(Familiarity.UNKNOWN, self.why_none)

    def why_unknown(self, hardware: Hardware, op: str) -> str:
        """Return why no model knows a device for an op, for a person."""
        if len(self.known) == 1:
            return self.known[0].card.domain.standing(hardware, op).reason
        devices = [device for model in self.known for device in model.card.domain.devices_of(op)]
        archs, names = (", ".join(dict.fromkeys(each)) for each in ([d.arch for d in devices], labels(devices)))
        return f"the models know the architectures {archs} ({names}), not {describe([hardware])}"

    @property
    def why_none(self) -> str:
        """Reason why no model can be used, for a person."""
        return "; ".join(self._lacking) or f"there is no model for {MATMUL_PURPOSE}; train one with `diode-train`"

    def predictor(self, model: KnownModel) -> Predictor | None:
        """Return the predictor of a model, loaded once; None if the model cannot be used, which is logged."""
        with self._lock:
            if id(model) not in self._predictors:
                self._predictors[id(model)] = in_a_thread(partial(self._loaded, model))
            return self._predictors[id(model)]

    def _first(self, model: KnownModel) -> Predictor | None:
        found = self._predictors[id(model)] = self._loaded(model)
        return found

    def _is_whole(self, model: KnownModel) -> bool:
        """Return whether the file is still the card's; an unusable model must not be part of the key."""
        if id(model) in self._predictors or model.path is None:
            return self._predictors.get(id(model), self.first) is not None
        try:
            whole = hashlib.sha256(model.path.read_bytes()).hexdigest() == model.sha256
        except OSError:
            whole = False
        if not whole:
            self._leave_out(f"{model.path}: damaged, or another model than its card's")
        return whole

    def _leave_out(self, reason: str) -> None:
        self._lacking.append(reason)
        if len(self.known) > 1:
            safely.log(log, logging.WARNING, f"a model is left out: {reason}")

    def _loaded(self, model: KnownModel) -> Predictor | None:
        try:
            loaded = model.load()
        except ModelError as error:
            self._leave_out(str(error))
            return None
        self._on_load(loaded)
        return Predictor(loaded, self._corrections_of(model))

    def _corrections_of(self, model: KnownModel) -> Corrections | None:
        corrections = self.corrections
        return corrections if corrections is not None and corrections.model_sha256 == model.sha256 else None


def _load(file: ModelFile) -> Model:
    """Load a model, and check that its card is still the one read before: domain and cache key depend on it."""
    model = artifact.load(file.path)
    if model.sha256 != file.card.sha256:
        raise ModelError(f"{file.path}: replaced since this process found it; a new process will ask it")
    return model


def in_a_thread(load: Callable[[], _T]) -> _T:
    """Load in a thread of its own: the compiling thread has modes in which tensors are not real."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(load).result()


def known_files(hardware: Hardware | None) -> list[ModelFile]:
    """Return the user's and the shipped models in the order in which they are asked.

    Args:
        hardware: keep the models that know this device, then those near to knowing it, else all; None for all.

    Raises:
        DiodeError: the installation is incomplete.
    """
    files = catalogue.known_models(preferred=_preferred())
    if hardware is None:
        return files
    standings = [(file.card.domain.standing(hardware), file) for file in files]
    known = [file for standing, file in standings if standing.is_known]
    # A near model may know an op that the known ones lack.
    return [*known, *(file for standing, file in standings if standing.is_near)] or files


def alone_files() -> list[ModelFile]:
    """Return the user's and the shipped models of attention and convolutions in the order in which they are asked.

    Damaged ones are left out, as they must not be part of a cache key.
    """
    try:
        purposes = [purpose for purpose in PURPOSES if purpose != MATMUL_PURPOSE]
        files = [file for each in purposes for file in catalogue.known_models(each, preferred=_preferred())]
        return list(filter(_is_of_card, files))
    except DiodeError:  # the installation is incomplete, which the models of products report
        return []


def _is_of_card(file: ModelFile) -> bool:
    try:
        return hashlib.sha256(file.path.read_bytes()).hexdigest() == file.card.sha256
    except OSError:
        return False


def _preferred() -> tuple[str, ...]:
    try:
        return known_defaults()
    except ImportError:  # platformdirs may be missing in a compiling process
        return ()
    except SettingsError as error:
        safely.log(log, logging.WARNING, str(error))
        return ()
